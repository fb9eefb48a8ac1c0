"""Methods as first published, for comparison; independent of the rest of the library, except the Cayley transform.

Each file covers one paper, with its mathematics as functions against which to test other implementations. Every class
states what it guarantees and which defects of the original it keeps.
"""

from orthogonium.legacy.almost_orthogonal_conv import AOLConv2d, AOLLinear
from orthogonium.legacy.block_ortho_conv import BCOP
from orthogonium.legacy.cayley_ortho_conv import Cayley, CayleyLinear
from orthogonium.legacy.convex_potential import ConvexPotentialLayerConv, ConvexPotentialLayerLinear
from orthogonium.legacy.direct_parameterization import SandwichConv, SandwichFc
from orthogonium.legacy.reshaped_kernel_conv import RKO
from orthogonium.legacy.sdp_lipschitz import SDPBasedLipschitzConvLayer, SDPBasedLipschitzLinearLayer
from orthogonium.legacy.skew_ortho_conv import SOC

__all__ = [
    "AOLConv2d",
    "AOLLinear",
    "BCOP",
    "Cayley",
    "CayleyLinear",
    "ConvexPotentialLayerConv",
    "ConvexPotentialLayerLinear",
    "RKO",
    "SDPBasedLipschitzConvLayer",
    "SDPBasedLipschitzLinearLayer",
    "SOC",
    "SandwichConv",
    "SandwichFc",
]
