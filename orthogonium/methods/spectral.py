"""Matrices divided by a norm: by a certified bound of the spectral norm, or row by row by the Euclidean one.

Delattre, Barthélemy, Araujo, Allauzen (2023), "Efficient bound of Lipschitz constant for convolutional layers by Gram
iteration".
"""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.linalg import random_orthogonal, spectral_normalize, unit_norm
from orthogonium.methods.kernel import Device, Kernel


class Matrix(Kernel):
    """Base: the raw matrix has the shape of the weight, and any will do."""

    projects = True
    weight_shape: tuple[int, ...]

    def __init__(self, weight_shape: tuple[int, int]) -> None:
        super().__init__()
        self.weight_shape = weight_shape

    def initial(self, device: Device, dtype: torch.dtype) -> Tensor:
        """A random orthogonal matrix."""
        return random_orthogonal(self.weight_shape, device, dtype)

    def invert(self, weight: Tensor) -> Tensor:
        """The weight itself."""
        return weight.clone()

    def nearest(self, weight: Tensor) -> tuple[Tensor, ...] | None:
        """The weight itself, which the norm divides."""
        return (weight.clone(),)


class UnitRows(Matrix):
    """Each row has Euclidean norm 1, so that each output is 1-Lipschitz by itself."""

    def build(self, *raw: Tensor) -> Tensor:
        """Normalize the rows."""
        return unit_norm(raw[0], dim=-1)


class UnitBall(Matrix):
    """The spectral norm is at most 1, certified (Gram bound)."""

    def __init__(self, weight_shape: tuple[int, int], niter: int) -> None:
        super().__init__(weight_shape)
        self.niter = niter

    def build(self, *raw: Tensor) -> Tensor:
        """Divide by the certified bound."""
        return spectral_normalize(raw[0], self.niter)
