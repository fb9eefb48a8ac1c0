"""The published path of adaptive orthogonal convolutions and their parts."""

from orthogonium.layers.conv.aoc import (
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConvTranspose2d,
    BcopRkoConv2d,
    BcopRkoConvTranspose2d,
)
from orthogonium.layers.conv.bcop import FastBlockConv2d, FastBlockConvTranspose2D
from orthogonium.layers.conv.rko import RKOConv2d, RkoConvTranspose2d

__all__ = ["AdaptiveOrthoConv2d", "AdaptiveOrthoConvTranspose2d", "BcopRkoConv2d", "BcopRkoConvTranspose2d"]
__all__ += ["FastBlockConv2d", "FastBlockConvTranspose2D", "RKOConv2d", "RkoConvTranspose2d"]
