"""RKO: reshaped kernel orthogonalization, as first published.

Moustapha Cissé, Piotr Bojanowski, Edouard Grave, Yann Dauphin, Nicolas Usunier: "Parseval Networks", ICML 2017;
compared with BCOP by Li et al., "Preventing Gradient Attenuation in Lipschitz Constrained Convolutional Networks",
NeurIPS 2019.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.legacy._common import require_positive
from orthogonium.legacy.block_ortho_conv import ScaledBjorck


class RKO(nn.Module):
    """The kernel as one matrix out × in·k², orthonormalised by Björck, divided by the overlap of its windows.

    Paper: Cissé et al., "Parseval Networks", ICML 2017, with Li et al.'s (NeurIPS 2019) scaling: a pixel lies in at
    most ⌈k/s⌉² windows, so the convolution of an orthonormal matrix is ⌈k/s⌉-Lipschitz, which is divided out.

    Guarantee: 1-Lipschitz for any zero padding, within 1e-6 in float32. Orthogonal only if windows do not overlap
    (kernel_size ≤ stride): rows if out ≤ in·k², otherwise columns, for kernel_size = stride and no padding.

    Kept from the original: a fixed number of Björck iterations; with overlapping windows many singular values are far
    below 1. Corrected here: for strides, the published coefficient of Serrurier et al. (CVPR 2021) uses the average
    overlap, which can be exceeded (1.02-Lipschitz on a constant 3 × 3 kernel); this one uses the largest.

    >>> layer = RKO(3, 12, kernel_size=2, stride=2)
    >>> x = torch.randn(1, 3, 4, 4)
    >>> torch.allclose(layer(x).norm(), x.norm())
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        bjorck_beta: float = 0.5,
        bjorck_iters: int = 20,
        power_iteration_scaling: bool = True,
    ) -> None:
        super().__init__()
        require_positive(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        if padding < 0:
            raise ParameterError(f"RKO: padding must not be negative, got {padding}. Crop the image instead.")
        self.stride, self.padding = stride, padding
        self.overlap = math.ceil(kernel_size / stride)
        self.weight = nn.Parameter(
            nn.init.orthogonal_(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        )
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        matrix = self.weight.flatten(1)[None]
        self.orthonormalize = ScaledBjorck(matrix, bjorck_iters, bjorck_beta, power_iteration_scaling)

    def kernel(self) -> Tensor:  # (out, in, k, k)
        """The scaled kernel of the current parameters."""
        return self.orthonormalize(self.weight.flatten(1)[None]).view_as(self.weight) / self.overlap

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of a batch of images."""
        return F.conv2d(x, self.kernel(), self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        """The geometry of the convolution."""
        co, ci, k, _ = self.weight.shape
        return f"{ci}, {co}, kernel_size={k}, stride={self.stride}, padding={self.padding}"
