"""BCOP by name, what adaptive orthogonal convolutions of stride 1 are: method in `methods/bcop/`."""

from __future__ import annotations

from torch import nn

from orthogonium.errors import GeometryError
from orthogonium.kernels import ConvGeometry
from orthogonium.layers.conv.aoc import Adaptive, OrthoConv, OrthoConvTranspose, Part
from orthogonium.linalg import OrthoParams
from orthogonium.methods.aoc import OrthogonalKernel


class _StrideOne(Adaptive, metaclass=Part):
    part = "bcop"

    def kernel_of(self, geometry: ConvGeometry, ortho_params: OrthoParams) -> OrthogonalKernel:
        """BCOP alone: stride 1."""
        if set(geometry.effective_stride) != {1}:
            raise GeometryError(
                f"{type(self).__name__} is for stride 1, got stride {geometry.stride} and dilation {geometry.dilation}. "
                "Use the AdaptiveOrthoConv layers, which stride."
            )
        return super().kernel_of(geometry, ortho_params)


class FastBlockConv1d(_StrideOne, OrthoConv, nn.Conv1d):
    """BCOP by name: orthogonal 1-D convolution of stride 1."""


class FastBlockConv2d(_StrideOne, OrthoConv, nn.Conv2d):
    """BCOP by name: orthogonal 2-D convolution of stride 1."""


class FastBlockConv3d(_StrideOne, OrthoConv, nn.Conv3d):
    """BCOP by name: orthogonal 3-D convolution of stride 1."""


class FastBlockConvTranspose1d(_StrideOne, OrthoConvTranspose, nn.ConvTranspose1d):
    """The adjoint of `FastBlockConv1d`."""


class FastBlockConvTranspose2D(_StrideOne, OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `FastBlockConv2d`."""


class FastBlockConvTranspose3d(_StrideOne, OrthoConvTranspose, nn.ConvTranspose3d):
    """The adjoint of `FastBlockConv3d`."""
