"""Raw parameters to constrained weights, one method per file, and the table of all of them."""

from orthogonium.methods.registry import Method
from orthogonium.methods.table import METHODS, register_method

__all__ = ["METHODS", "Method", "register_method"]
