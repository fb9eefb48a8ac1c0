"""BCOP by name, what adaptive orthogonal convolutions of stride 1 are: method in `methods/bcop/`.

BCOP itself does not stride. With a stride these layers are the adaptive ones, its product with RKO.
"""

from __future__ import annotations

from torch import nn

from orthogonium.layers.conv.aoc import Adaptive, OrthoConv, OrthoConvTranspose, Part


class _Block(Adaptive, metaclass=Part):
    part = "bcop"


class FastBlockConv1d(_Block, OrthoConv, nn.Conv1d):
    """BCOP by name: orthogonal 1-D convolution, what `AdaptiveOrthoConv1d` builds."""


class FastBlockConv2d(_Block, OrthoConv, nn.Conv2d):
    """BCOP by name: orthogonal 2-D convolution, what `AdaptiveOrthoConv2d` builds."""


class FastBlockConv3d(_Block, OrthoConv, nn.Conv3d):
    """BCOP by name: orthogonal 3-D convolution, what `AdaptiveOrthoConv3d` builds."""


class FastBlockConvTranspose1d(_Block, OrthoConvTranspose, nn.ConvTranspose1d):
    """The adjoint of `FastBlockConv1d`."""


class FastBlockConvTranspose2D(_Block, OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `FastBlockConv2d`."""


class FastBlockConvTranspose3d(_Block, OrthoConvTranspose, nn.ConvTranspose3d):
    """The adjoint of `FastBlockConv3d`."""
