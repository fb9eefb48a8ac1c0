"""Raw parameters to constrained weights, one method per file, and the table of all of them."""

from orthogonium.methods.table import METHODS, Method

__all__ = ["METHODS", "Method"]
