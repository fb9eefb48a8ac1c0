"""Orthogonal and 1-Lipschitz layers for PyTorch."""

from orthogonium.class_param import ClassParam

__version__ = "0.1.0"
__all__ = ["ClassParam", "__version__"]
