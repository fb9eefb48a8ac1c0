"""The parts of AOC by name, BCOP and RKO, in 1-D and 3-D; those in 2-D have their published place in `aoc.py`."""

from __future__ import annotations

from torch import nn

from orthogonium.layers.conv.aoc import _BlockWeight, _OrthoConv, _OrthoConvTranspose, _ReshapedWeight


class FastBlockConv1d(_BlockWeight, _OrthoConv, nn.Conv1d):
    """BCOP by name: orthogonal 1-D convolution of stride 1."""

    dims = 1


class FastBlockConv3d(_BlockWeight, _OrthoConv, nn.Conv3d):
    """BCOP by name: orthogonal 3-D convolution of stride 1."""

    dims = 3


class FastBlockConvTranspose1d(_BlockWeight, _OrthoConvTranspose, nn.ConvTranspose1d):
    """The adjoint of `FastBlockConv1d`."""

    dims = 1


class FastBlockConvTranspose3d(_BlockWeight, _OrthoConvTranspose, nn.ConvTranspose3d):
    """The adjoint of `FastBlockConv3d`."""

    dims = 3


class RKOConv1d(_ReshapedWeight, _OrthoConv, nn.Conv1d):
    """RKO by name: orthogonal where `kernel_size` ≤ stride (dilation 1), else scaled to be 1-Lipschitz."""

    dims = 1


class RKOConv3d(_ReshapedWeight, _OrthoConv, nn.Conv3d):
    """`RKOConv1d` in 3 dimensions."""

    dims = 3


class RKOConvTranspose1d(_ReshapedWeight, _OrthoConvTranspose, nn.ConvTranspose1d):
    """The adjoint of `RKOConv1d`."""

    dims = 1


class RKOConvTranspose3d(_ReshapedWeight, _OrthoConvTranspose, nn.ConvTranspose3d):
    """The adjoint of `RKOConv3d`."""

    dims = 3
