"""RKO by its own name, the strided stage of adaptive orthogonal convolutions: method in `methods/rko.py`."""

from __future__ import annotations

from torch import nn

from orthogonium.layers.conv.aoc import OrthoConv, OrthoConvTranspose, Part
from orthogonium.layers.conv.base import ConstrainedConvNd
from orthogonium.methods.rko import ReshapedKernel


class _Reshaped(ConstrainedConvNd, metaclass=Part):
    part = "rko"
    kernel_of = ReshapedKernel


class RKOConv2d(_Reshaped, OrthoConv, nn.Conv2d):
    """RKO by its own name: orthogonal if `kernel_size` ≤ stride (dilation 1), otherwise scaled to be 1-Lipschitz."""


class RKOConv1d(_Reshaped, OrthoConv, nn.Conv1d):
    """`RKOConv2d` in 1 dimension."""


class RKOConv3d(_Reshaped, OrthoConv, nn.Conv3d):
    """`RKOConv2d` in 3 dimensions."""


class RkoConvTranspose2d(_Reshaped, OrthoConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `RKOConv2d`."""


class RKOConvTranspose1d(_Reshaped, OrthoConvTranspose, nn.ConvTranspose1d):
    """The adjoint of `RKOConv1d`."""


class RKOConvTranspose3d(_Reshaped, OrthoConvTranspose, nn.ConvTranspose3d):
    """The adjoint of `RKOConv3d`."""
