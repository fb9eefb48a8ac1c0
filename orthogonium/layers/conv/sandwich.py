"""Sandwich convolutions on explicit orthogonal kernels, in 1-D, 2-D and 3-D, with stride and change of channels."""

from __future__ import annotations

from dataclasses import replace

import torch

from orthogonium.errors import GeometryError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size
from orthogonium.layers.conv.block import ConvBlock
from orthogonium.layers.conv.padding import Border, ahead_of_same
from orthogonium.layers.slopes import Activation, is_homogeneous
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams
from orthogonium.methods.kernel import Device
from orthogonium.methods.sandwich import SandwichKernels


class SandwichConv2d(ConvBlock):
    """1-Lipschitz convolution, activation and convolution: `√2 Aᵀ⋆Ψσ(√2 Ψ⁻¹B⋆x + b)`, `AAᵀ + BBᵀ = I`, `Ψ = diag(e^d)`.

    Wang, Manchester (2023), "Direct parameterization of Lipschitz-bounded deep networks", on AOC kernels: the cost of
    building them does not depend on the image size. No activation is needed after it.

    Guarantee: 1-Lipschitz (1e-5 in float32) for every image size, under both padding modes.

    Arguments not listed here are those of `SDPBasedLipschitzResBlock`.

    Args:
        in_channels: channels of the images.
        out_channels: channels of the result, and of the inner image.
        kernel_size: of B, an integer or one for each axis; A has `⌊kernel_size / stride⌋` taps, at least 1.
        stride: of B; the result has `⌈size / stride⌉` pixels.
        dilation: spacing of the taps of A and B; for stride 1 only.
        bias: whether the inner units have a bias. Without one, Ψ commutes with ReLU, and is then left out.
        ortho_params: how matrices are made orthogonal.

    >>> layer = SandwichConv2d(3, 8, kernel_size=3, stride=2)
    >>> x, y = torch.randn(2, 1, 3, 9, 8)
    >>> layer(x).shape
    torch.Size([1, 8, 5, 4])
    >>> bool((layer(x) - layer(y)).norm() <= (x - y).norm())
    True
    """

    residual = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "circular",
        activation: Activation = "relu",
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
        padding: Size | str = "same",
    ) -> None:
        super().__init__(activation)
        geometry = ConvGeometry.of(self.dims, in_channels, out_channels, kernel_size, stride, dilation, groups)
        if set(geometry.stride) != {1} and set(geometry.dilation) != {1}:
            raise GeometryError(
                f"{type(self).__name__} has either stride or dilation, got stride {geometry.stride} and dilation "
                f"{geometry.dilation}: A and B meet on the coarse grid, on which a dilated kernel has no regular taps. "
                "Set one of them to 1."
            )
        ahead = ahead_of_same(geometry, padding, type(self).__name__)
        kernels = SandwichKernels(geometry, ortho_params, scaled=bias or not is_homogeneous(self.activation))
        inner = Border.of(geometry, "same", padding_mode).moved(ahead)
        on_coarse_grid = replace(geometry, kernel_size=kernels.coarse_size, stride=(1,) * self.dims)
        outer = Border.of(on_coarse_grid, "same", padding_mode).adjoint()
        self.set_geometry(geometry, (inner, outer))
        self.constrain_weight(kernels, bias, device, dtype, lipschitz)


class SandwichConv1d(SandwichConv2d, dims=1):
    """`SandwichConv2d` in 1 dimension."""


class SandwichConv3d(SandwichConv2d, dims=3):
    """`SandwichConv2d` in 3 dimensions."""
