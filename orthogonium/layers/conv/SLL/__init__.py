"""The published path of `orthogonium.layers.conv.sll`, and of the dense block of `orthogonium.layers.sll`."""

from orthogonium.layers.conv.sll import (
    AOCLipschitzResBlock,
    SDPBasedLipschitzConv,
    SDPBasedLipschitzResBlock,
    SLLxAOCLipschitzResBlock,
)
from orthogonium.layers.sll import SDPBasedLipschitzDense

__all__ = ["AOCLipschitzResBlock", "SDPBasedLipschitzConv", "SDPBasedLipschitzDense", "SDPBasedLipschitzResBlock"]
__all__ += ["SLLxAOCLipschitzResBlock"]
