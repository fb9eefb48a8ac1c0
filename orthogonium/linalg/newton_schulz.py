"""Newton–Schulz steps (odd polynomials of the singular values) and the Björck–Bowie iteration.

Björck, Bowie (1971), "An iterative algorithm for computing the best estimate of an orthogonal matrix".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.errors import ParameterError
from orthogonium.linalg.deficiency import warn_if_deficient
from orthogonium.linalg.evaluation import of_matrices
from orthogonium.linalg.matrix_map import ShapedMap
from orthogonium.linalg.multiply import multiply


def _gram(w: Tensor) -> Tensor:
    """The Gram matrix of the smaller side."""
    return multiply(w, w.mH) if w.shape[-2] <= w.shape[-1] else multiply(w.mH, w)


def _apply(p: Tensor, w: Tensor) -> Tensor:
    """A function of the Gram matrix, applied on the side it came from."""
    return multiply(p, w) if w.shape[-2] <= w.shape[-1] else multiply(w, p)


def cubic_step(w: Tensor, beta: float = 0.5) -> Tensor:
    """`(1 + β) W − β W WᵀW`. For β = ½ an error e becomes 1.5 e², and σ ≤ 2 before the step gives σ ≤ 1 after it."""
    return (1 + beta) * w - beta * _apply(_gram(w), w)


def quintic_step(w: Tensor, a: float, b: float, c: float) -> Tensor:
    """`aW + b WWᵀW + c (WWᵀ)²W`."""
    gram = _gram(w)
    return a * w + _apply(b * gram + c * multiply(gram, gram), w)


@of_matrices(factorizes=False)
def bjorck(w: Tensor, steps: int = 12, beta: float = 0.5) -> Tensor:  # (..., rows, columns) → the same shape
    """Björck–Bowie iteration, exactly `steps` times `W ← (1 + β) W − β W WᵀW`.

    Converges to the polar factor for singular values in (0, √3) (β = ½): scale the input first. The remaining error
    depends on the smallest singular value: each step lifts it by 1.5 until it is near 1, so 12 steps bring σ ≥ 0.03 to
    within 1e-5 of 1, but leave a 256×256 Gaussian (σ_min/σ_max ≈ 1e-3) with σ_min ≈ 0.05 to 0.2; 25 suffice there.

    >>> w = torch.linalg.qr(torch.randn(3, 3))[0]
    >>> torch.testing.assert_close(bjorck(0.5 * w), w)
    """
    for _ in range(steps):
        w = cubic_step(w, beta)
    return w


class BatchedBjorckOrthogonalization(ShapedMap):
    """Module form of `bjorck`. Its input must be scaled to σ ≤ 1 (pair it with a spectral normalizer).

    With `pass_through`, the gradient is that of the identity (straight-through), which is cheap and biased.
    """

    batched = True
    printed = ("niters", "beta", "pass_through")

    def __init__(
        self, weight_shape: tuple[int, ...], beta: float = 0.5, niters: int = 12, pass_through: bool = False
    ) -> None:
        super().__init__(weight_shape)
        if not 0 < beta <= 0.5:
            raise ParameterError(f"Björck converges for beta in (0, 0.5], got {beta}.")
        if niters < 0:
            raise ParameterError(f"niters must be at least 0, got {niters}.")
        self.beta, self.niters, self.pass_through = beta, niters, pass_through

    def forward(self, w: Tensor) -> Tensor:
        """The matrices after all steps."""
        if self.pass_through:
            return w + (self._iterate(w.detach()) - w.detach())
        return self._iterate(w)

    def _iterate(self, w: Tensor) -> Tensor:
        """All steps, with a check before the last one, which takes an error e to `(1 − 2β)e + 3βe²`."""
        last, linear, allowed = min(self.niters, 1), 1 - 2 * self.beta, 1e-5
        if last:
            allowed = (math.sqrt(linear**2 + 12 * self.beta * allowed) - linear) / (6 * self.beta)
        w = bjorck(w, self.niters - last, self.beta)
        rounding = 64 * torch.finfo(w.dtype).eps * (min(w.shape[-2:]) + 8)
        warn_if_deficient(w, type(self).__name__, max(2 * allowed, rounding))
        return bjorck(w, last, self.beta)
