"""Constraints of dense weights: the raw matrix has the shape of the weight."""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.linalg import OrthoParams, check_ortho_params, random_orthogonal, spectral_normalize, unit_norm
from orthogonium.methods.constraint import Constraint


class _DenseConstraint(Constraint):
    def __init__(self, weight_shape: tuple[int, int]) -> None:
        super().__init__()
        self.weight_shape = weight_shape

    def initial(self, device: torch.device | str | None, dtype: torch.dtype) -> Tensor:
        """A random orthogonal matrix."""
        return random_orthogonal(self.weight_shape, device, dtype)


class OrthogonalMatrix(_DenseConstraint):
    """All singular values are 1: `σ(W) = 1` by the method of `ortho_params`."""

    def __init__(self, weight_shape: tuple[int, int], ortho_params: OrthoParams) -> None:
        super().__init__(weight_shape)
        check_ortho_params(ortho_params)
        self.orthogonalize = ortho_params.build(weight_shape)

    def build(self, *raw: Tensor) -> Tensor:
        """Orthonormalize."""
        return self.orthogonalize(raw[0])

    def invert(self, weight: Tensor) -> Tensor:
        """An orthogonal matrix is left as it is by QR, Cholesky, Björck and polar (not by Cayley and exponential)."""
        return weight.clone()


class UnitRows(_DenseConstraint):
    """Each row has Euclidean norm 1, so that each output is 1-Lipschitz by itself."""

    def build(self, *raw: Tensor) -> Tensor:
        """Normalize the rows."""
        return unit_norm(raw[0], dim=-1)

    def invert(self, weight: Tensor) -> Tensor:
        """Unit rows are left as they are."""
        return weight.clone()


class UnitBall(_DenseConstraint):
    """The spectral norm is at most 1, certified (Gram bound)."""

    def __init__(self, weight_shape: tuple[int, int], niter: int) -> None:
        super().__init__(weight_shape)
        self.niter = niter

    def build(self, *raw: Tensor) -> Tensor:
        """Divide by the certified bound."""
        return spectral_normalize(raw[0], self.niter)
