"""The orthogonal polar factor (the nearest orthogonal matrix) by matrix products alone: Björck–Bowie and polar.

Both apply odd polynomials to the singular values. Björck, Bowie (1971), "An iterative algorithm for computing the best
estimate of an orthogonal matrix". `polar` starts with polynomials that are minimax on a shrinking interval around 1
(Amsel et al. 2025, "The Polar Express"), so that fourteen steps serve every condition number up to 1e6.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.linalg.precision import check_matrix, check_shape, full_precision, scale_to_unit, warn_if_deficient

# Minimax odd quintics for singular values in [1e-4, 1], each with a safety factor of 1.01: without it, rounding that
# pushes a singular value above its interval is amplified by each further step. The second one, repeated, lifts
# smaller singular values by 4.2 each time: 1e-4 / 4.2⁴ ≈ 3e-7.
_MINIMAX = (
    (8.425629, -24.521285, 17.843376),
    *[(4.207573, -3.062239, 0.557455)] * 5,
    (4.183909, -3.046176, 0.555659),
    (4.087721, -2.980638, 0.548331),
    (3.737491, -2.738356, 0.521267),
    (2.866548, -2.101200, 0.450578),
    (2.022039, -1.383518, 0.373861),
)
_QUINTIC = (15 / 8, -10 / 8, 3 / 8)


def _gram(w: Tensor) -> Tensor:
    """The Gram matrix of the smaller side."""
    return w @ w.mT if w.shape[-2] <= w.shape[-1] else w.mT @ w


def _multiply(p: Tensor, w: Tensor) -> Tensor:
    """A function of the Gram matrix, applied on the side it came from."""
    return p @ w if w.shape[-2] <= w.shape[-1] else w @ p


def cubic_step(w: Tensor, beta: float = 0.5) -> Tensor:
    """`(1 + β) W − β W WᵀW`. For β = ½ an error e becomes 1.5 e², and σ ≤ 1 after it whenever σ ≤ 2 before."""
    return (1 + beta) * w - beta * _multiply(_gram(w), w)


def _quintic_step(w: Tensor, a: float, b: float, c: float) -> Tensor:
    gram = _gram(w)
    return a * w + _multiply(b * gram + c * (gram @ gram), w)


@full_precision
def bjorck(w: Tensor, steps: int = 12, beta: float = 0.5) -> Tensor:  # (..., rows, columns) → the same shape
    """Björck–Bowie iteration, exactly `steps` times `W ← (1 + β) W − β W WᵀW`.

    Converges to the polar factor for singular values in (0, √3) (β = ½): scale the input first. What remains depends
    on the smallest singular value: each step lifts it by 1.5 until it is near 1, so that 12 steps bring σ ≥ 0.03 to
    within 1e-5 of 1, but leave a 256×256 Gaussian (σ_min/σ_max ≈ 1e-3) with σ_min ≈ 0.05 to 0.2; 25 suffice there.

    >>> w = torch.linalg.qr(torch.randn(3, 3))[0]
    >>> torch.testing.assert_close(bjorck(0.5 * w), w)
    """
    check_matrix(w, "bjorck")
    for _ in range(steps):
        w = cubic_step(w, beta)
    return w


@full_precision
def polar(w: Tensor) -> Tensor:  # (..., rows, columns) → the same shape
    """The orthogonal polar factor `(WWᵀ)^(-1/2) W`, of any scale: the nearest matrix with all singular values 1.

    Stateless: a Gram bound `‖W‖² ≤ max_i Σ_j |WWᵀ|_ij` scales the input safely. Eleven minimax steps, two quintic and
    one cubic step leave singular values within 1e-6 of 1 in float32 and 1e-12 in float64, for condition numbers up to
    about 1e6. Rank-deficient input has no such factor: lost directions stay near zero and a `NumericalWarning` is
    issued.

    >>> w = polar(torch.randn(4, 3, 5, dtype=torch.float64))
    >>> bool((w @ w.mT - torch.eye(3)).abs().max() < 1e-12)
    True
    """
    check_matrix(w, "polar")
    if w.numel() == 0:
        return w
    w = scale_to_unit(w)
    squared = _gram(w).abs().sum(-1).amax(-1)[..., None, None]
    w = w / torch.where(squared > 0, squared, torch.ones_like(squared)).sqrt()
    for coefficients in _MINIMAX:
        w = _quintic_step(w, *coefficients)
    w = _quintic_step(_quintic_step(w, *_QUINTIC), *_QUINTIC)
    return warn_if_deficient(cubic_step(w), "polar")


class BatchedBjorckOrthogonalization(nn.Module):
    """Module form of `bjorck`. Its input must be scaled to σ ≤ 1 (pair it with a spectral normalizer).

    With `pass_through`, the gradient is that of the identity (straight-through), which is cheap and biased.
    """

    def __init__(
        self, weight_shape: tuple[int, ...], beta: float = 0.5, niters: int = 12, pass_through: bool = False
    ) -> None:
        super().__init__()
        self.weight_shape = check_shape(weight_shape, type(self).__name__)
        if not 0 < beta <= 0.5:
            raise ParameterError(f"Björck converges for beta in (0, 0.5], got {beta}.")
        if niters < 0:
            raise ParameterError(f"niters must be at least 0, got {niters}.")
        self.beta, self.niters, self.pass_through = beta, niters, pass_through

    def forward(self, w: Tensor) -> Tensor:
        """Orthonormalize."""
        if self.pass_through:
            with torch.no_grad():
                correction = bjorck(w, self.niters, self.beta) - w
            return warn_if_deficient(w + correction, type(self).__name__, 0.5)
        return warn_if_deficient(bjorck(w, self.niters, self.beta), type(self).__name__, 0.5)

    def extra_repr(self) -> str:
        """Arguments, for printing."""
        return f"niters={self.niters}, beta={self.beta}, pass_through={self.pass_through}"


class BatchedPolarOrthogonalization(nn.Module):
    """Module form of `polar`: 1e-6 in float32 up to a condition number of about 1e6."""

    def __init__(self, weight_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight_shape = check_shape(weight_shape, type(self).__name__)

    def forward(self, w: Tensor) -> Tensor:
        """Orthonormalize."""
        return polar(w)
