"""SLL: SDP-based Lipschitz layers, as first published.

Alexandre Araujo, Aaron Havens, Blaise Delattre, Alexandre Allauzen, Bin Hu: "A Unified Algebraic Perspective on
Lipschitz Neural Networks", ICLR 2023.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.legacy._common import require_positive
from orthogonium.legacy.almost_orthogonal_conv import gram_row_sums


class _SDPBasedLipschitz(nn.Module):
    """Parameters of both layers: weight (cout, cin, *k), bias and q (cout)."""

    def __init__(self, shape: tuple[int, ...], epsilon: float) -> None:
        super().__init__()
        if not epsilon > 0:
            raise ParameterError(f"epsilon must be positive, got {epsilon}: it keeps q off zero. The paper uses 1e-6.")
        self.epsilon = epsilon
        self.weight = nn.Parameter(nn.init.xavier_normal_(torch.empty(shape)))
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        self.bias = nn.Parameter(torch.empty(shape[0]).uniform_(-bound, bound))
        self.q = nn.Parameter(torch.randn(shape[0]))

    def inverse_t(self, kernel: Tensor) -> Tensor:  # (cout, cin, k1, k2) → (cout,)
        """T⁻¹, with W Wᵀ ⪯ T. A rounding unit keeps an all-zero row finite."""
        t = gram_row_sums(kernel, self.q.abs() + self.epsilon)
        return 1 / (t + torch.finfo(t.dtype).eps)


class SDPBasedLipschitzConvLayer(_SDPBasedLipschitz):
    """Residual convolution x − 2Wᵀ T⁻¹ ReLU(Wx + b) with W from cin to cout channels: `cout` is the inner width.

    Paper: Araujo et al., "A Unified Algebraic Perspective on Lipschitz Neural Networks", ICLR 2023. T is diagonal,
    T_ii = Σ_{j, lag} |G_ij[lag]| q_j/q_i with G = WWᵀ.

    Guarantee: 1-Lipschitz within 1e-5 in float32, for any kernel size, with zero padding kernel_size // 2 both ways.

    Kept from the original: ReLU; q ~ N(0, 1), used through its absolute value; neither stride nor change of channels.
    Corrected here: published code multiplies and divides by q on the same axis, where it cancels and never trains.
    |q| + epsilon is on both sides of the quotient, as the bound requires.

    >>> layer = SDPBasedLipschitzConvLayer(3, 8)
    >>> layer(torch.randn(1, 3, 5, 5)).shape
    torch.Size([1, 3, 5, 5])
    """

    def __init__(self, cin: int, cout: int, kernel_size: int = 3, epsilon: float = 1e-6) -> None:
        require_positive(cin=cin, cout=cout, kernel_size=kernel_size)
        super().__init__((cout, cin, kernel_size, kernel_size), epsilon)
        self.padding = kernel_size // 2

    def forward(self, x: Tensor) -> Tensor:
        """The block applied to a batch of images."""
        inner = F.relu(F.conv2d(x, self.weight, self.bias, padding=self.padding))
        inner = inner * self.inverse_t(self.weight).view(-1, 1, 1)
        return x - 2 * F.conv_transpose2d(inner, self.weight, padding=self.padding)


class SDPBasedLipschitzLinearLayer(_SDPBasedLipschitz):
    """Residual dense layer x − 2Wᵀ T⁻¹ ReLU(Wx + b) with W (cout, cin): `cout` is the inner width.

    Paper: Araujo et al., "A Unified Algebraic Perspective on Lipschitz Neural Networks", ICLR 2023.
    Guarantee: 1-Lipschitz, within 1e-5 in float32. Kept from the original and corrected: as for the convolution.

    >>> SDPBasedLipschitzLinearLayer(4, 16)(torch.randn(2, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, cin: int, cout: int, epsilon: float = 1e-6) -> None:
        require_positive(cin=cin, cout=cout)
        super().__init__((cout, cin), epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """The block applied to a batch of vectors."""
        inner = F.relu(F.linear(x, self.weight, self.bias)) * self.inverse_t(self.weight[..., None, None])
        return x - 2 * inner @ self.weight
