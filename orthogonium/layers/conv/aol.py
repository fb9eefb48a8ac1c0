"""Almost-orthogonal convolutions (AOL) in 1-D, 2-D and 3-D, and their transposes; method in `methods/aol.py`."""

from __future__ import annotations

import torch
from torch import nn

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size
from orthogonium.layers.conv.base import ConstrainedConv, ConstrainedConvTranspose
from orthogonium.methods.aol import AlmostOrthogonalKernel
from orthogonium.methods.kernel import Device


class _AOLConv(ConstrainedConv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Device = None,
        dtype: torch.dtype | None = None,
        niter: int = 1,
        lipschitz: float = 1.0,
    ) -> None:
        geometry = ConvGeometry.of(self.dims, in_channels, out_channels, kernel_size, stride, dilation, groups)
        kernel = AlmostOrthogonalKernel(geometry, niter)
        super().__init__(kernel, padding, padding_mode, bias, device, dtype, lipschitz)


class _AOLConvTranspose(ConstrainedConvTranspose):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Device = None,
        dtype: torch.dtype | None = None,
        niter: int = 1,
        lipschitz: float = 1.0,
    ) -> None:
        geometry = ConvGeometry.of(self.dims, out_channels, in_channels, kernel_size, stride, dilation, groups)
        kernel = AlmostOrthogonalKernel(geometry, niter)
        super().__init__(kernel, padding, output_padding, padding_mode, bias, device, dtype, lipschitz)


class AOLConv2d(_AOLConv, nn.Conv2d):
    """2-D convolution whose channels are rescaled to make it 1-Lipschitz, with the arguments of `nn.Conv2d`.

    With the autocorrelation G of the kernel, output channel i is divided by the root of
    `t_i = Σ_{j, lag} |G_ij[lag]| e^(q_j − q_i)`, or input channels likewise if there are fewer of them; q is learned.
    Only lags that the stride can reach count. More steps (`niter`) tighten the bound: the norm of a random 3×3 kernel
    becomes about 0.63, 0.81, 0.92, 0.97 for 1 to 4 steps, and never decreases with more steps.

    Guarantee: σ_max ≤ 1 for every image size, zero or circular padding, any stride, dilation and groups.

    The arguments are those of `nn.Conv2d`; padding may be "same" with any stride, and its mode "zeros" or "circular".

    Args:
        niter: number of steps of the bound; each doubles the size of the autocorrelation.
        lipschitz: Lipschitz constant of the layer, any positive number; multiplies its weight.

    >>> layer = AOLConv2d(3, 8, kernel_size=3, padding=1, bias=False)
    >>> x = torch.randn(1, 3, 8, 8)
    >>> bool(layer(x).norm() <= x.norm())
    True
    """


class AOLConv1d(_AOLConv, nn.Conv1d):
    """`AOLConv2d` in 1 dimension."""


class AOLConv3d(_AOLConv, nn.Conv3d):
    """`AOLConv2d` in 3 dimensions."""


class AOLConvTranspose2d(_AOLConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `AOLConv2d`, with the arguments of `nn.ConvTranspose2d` and `niter`.

    Guarantee: σ_max ≤ 1 for every image size, zero or circular padding.

    >>> layer = AOLConvTranspose2d(8, 3, kernel_size=4, stride=2, padding=1)
    >>> layer(torch.randn(1, 8, 4, 4)).shape
    torch.Size([1, 3, 8, 8])
    """


class AOLConvTranspose1d(_AOLConvTranspose, nn.ConvTranspose1d):
    """`AOLConvTranspose2d` in 1 dimension."""


class AOLConvTranspose3d(_AOLConvTranspose, nn.ConvTranspose3d):
    """`AOLConvTranspose2d` in 3 dimensions."""


# the published spelling
AOLConv2D = AOLConv2d
AOLConvTranspose2D = AOLConvTranspose2d
