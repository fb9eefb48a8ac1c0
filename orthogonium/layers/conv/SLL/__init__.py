"""The published path of `orthogonium.layers.conv.sll`."""

from orthogonium.layers.conv.sll import (
    AOCLipschitzResBlock,
    SDPBasedLipschitzConv,
    SDPBasedLipschitzDense,
    SDPBasedLipschitzResBlock,
    SLLxAOCLipschitzResBlock,
)

__all__ = [
    "AOCLipschitzResBlock",
    "SDPBasedLipschitzConv",
    "SDPBasedLipschitzDense",
    "SDPBasedLipschitzResBlock",
    "SLLxAOCLipschitzResBlock",
]
