"""Kernel algebra in one, two and three dimensions, and which convolutions can be orthogonal."""
