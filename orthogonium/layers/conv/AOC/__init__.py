"""The published path of `orthogonium.layers.conv.aoc`."""

from orthogonium.layers.conv.aoc import (
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConvTranspose2d,
    BcopRkoConv2d,
    BcopRkoConvTranspose2d,
    FastBlockConv2d,
    FastBlockConvTranspose2D,
    RKOConv2d,
    RkoConvTranspose2d,
)

__all__ = [
    "AdaptiveOrthoConv2d",
    "AdaptiveOrthoConvTranspose2d",
    "BcopRkoConv2d",
    "BcopRkoConvTranspose2d",
    "FastBlockConv2d",
    "FastBlockConvTranspose2D",
    "RKOConv2d",
    "RkoConvTranspose2d",
]
