"""Adaptive orthogonal convolutions in 1-D, 2-D and 3-D, and their transposes.

All of them take the arguments of their torch counterpart, and `ortho_params`. `orthogonium.kernels.select_method` tells
which construction a geometry gets; a geometry without an orthogonal convolution raises a `GeometryError`.
"""

from __future__ import annotations

import torch
from torch import nn

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size
from orthogonium.layers.conv.base import ConstrainedConv, ConstrainedConvNd, ConstrainedConvTranspose
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.kernel import Device
from orthogonium.methods.thin import ThinKernel, is_thin


class Adaptive(ConstrainedConvNd):
    """Mixin for layers with an AOC kernel."""

    def kernel_of(self, geometry: ConvGeometry, ortho_params: OrthoParams) -> OrthogonalKernel:
        """The construction that the geometry needs."""
        return (ThinKernel if is_thin(geometry) else OrthogonalKernel)(geometry, ortho_params)


class Part(type):
    """Class of a named part of AOC, whose instances include the adaptive layers that consist of this part alone.

    0.0.4 returned the part itself. Which one that is depends on the sizes: RKO if the kernel is as large as the stride,
    BCOP without a stride.
    """

    part: str
    dims: int

    def __instancecheck__(cls, layer: object) -> bool:
        if super().__instancecheck__(layer):
            return True
        if not isinstance(layer, Adaptive) or layer.dims != cls.dims:
            return False
        if layer.transposed != issubclass(cls, OrthoConvTranspose):
            return False
        steps = layer.geometry.effective_stride
        alone = "bcop" if set(steps) == {1} else "rko ⊛ bcop"
        return cls.part == ("rko" if layer.geometry.kernel_size == steps else alone)


class _Product(Adaptive, metaclass=Part):
    part = "rko ⊛ bcop"


class OrthoConv(ConstrainedConv):
    """Convolutions with `ortho_params`; mixed with a class that makes the kernel and with a torch convolution."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = "same",
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "circular",
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        geometry = ConvGeometry.of(self.dims, in_channels, out_channels, kernel_size, stride, dilation, groups)
        kernel = self.kernel_of(geometry, ortho_params)
        super().__init__(kernel, padding, padding_mode, bias, device, dtype, lipschitz)


class OrthoConvTranspose(ConstrainedConvTranspose):
    """Transposed convolutions with `ortho_params`."""

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
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        geometry = ConvGeometry.of(self.dims, out_channels, in_channels, kernel_size, stride, dilation, groups)
        kernel = self.kernel_of(geometry, ortho_params)
        super().__init__(kernel, padding, output_padding, padding_mode, bias, device, dtype, lipschitz)


class AdaptiveOrthoConv2d(Adaptive, OrthoConv, nn.Conv2d):
    """Orthogonal 2-D convolution for every geometry that has one: any kernel (even or odd), stride, dilation, groups.

    Guarantee: under circular padding all singular values are 1 (1e-5 in float32) if the stride divides the image size,
    and at most 1 otherwise; under zero padding at most 1.

    Args:
        in_channels: channels of the images.
        out_channels: channels of the result.
        kernel_size: an integer, or one for each axis, as for `stride`, `padding` and `dilation`.
        stride: may be larger than the kernel if `out ≤ in·∏kernel` (per group).
        padding: "same" (`⌈size / stride⌉` outputs, any stride), "valid", or integers as in torch.
        dilation: spacing of the taps.
        groups: number of groups of channels that do not mix.
        bias: whether to add a learned bias.
        padding_mode: "circular" or "zeros".
        ortho_params: how matrices are made orthogonal.
        lipschitz: Lipschitz constant of the layer, any positive number; multiplies its weight.

    >>> layer = AdaptiveOrthoConv2d(3, 16, kernel_size=3, stride=2)
    >>> x = torch.randn(1, 3, 8, 8)
    >>> layer(x).shape
    torch.Size([1, 16, 4, 4])
    >>> bool((layer(x) - layer(0 * x)).norm() <= x.norm() * 1.00001)
    True
    >>> str(layer.guarantee)
    'all singular values 1, for image sizes divisible by the stride; 1-Lipschitz for others'
    """


class AdaptiveOrthoConv1d(Adaptive, OrthoConv, nn.Conv1d):
    """`AdaptiveOrthoConv2d` in 1 dimension."""


class AdaptiveOrthoConv3d(Adaptive, OrthoConv, nn.Conv3d):
    """`AdaptiveOrthoConv2d` in 3 dimensions."""


class AdaptiveOrthoConvTranspose2d(Adaptive, OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `AdaptiveOrthoConv2d`, with the arguments of `nn.ConvTranspose2d`.

    Guarantee: under circular padding ("same", or integers that keep every window) all singular values are 1 if the
    stride divides the output size; at most 1 otherwise, and under zero padding.

    >>> layer = AdaptiveOrthoConvTranspose2d(16, 3, kernel_size=3, stride=2, padding="same", padding_mode="circular")
    >>> layer(torch.randn(1, 16, 4, 4)).shape
    torch.Size([1, 3, 8, 8])
    """


class AdaptiveOrthoConvTranspose1d(Adaptive, OrthoConvTranspose, nn.ConvTranspose1d):
    """`AdaptiveOrthoConvTranspose2d` in 1 dimension."""


class AdaptiveOrthoConvTranspose3d(Adaptive, OrthoConvTranspose, nn.ConvTranspose3d):
    """`AdaptiveOrthoConvTranspose2d` in 3 dimensions."""


class BcopRkoConv2d(_Product, OrthoConv, nn.Conv2d):
    """The product of RKO and BCOP by its own name: the same layer as `AdaptiveOrthoConv2d`."""


class BcopRkoConvTranspose2d(_Product, OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `BcopRkoConv2d`."""
