"""The published path of `orthogonium.layers.conv.soc`."""

from orthogonium.layers.conv.soc import AdaptiveSOCConv2d, AdaptiveSOCConvTranspose2d

__all__ = ["AdaptiveSOCConv2d", "AdaptiveSOCConvTranspose2d"]
