"""Kernel algebra in one, two and three dimensions, and which convolutions can be orthogonal."""

from orthogonium.kernels.algebra import adjoint, block_conv, dilate, identity
from orthogonium.kernels.geometry import Construction, ConvGeometry, select_method

__all__ = ["Construction", "ConvGeometry", "adjoint", "block_conv", "dilate", "identity", "select_method"]
