"""From torch.nn to 1-Lipschitz: `convert` rebuilds a network from constrained layers and reports what it did."""

from orthogonium.conversion.convert import convert
from orthogonium.conversion.result import Change, Conversion, Refusal

__all__ = ["Change", "Conversion", "Refusal", "convert"]
