"""Convolutions divided by a certified bound on their spectral norm, in 1-D, 2-D and 3-D, and their transposes."""

from __future__ import annotations

import torch
from torch import nn

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size
from orthogonium.layers.conv.base import ConstrainedConv, ConstrainedConvNd, ConstrainedConvTranspose
from orthogonium.layers.conv.padding import ahead_of_same
from orthogonium.methods.kernel import Device
from orthogonium.methods.spectral import SpectralKernel


class _Normalized(ConstrainedConvNd):
    def kernel_of(self, geometry: ConvGeometry, padding: Size | str, niter: int, residual: bool) -> SpectralKernel:
        """The normalized kernel. Its identity tap stays aligned only if the padding keeps the image size."""
        kernel = SpectralKernel(geometry, niter, residual)
        if residual:
            ahead_of_same(geometry, padding, f"{type(self).__name__} with residual=True")
        return kernel


class _SpectralConv(_Normalized, ConstrainedConv):
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
        niter: int = 9,
        residual: bool = False,
        lipschitz: float = 1.0,
    ) -> None:
        geometry = ConvGeometry.of(self.dims, in_channels, out_channels, kernel_size, stride, dilation, groups)
        kernel = self.kernel_of(geometry, padding, niter, residual)
        super().__init__(kernel, padding, padding_mode, bias, device, dtype, lipschitz)


class _SpectralConvTranspose(_Normalized, ConstrainedConvTranspose):
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
        niter: int = 9,
        residual: bool = False,
        lipschitz: float = 1.0,
    ) -> None:
        geometry = ConvGeometry.of(self.dims, out_channels, in_channels, kernel_size, stride, dilation, groups)
        kernel = self.kernel_of(geometry, padding, niter, residual)
        super().__init__(kernel, padding, output_padding, padding_mode, bias, device, dtype, lipschitz)


class SpectralConv2d(_SpectralConv, nn.Conv2d):
    """2-D convolution whose kernel is divided by a certified bound on its norm, with the arguments of `nn.Conv2d`.

    The bound holds for every image size. It is exact up to a factor `1.0080` for each axis along which the kernel has
    several taps (a grid of frequencies) and `c^(2^-(niter+2))` for c channels (Gram iteration): σ_max ≥ 0.98 for 3×3
    kernels of 64 channels. It is differentiable, has no state, and is computed for each group separately.

    Guarantee: σ_max ≤ 1 for every image size, zero or circular padding, any stride, dilation and groups.

    The arguments are those of `nn.Conv2d`; padding may be "same" with any stride, and its mode "zeros" or "circular".

    Args:
        niter: number of Gram steps at the frequency with the largest norm; with fewer, the bound is looser.
        residual: normalize `I + K` instead of K, which gives a linear residual layer (LiResNet).
        lipschitz: Lipschitz constant of the layer, any positive number; multiplies its weight.

    >>> layer = SpectralConv2d(3, 8, kernel_size=3, padding=1, bias=False)
    >>> x = torch.randn(1, 3, 8, 8)
    >>> bool(layer(x).norm() <= x.norm())
    True
    """


class SpectralConv1d(_SpectralConv, nn.Conv1d):
    """`SpectralConv2d` in 1 dimension."""


class SpectralConv3d(_SpectralConv, nn.Conv3d):
    """`SpectralConv2d` in 3 dimensions."""


class SpectralConvTranspose2d(_SpectralConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `SpectralConv2d`, with the arguments of `nn.ConvTranspose2d`, `niter`, `residual` and `lipschitz`.

    Guarantee: σ_max ≤ 1 for every image size, zero or circular padding.

    >>> layer = SpectralConvTranspose2d(8, 3, kernel_size=4, stride=2, padding=1)
    >>> layer(torch.randn(1, 8, 4, 4)).shape
    torch.Size([1, 3, 8, 8])
    """


class SpectralConvTranspose1d(_SpectralConvTranspose, nn.ConvTranspose1d):
    """`SpectralConvTranspose2d` in 1 dimension."""


class SpectralConvTranspose3d(_SpectralConvTranspose, nn.ConvTranspose3d):
    """`SpectralConvTranspose2d` in 3 dimensions."""
