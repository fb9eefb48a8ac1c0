"""Rotations from skew-symmetric matrices, defined for every input: the exponential map and the Cayley transform.

Of complex matrices they are unitary, with conjugate transposes in the formulas.

Both are sensitive to the scale of their input: beyond a norm of `MAX_NORM` rounding would dominate, and nothing is
gained, as norm π (exponential) already reaches every rotation and the Cayley transform turns by 2·atan(‖A‖). So larger
inputs are scaled down to that norm, and one cubic Newton–Schulz step removes the remaining rounding errors.

Note [Thin exponentials]
The first r rows of exp(S), `S = [[A, B], [−Bᵀ, 0]]` with A of size r, turn within 2r directions, however many columns B
has. With `N = [[I, 0], [0, Bᵀ]]` and `M = [[A, I], [−I, 0]]`, S is NMNᵀ, so these rows are `[E₁₁, −E₂₁B]` for the
submatrices of the exponential of 2r rows `E = exp(MNᵀN)`, `MNᵀN = [[A, BBᵀ], [−I, 0]]`; likewise for every polynomial.
Multiplying the second r rows by any s, and the second r columns by 1/s, changes nothing: s ≈ ‖B‖ balances them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.linalg.evaluation import may_look, of_matrices
from orthogonium.linalg.matrix_map import ShapedMap
from orthogonium.linalg.multiply import multiply
from orthogonium.linalg.newton_schulz import cubic_step
from orthogonium.linalg.norms import magnitude

MAX_NORM = 32.0
SQUARINGS = 8


def _norm_bound(w: Tensor) -> Tensor:  # (..., 1, 1)
    """`‖W‖² ≤ ‖W‖₁‖W‖_∞`."""
    row = w.abs().sum(-1, keepdim=True).amax(-2, keepdim=True)
    column = w.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    return (row * column).clamp_min(0.5).sqrt()  # of matrices whose largest entry is 1, at least 1


def _norm_bound_of_skew(top: Tensor) -> Tensor:  # (..., r, c) → (..., 1, 1)
    """The same for `[[A, B], [−Bᵀ, 0]]`, given its rows `[A, B]`."""
    row = top.abs().sum(-1, keepdim=True).amax(-2, keepdim=True)
    below = top[..., top.shape[-2] :].abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    return torch.maximum(row, below).clamp_min(0.5)


def _bounded(w: Tensor, bound: float = MAX_NORM, norm_bound: Callable[[Tensor], Tensor] = _norm_bound) -> Tensor:
    """Scale down to a spectral norm of at most `bound`."""
    # What is scaled down does not depend on it: a constant for the gradient. Squares of the norm may overflow.
    largest = magnitude(w.detach())
    unit = w / largest
    norm = norm_bound(unit)
    exceeds = largest > bound / norm.detach()
    if may_look(w) and not exceeds.any():
        return w
    return torch.where(exceeds, unit * (bound / norm), w)


def _cleaned(w: Tensor) -> Tensor:
    """A cubic step for matrices that are orthogonal up to rounding, and remain so as they vary: only the value changes.

    Its derivative is `dW − ½W(dWᵀW + WᵀdW)`, in which the bracket is that of `WᵀW = I`, zero up to rounding.
    """
    return w + (cubic_step(w.detach()) - w.detach())


def _series(a: Tensor, terms: int) -> Tensor:
    """`Σ_{1 ≤ i ≤ terms} Aⁱ/i!`, by Horner's rule: exp(A) − I, if `terms` is large enough."""
    result = a / terms
    for i in range(terms - 1, 0, -1):
        result = (a + multiply(a, result)) / i
    return result


def _whole_exponential(a: Tensor, squarings: int = SQUARINGS) -> Tensor:
    """`exp(A) − I` for ‖A‖ ≤ `MAX_NORM`: that of `A / 2⁸`, whose series is short, squared eight times.

    `(I + Y)² = I + (2Y + Y²)`: without I in the squares, rounding is relative to Y, and doubling it eight times makes
    up for the division. Autograd differentiates these products step by step, to 1e-6 in float32. The derivative of
    `torch.linalg.matrix_exp` is an exponential of a matrix that contains the gradient as well: a large gradient causes
    many more squarings, with an error of 2e-4 (512×512), and counting them makes the host wait for accelerators.
    """
    # Truncation error, (‖A‖/2⁸)ⁿ/(n + 1)! of the whole: 4e-8 or 2e-17.
    terms = 5 if torch.finfo(a.dtype).bits == 32 else 10
    result = _series(a / 2**squarings, terms)
    for _ in range(squarings):
        result = 2 * result + multiply(result, result)
    return result


def _thin_exponential(w: Tensor, terms: int | None) -> Tensor:  # (..., r, c), 2r < c
    """The first rows of `exp(A) − I`. Note [Thin exponentials]."""
    rows, columns = w.shape[-2:]
    square, b = w.split((rows, columns - rows), -1)
    top = torch.cat((square - square.mH, b), -1)
    a, b = _bounded(top, MAX_NORM if terms is None else 1.0, _norm_bound_of_skew).split((rows, columns - rows), -1)
    largest = magnitude(b.detach())
    s = largest * _norm_bound(b.detach() / largest)
    identity = torch.eye(rows, dtype=w.dtype, device=w.device).expand_as(a)
    upper, lower = torch.cat((a, multiply(b, b.mH) / s), -1), torch.cat((-s * identity, torch.zeros_like(a)), -1)
    both = torch.cat((upper, lower), -2)  # of norm 2·`MAX_NORM` at most
    turn = _whole_exponential(both, SQUARINGS + 1) if terms is None else _series(both, terms)
    return torch.cat((turn[..., :rows, :rows], -multiply(turn[..., rows:, :rows] / s, b)), -1)


@of_matrices(factorizes=False, or_complex=True)
def exponential(w: Tensor, terms: int | None = None) -> Tensor:  # (..., rows, columns) → the same shape
    """`exp(A)`, A = W − Wᵀ (W embedded in a square of the larger size), cropped to the shape of W.

    Orthogonal to 2e-6 in float32 and 1e-14 in float64 for every W whose A is finite; every rotation is reached. Of
    complex matrices, `A = W − Wᴴ`: unitary.

    Args:
        w: matrices.
        terms: truncate the series after `A^terms / terms!`, with ‖A‖ scaled to at most 1 (rotations of at most 1 rad).
            The final cubic step makes the result orthogonal to about 1e-6 for 5 terms or more, and never expansive.

    >>> torch.testing.assert_close(exponential(torch.zeros(2, 3)), torch.eye(2, 3))
    """
    rows, columns = w.shape[-2:]
    if rows > 2 * columns:
        return exponential(w.mH, terms).mH
    if columns > 2 * rows:
        thin = torch.eye(rows, columns, dtype=w.dtype, device=w.device) + _thin_exponential(w, terms)
        return _cleaned(thin) if terms is None else cubic_step(thin)
    size = max(rows, columns)
    square = nn.functional.pad(w, (0, size - columns, 0, size - rows))
    skew = square - square.mH
    turn = _whole_exponential(_bounded(skew)) if terms is None else _series(_bounded(skew, 1.0), terms)
    rotation = (torch.eye(size, dtype=w.dtype, device=w.device) + turn)[..., :rows, :columns]
    return _cleaned(rotation) if terms is None else cubic_step(rotation)


def _inverse(a: Tensor) -> Tensor:
    """`a⁻¹`, whose derivatives are correct to all orders in torch, unlike forward derivatives of `linalg.solve`.

    CPU batches go one by one: torch's batched LU factorization fails there with several threads (n > 150).
    """
    if a.device.type != "cpu" or a.dim() == 2 or a.shape[-1] <= 128:
        return torch.linalg.inv(a)
    return torch.stack([torch.linalg.inv(x) for x in a.flatten(0, -3)]).reshape(a.shape)


@of_matrices(factorizes=True, or_complex=True)
def cayley(w: Tensor) -> Tensor:  # (..., rows, columns) → the same shape
    """The augmented Cayley transform: for W = [U; V] tall, `A = U − Uᵀ + VᵀV`, `[(I − A)(I + A)⁻¹; −2V(I + A)⁻¹]`.

    Pauli et al. (2023), "Lipschitz-bounded 1D convolutional neural networks using the Cayley transform". Orthogonal to
    1e-6 in float32 and 1e-14 in float64 for every finite input (I + A is always invertible). Rotations with an
    eigenvalue −1 are approached, not reached. Of complex matrices, with Uᴴ and Vᴴ: unitary.

    >>> torch.testing.assert_close(cayley(torch.zeros(3, 2)), torch.eye(3, 2))
    """
    if w.shape[-2] < w.shape[-1]:
        return cayley(w.mH).mH
    w = _bounded(w)
    rows, size = w.shape[-2:]
    identity = torch.eye(size, dtype=w.dtype, device=w.device)
    if rows == size:
        return _cleaned(2 * _inverse(identity + (w - w.mH)) - identity)
    u, v = w.split((size, rows - size), -2)
    inverse = _inverse(identity + (u - u.mH) + multiply(v.mH, v))  # (I + A)⁻¹, and (I − A)(I + A)⁻¹ = 2(I + A)⁻¹ − I
    return _cleaned(torch.cat([2 * inverse - identity, -2 * multiply(v, inverse)], dim=-2))


class BatchedExponentialOrthogonalization(ShapedMap):
    """Module form of `exponential`; `niters` is the number of terms, or None (the default) for the full exponential."""

    batched = True
    printed = ("niters",)

    def __init__(self, weight_shape: tuple[int, ...], niters: int | None = None) -> None:
        super().__init__(weight_shape)
        if niters is not None and niters < 1:
            raise ParameterError(f"niters must be at least 1 (or None for the whole exponential), got {niters}.")
        self.niters = niters

    def forward(self, w: Tensor) -> Tensor:
        """The exponentials, cropped to the shape of the matrices."""
        return exponential(w, self.niters)


class BatchedCayleyOrthogonalization(ShapedMap):
    """Module form of `cayley`: 1e-6 in float32 for every input."""

    batched = True

    def forward(self, w: Tensor) -> Tensor:
        """The Cayley transforms, in the shape of the matrices."""
        return cayley(w)
