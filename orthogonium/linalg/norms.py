"""Norms of batched matrices, and scaling by them.

Spectral norms are estimated from below (power iteration) and bounded from above (Gram iteration).

Delattre, Barthélemy, Araujo, Allauzen (2023), "Efficient bound of Lipschitz constant for convolutional layers by Gram
iteration".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.errors import ParameterError
from orthogonium.linalg.evaluation import check_matrix, float64_is_cheap, full_precision
from orthogonium.linalg.matrix_map import MatrixMap, ShapedMap


def magnitude(w: Tensor) -> Tensor:  # (..., rows, columns) → (..., 1, 1)
    """The largest absolute entry of each matrix; 1 where all are zero.

    Not denormal: torch divides complex numbers by multiplying with reciprocals, which would overflow. And finite, as
    their parts are: within √2 of the largest.
    """
    largest, info = w.abs().amax((-2, -1), keepdim=True), torch.finfo(w.dtype)
    return torch.where(largest > 0, largest.clamp(info.tiny, info.max), 1.0)


def scale_to_unit(w: Tensor) -> Tensor:
    """Divide by the largest absolute entry (a constant for the gradient), so squares neither overflow nor vanish.

    Only for functions that do not depend on the scale of `w`. Zero stays zero.
    """
    return w / magnitude(w.detach()) if w.numel() else w


def spectral_norm_estimate(w: Tensor, steps: int = 3, eps: float = 1e-12) -> Tensor:  # (..., m, n) → (..., 1, 1)
    """Estimate of the largest singular value from below, `uᵀWv` after `steps` rounds of `v ← Wᵀu`, `u ← Wv`.

    Stateless and deterministic: it starts from the largest row, so no stored vector can happen to be orthogonal to the
    answer. The gradient is that of `uᵀWv` with u, v fixed.
    """
    fixed = w.detach()  # for derivatives in both directions: no_grad leaves forward derivatives on
    largest = fixed.square().sum(-1).argmax(-1)  # (...)
    v = torch.take_along_dim(fixed, largest[..., None, None], dim=-2).mT  # (..., n, 1)
    v = v / v.norm(dim=-2, keepdim=True).clamp_min(eps)
    u = fixed @ v
    for _ in range(steps):
        u = u / u.norm(dim=-2, keepdim=True).clamp_min(eps)
        v = fixed.mT @ u
        v = v / v.norm(dim=-2, keepdim=True).clamp_min(eps)
        u = fixed @ v
    u = u / u.norm(dim=-2, keepdim=True).clamp_min(eps)
    return u.mT @ w @ v


def spectral_norm_bound(w: Tensor, steps: int = 5) -> Tensor:  # (..., m, n) → (..., 1, 1)
    """Upper bound on the largest singular value: certified including rounding on CPUs and in float64.

    With `G₀ = WWᵀ` (smaller side) and `Gᵢ₊₁ = GᵢGᵢᵀ`, `‖W‖ ≤ ‖G_N‖_F^(2^-(N+1))`; each step halves the logarithm of
    the looseness, at most `rank^(2^-(N+2))`: 1.05 for rank 512 after 5 steps. The recursion is rescaled, and the powers
    are kept in a logarithm. A product of r × n and n × r matrices is off by at most `r·n·eps/2` of its norm, errors
    pass through roots, and their sum is below `r·n·eps/2`, by which the result is inflated: next to nothing in float64,
    which CPUs use for float32, too. Elsewhere float32 is inflated by `n·eps/2`, more than errors that partly cancel.
    """
    if float64_is_cheap(w):
        return _upward(spectral_norm_bound(w.double(), steps).to(w.dtype))
    check_matrix(w, "spectral_norm_bound")
    if w.numel() == 0:
        return w.new_zeros((*w.shape[:-2], 1, 1))
    tiny = torch.finfo(w.dtype).tiny
    scale = w.abs().amax((-2, -1), keepdim=True)
    unit = w / torch.where(scale > 0, scale, 1.0)
    gram = unit @ unit.mT if w.shape[-2] <= w.shape[-1] else unit.mT @ unit
    logarithm = torch.zeros_like(scale)  # of the scaling taken out of `gram` so far, as a factor of W
    root = 0.5
    for _ in range(steps):
        norm = gram.square().sum((-2, -1), keepdim=True).clamp_min(tiny).sqrt()
        logarithm = logarithm + root * norm.log()
        gram = gram / norm
        gram = gram @ gram.mT
        root = root / 2
    norm = gram.square().sum((-2, -1), keepdim=True).clamp_min(tiny).sqrt()
    count = math.prod(w.shape[-2:]) if w.dtype == torch.float64 else max(w.shape[-2:])
    inflation = 1 + (count / 2 + 32) * torch.finfo(w.dtype).eps
    return _upward(scale * (logarithm + root * norm.log()).exp() * inflation)


def _upward(bound: Tensor) -> Tensor:
    """A positive number, rounded up: numbers below `tiny` have no relative precision, and lie eps·tiny apart."""
    info = torch.finfo(bound.dtype)
    return bound * (1 + info.eps) + torch.where(bound > 0, info.eps * info.tiny, 0.0)


@full_precision
def spectral_normalize(w: Tensor, steps: int = 5) -> Tensor:  # (..., m, n) → the same shape
    """`W / bound` with the certified `spectral_norm_bound`: the largest singular value is between `1/1.06` and 1.

    Zero stays zero.

    >>> w = spectral_normalize(1e20 * torch.randn(4, 5))
    >>> bool(torch.linalg.matrix_norm(w, 2) <= 1)
    True
    """
    unit = scale_to_unit(w)
    bound = spectral_norm_bound(unit, steps)
    return unit / torch.where(bound > 0, bound, torch.ones_like(bound))


class BatchedPowerIteration(ShapedMap):
    """`W / σ` with σ estimated by `power_it_niter` power iterations: close to, but not certified to be, norm 1."""

    batched = True
    printed = ("power_it_niter", "eps")

    def __init__(self, weight_shape: tuple[int, ...], power_it_niter: int = 3, eps: float = 1e-12) -> None:
        super().__init__(weight_shape)
        if power_it_niter < 0:
            raise ParameterError(f"power_it_niter must be at least 0, got {power_it_niter}.")
        self.power_it_niter, self.eps = power_it_niter, eps

    def forward(self, w: Tensor) -> Tensor:
        """The matrices divided by their estimated norm."""
        return _power_normalize(w, self.power_it_niter, self.eps)


@full_precision
def _power_normalize(w: Tensor, steps: int, eps: float) -> Tensor:
    if w.numel() == 0:
        return w
    w = scale_to_unit(w)
    return w / spectral_norm_estimate(w, steps, eps).clamp_min(eps)


class BatchedGramNormalization(ShapedMap):
    """`W / bound` with the certified Gram bound: σ_max ≤ 1 always, at least `min(W.shape)^(-2^-(niter+2))`."""

    batched = True
    printed = ("niter",)

    def __init__(self, weight_shape: tuple[int, ...], niter: int = 5) -> None:
        super().__init__(weight_shape)
        if niter < 0:
            raise ParameterError(f"niter must be at least 0, got {niter}.")
        self.niter = niter

    def forward(self, w: Tensor) -> Tensor:
        """The matrices divided by the bound on their norm."""
        return spectral_normalize(w, self.niter)


class BatchedIdentity(ShapedMap):
    """No normalization, for orthogonalizers that do not depend on the scale."""

    batched = True

    def forward(self, w: Tensor) -> Tensor:
        """The matrices as they are."""
        return w


class L2Normalize(MatrixMap):
    """`W / ‖W‖₂` along `dim` (the whole tensor for None), computed in `dtype`. Zero vectors stay zero."""

    printed = ("dtype", "dim")

    def __init__(self, dtype: torch.dtype | None = None, dim: int | tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.dtype, self.dim = dtype, dim

    def forward(self, w: Tensor) -> Tensor:
        """Vectors along `dim` of norm 1."""
        x = w if self.dtype is None else w.to(self.dtype)
        return unit_norm(x, self.dim).to(w.dtype)


@full_precision
def unit_norm(w: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Vectors along `dim` scaled to Euclidean norm 1, at any scale; zero vectors stay zero."""
    dims = tuple(range(w.dim())) if dim is None else dim
    if w.numel() == 0:
        return w
    largest = w.detach().abs().amax(dims, keepdim=True)
    unit = w / torch.where(largest > 0, largest, torch.ones_like(largest))
    # Entries are at most 1 and one of them is ±1 unless all are zero, so the clamp only acts on zero vectors.
    return unit / unit.square().sum(dims, keepdim=True).clamp_min(0.5).sqrt()
