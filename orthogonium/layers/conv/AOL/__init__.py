"""The published path of `orthogonium.layers.conv.aol`."""

from orthogonium.layers.conv.aol import AOLConv2D, AOLConv2d, AOLConvTranspose2D, AOLConvTranspose2d

__all__ = ["AOLConv2D", "AOLConv2d", "AOLConvTranspose2D", "AOLConvTranspose2d"]
