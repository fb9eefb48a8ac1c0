"""BCOP by its own name, which is what adaptive orthogonal convolutions of stride 1 are: method in `methods/bcop/`.

BCOP itself does not stride. With a stride, these layers are the adaptive ones: its product with RKO.
"""

from __future__ import annotations

from torch import nn

from orthogonium.layers.conv.aoc import Adaptive, OrthoConv, OrthoConvTranspose, Part


class _BCOP(Adaptive, metaclass=Part):
    part = "bcop"


class FastBlockConv1d(_BCOP, OrthoConv, nn.Conv1d):
    """BCOP by its own name: orthogonal 1-D convolution, the same layer as `AdaptiveOrthoConv1d`."""


class FastBlockConv2d(_BCOP, OrthoConv, nn.Conv2d):
    """BCOP by its own name: orthogonal 2-D convolution, the same layer as `AdaptiveOrthoConv2d`."""


class FastBlockConv3d(_BCOP, OrthoConv, nn.Conv3d):
    """BCOP by its own name: orthogonal 3-D convolution, the same layer as `AdaptiveOrthoConv3d`."""


class FastBlockConvTranspose1d(_BCOP, OrthoConvTranspose, nn.ConvTranspose1d):
    """The adjoint of `FastBlockConv1d`."""


class FastBlockConvTranspose2D(_BCOP, OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `FastBlockConv2d`."""


class FastBlockConvTranspose3d(_BCOP, OrthoConvTranspose, nn.ConvTranspose3d):
    """The adjoint of `FastBlockConv3d`."""
