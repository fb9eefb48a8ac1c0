"""Adaptive orthogonal convolutions in 1-D, 2-D and 3-D, their transposes, and their parts by name.

All of them take the arguments of their torch counterpart, and `ortho_params`. Which construction a geometry gets,
`orthogonium.kernels.select_method` tells; a geometry that no orthogonal convolution has is refused with a
`GeometryError`.
"""

from __future__ import annotations

import torch
from torch import nn

from orthogonium.errors import GeometryError
from orthogonium.kernels.geometry import Size
from orthogonium.layers.conv.base import (
    ConstrainedConv,
    ConstrainedConvNd,
    ConstrainedConvTranspose,
    Device,
    warn_depthwise,
)
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.constraint import constrain
from orthogonium.methods.rko import ReshapedKernel, overlap

# ── what becomes of the weight ──


class _Part(type):
    """Class of a part of AOC by name, whose instances are also the adaptive layers that consist of this part alone.

    0.0.4 returned the part itself. Which one that is depends on the sizes: one tap for each step is RKO, no stride is BCOP.
    """

    part: str
    dims: int

    def __instancecheck__(cls, layer: object) -> bool:
        if super().__instancecheck__(layer) or not isinstance(layer, _AdaptiveWeight):
            return super().__instancecheck__(layer)
        if getattr(cls, "dims", None) != layer.geometry.dims or layer.transposed != issubclass(
            cls, _OrthoConvTranspose
        ):
            return False
        steps = layer.geometry.effective_stride
        return cls.part == (
            "rko" if layer.geometry.kernel_size == steps else "bcop" if set(steps) == {1} else "rko ⊛ bcop"
        )


class _AdaptiveWeight(ConstrainedConvNd):
    def constrain_weight(self, ortho_params: OrthoParams) -> None:
        """AOC: the construction that the geometry asks for."""
        kernel = OrthogonalKernel(self.geometry, ortho_params)
        if not kernel.trainable:
            warn_depthwise(type(self).__name__, self.geometry)
        constrain(self, kernel, kernel.initial(self.weight.device, self.weight.dtype))


class _BlockWeight(_AdaptiveWeight, metaclass=_Part):
    part = "bcop"

    def constrain_weight(self, ortho_params: OrthoParams) -> None:
        """BCOP alone: stride 1."""
        if set(self.geometry.effective_stride) != {1}:
            raise GeometryError(
                f"{type(self).__name__} is for stride 1, got stride {self.geometry.stride} and dilation "
                f"{self.geometry.dilation}. Use the AdaptiveOrthoConv layers, which stride."
            )
        super().constrain_weight(ortho_params)


class _ProductWeight(_AdaptiveWeight, metaclass=_Part):
    part = "rko ⊛ bcop"


class _ReshapedWeight(ConstrainedConvNd, metaclass=_Part):
    part = "rko"

    def constrain_weight(self, ortho_params: OrthoParams) -> None:
        """RKO alone: orthogonal where windows do not overlap, 1-Lipschitz elsewhere."""
        kernel = ReshapedKernel(self.geometry, ortho_params)
        constrain(self, kernel, kernel.initial(self.weight.device, self.weight.dtype))

    @property
    def exact(self) -> bool:
        """Whether the windows do not overlap, and the kernel is as large as the stride where columns are orthonormal."""
        return overlap(self.geometry) == 1 and (
            self.geometry.group_out <= self.geometry.group_in * torch.Size(self.geometry.kernel_size).numel()
            or self.geometry.effective_stride == self.geometry.stride
        )


# ── the two signatures ──


class _OrthoConv(ConstrainedConv):
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
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.constrain_weight(ortho_params)

    def constrain_weight(self, ortho_params: OrthoParams) -> None:
        """Parametrize `weight`."""
        raise NotImplementedError


class _OrthoConvTranspose(ConstrainedConvTranspose):
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
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
            padding_mode,
            device,
            dtype,
        )
        self.constrain_weight(ortho_params)

    def constrain_weight(self, ortho_params: OrthoParams) -> None:
        """Parametrize `weight`."""
        raise NotImplementedError


# ── the layers ──


class AdaptiveOrthoConv2d(_AdaptiveWeight, _OrthoConv, nn.Conv2d):
    """Orthogonal 2-D convolution of any geometry that has one: kernel (also even or rectangular), stride, dilation, groups.

    Guarantee: under circular padding all singular values are 1 (1e-5 in float32) if the stride divides the image size,
    and at most 1 otherwise; under zero padding at most 1.

    Args:
        in_channels: of the images.
        out_channels: of the result.
        kernel_size: an integer or one for each axis; so are `stride`, `padding` and `dilation`.
        stride: may be larger than the kernel where `out ≤ in·∏kernel` (per group).
        padding: "same" (`⌈size / stride⌉` outputs, any stride), "valid", or integers as in torch.
        dilation: distance of the taps.
        groups: number of groups of channels that do not mix.
        bias: whether to add a learned bias.
        padding_mode: "circular" or "zeros".
        ortho_params: how matrices are made orthogonal.
        device: of the parameters.
        dtype: of the parameters.

    >>> layer = AdaptiveOrthoConv2d(3, 16, kernel_size=3, stride=2)
    >>> x = torch.randn(1, 3, 8, 8)
    >>> layer(x).shape
    torch.Size([1, 16, 4, 4])
    >>> bool((layer(x) - layer(0 * x)).norm() <= x.norm() * 1.00001)
    True
    >>> str(layer.guarantee)
    'all singular values 1, for image sizes divisible by the stride; 1-Lipschitz for others'
    """

    dims = 2


class AdaptiveOrthoConv1d(_AdaptiveWeight, _OrthoConv, nn.Conv1d):
    """`AdaptiveOrthoConv2d` in 1 dimension."""

    dims = 1


class AdaptiveOrthoConv3d(_AdaptiveWeight, _OrthoConv, nn.Conv3d):
    """`AdaptiveOrthoConv2d` in 3 dimensions."""

    dims = 3


class AdaptiveOrthoConvTranspose2d(_AdaptiveWeight, _OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `AdaptiveOrthoConv2d`, with the arguments of `nn.ConvTranspose2d`.

    Guarantee: under circular padding ("same", or integers that keep every window) all singular values are 1 if the
    stride divides the output size; at most 1 otherwise, and under zero padding.

    >>> layer = AdaptiveOrthoConvTranspose2d(16, 3, kernel_size=3, stride=2, padding="same", padding_mode="circular")
    >>> layer(torch.randn(1, 16, 4, 4)).shape
    torch.Size([1, 3, 8, 8])
    """

    dims = 2


class AdaptiveOrthoConvTranspose1d(_AdaptiveWeight, _OrthoConvTranspose, nn.ConvTranspose1d):
    """`AdaptiveOrthoConvTranspose2d` in 1 dimension."""

    dims = 1


class AdaptiveOrthoConvTranspose3d(_AdaptiveWeight, _OrthoConvTranspose, nn.ConvTranspose3d):
    """`AdaptiveOrthoConvTranspose2d` in 3 dimensions."""

    dims = 3


class FastBlockConv2d(_BlockWeight, _OrthoConv, nn.Conv2d):
    """BCOP by name: orthogonal 2-D convolution of stride 1."""

    dims = 2


class FastBlockConvTranspose2D(_BlockWeight, _OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `FastBlockConv2d`."""

    dims = 2


class RKOConv2d(_ReshapedWeight, _OrthoConv, nn.Conv2d):
    """RKO by name: orthogonal where `kernel_size` ≤ stride (dilation 1), else scaled to be 1-Lipschitz."""

    dims = 2


class RkoConvTranspose2d(_ReshapedWeight, _OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `RKOConv2d`."""

    dims = 2


class BcopRkoConv2d(_ProductWeight, _OrthoConv, nn.Conv2d):
    """The product of RKO and BCOP by name: what `AdaptiveOrthoConv2d` builds."""

    dims = 2


class BcopRkoConvTranspose2d(_ProductWeight, _OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `BcopRkoConv2d`."""

    dims = 2
