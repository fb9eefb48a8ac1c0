"""Blocks with an activation inside, for the same contract suite: their `weight` packs several kernels."""

from torch import nn

from orthogonium.layers.conv import cpl, sll
from orthogonium.layers.conv.sandwich import SandwichConv2d
from orthogonium.layers.cpl import CPLLinear
from orthogonium.layers.sandwich import SandwichLinear
from orthogonium.layers.sll import SDPBasedLipschitzDense
from tests.contracts.table import Case, _images, _vectors


def _block(cls, **arguments):
    """A line of the table; no torch module is the counterpart of a block."""
    return Case(cls, arguments, nn.Module, _images if hasattr(cls, "dims") else _vectors)


BLOCKS = {
    "SLL": _block(sll.SDPBasedLipschitzResBlock, cin=4, inner_dim_factor=2),
    "SLL-depthwise": _block(
        sll.SDPBasedLipschitzResBlock1d, cin=4, inner_dim_factor=1, groups=4, bias=False, padding_mode="circular"
    ),
    "SLL-dense": _block(SDPBasedLipschitzDense, in_features=6, out_features=4, inner_dim=9, activation="tanh"),
    "SLL-AOC": _block(sll.SLLxAOCLipschitzResBlock, cin=4, cout=6, inner_dim_factor=2, groups=2),
    "AOC-residual": _block(sll.AOCLipschitzResBlock, in_channels=4, inner_dim_factor=2, kernel_size=2),
    "Sandwich": _block(SandwichConv2d, in_channels=4, out_channels=6, kernel_size=3, stride=2, padding_mode="zeros"),
    "SandwichLinear": _block(SandwichLinear, in_features=6, out_features=4),
    "CPL": _block(
        cpl.CPLConv1d, channels=4, kernel_size=2, groups=2, niter=2, padding_mode="circular", activation="softplus"
    ),
    "CPLLinear": _block(CPLLinear, features=6, inner_features=9),
}
