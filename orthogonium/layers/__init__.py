"""Constrained layers and everything else a 1-Lipschitz network is made of."""

from orthogonium.layers.constrained import Guarantee
from orthogonium.layers.linear import OrthoLinear, SpectralLinear, UnitNormLinear

__all__ = ["Guarantee", "OrthoLinear", "SpectralLinear", "UnitNormLinear"]
