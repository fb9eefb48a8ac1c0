"""Gram–Schmidt orthonormalization `W = L⁻¹ X` of the rows of X, `X = LW` with L lower triangular: by QR or Cholesky.

Both algorithms compute the same unique W (positive diagonal of L) and share its gradient: with `A = G Wᵀ` for an
upstream gradient G,

    ∇X = L⁻ᵀ (G − (tril(A) + tril(A, −1)ᵀ) W).

Tall matrices are transposed: their columns are orthonormalized.

Note [Shifted Cholesky]
Cholesky of the Gram matrix squares the condition number κ: one pass leaves an error of about κ²·eps and may break down.
A shift of a few eps·‖XXᵀ‖ prevents the breakdown and divides κ by up to 1/√(8 eps) (1e3 in float32). So two passes
suffice for κ ≤ 5e3 (2e7 in float64) and three for κ ≤ 1e6. The shift keeps rank-deficient input finite (lost directions
come out as zero), and what it takes from the other directions is restored by the later passes.

Note [Passes]
On CPUs, the error left by a pass is measured. Without a shift one pass is enough for κ ≤ 6 or so, which training gives
for most non-square matrices (for all but one of the CIFAR-10 network that comes with the library). A second one is
exact to a few eps if the first left at most 4e-3. However orthonormal W is, it is off by κ·eps/10 from the factor of X,
and so are gradients; second derivatives are off by κ²·eps/5. Hence float32 matrices with κ ≥ 40 or so start again in
float64. (What is left is no sign of κ: it is rounding, which may be small by chance. In few rows, even the first pass
may seem to be enough: up to seven rows, all passes are in float64.) There, more means shifted passes, up to
four. No singular value exceeds 1 after the first of them, so `r − trace(XXᵀ)` bounds what the smallest one lacks: if it
is below ½ at the beginning of a pass, that pass is the last one. If four were not enough, a warning is issued. Reading
values would make the host wait for an accelerator: there, and where there are no values, there are always three shifted
passes, in the precision of X.

Note [What a pass leaves]
`E = WWᵀ − I` itself costs as much as half a pass. Its norm is estimated by two steps of the power method from eight
random vectors: `‖E²v‖ / ‖Ev‖`, two thirds of ‖E‖ for rounding errors, and a fifth of it at worst (one direction that
is far off among thousands). So with 16 eps, singular values are off by 1e-6, and by less than 1e-5 at worst, in
float32.

Note [Preconditioning]
Gram–Schmidt is invariant under multiplication of X by a lower triangular matrix with positive diagonal. So for
derivatives of any order, L may be divided out first, as a constant, which leaves a nearly orthonormal matrix: one
Cholesky factorization, of a matrix near I.

Note [Inverse factor]
Triangular solves and Cholesky factorizations of many small matrices, or of one large matrix, run at a half to a tenth
of the speed of products. `K = L⁻¹` turns solves into products, forward and backward, and is found by products from
inverse factors of half the size: with `XXᵀ = [[A, ·], [B, C]]`, `K₁` that of A, `M = BK₁ᵀ` and `K₂` that of `C − MMᵀ`,

    K = [[K₁, 0], [−K₂MK₁, K₂]].

LAPACK is left with small diagonal blocks. Rounding of K is a lower triangular factor `I + O(κ·eps)` of W, which leaves
the span of the first rows alone. On accelerators, where launches count, and in compilers, there are triangular solves,
of `[X, I]`, which becomes `[W, K]`.

Note [One triangle]
Cholesky reads one triangle of `XXᵀ`, the adjoint one of `GWᵀ`. Torch has no product that stops at the diagonal. Some
rows at a time, each time up to the last diagonal entry, it takes little more than half of the flops; this pays for many
rows on a CPU (0.8 to 0.95 of the time for 256, 0.6 to 0.7 for 512 to 2048), and elsewhere one launch is better than
many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from orthogonium.linalg.deficiency import warn_if_deficient, warn_of_deficiency
from orthogonium.linalg.evaluation import HandWritten, evaluate, float64_is_cheap, may_look, of_matrices, waits
from orthogonium.linalg.matrix_map import ShapedMap
from orthogonium.linalg.multiply import add_product, multiply
from orthogonium.linalg.norms import magnitude, scale_to_unit

_SHIFT = 4.0  # in units of eps·‖XXᵀ‖
_BLIND_PASSES, _MOST_PASSES = 3, 4  # Note [Passes]
_ENOUGH = 16.0  # what the last pass may leave, in units of eps
_MANY_ROWS, _ROWS_AT_ONCE = 256, 128  # Note [One triangle]
_SMALL = 16  # number of rows: Note [What a pass leaves]
_FEW = 7  # the same: Note [Passes]
_LITTLE = 4e-3  # what the pass before the last may leave
_WELL = 5e-6  # the largest κ·eps for which the last pass is not in float64

_BLOCK = 32  # Note [Inverse factor]

RowsAndFactor: TypeAlias = tuple[Tensor, Tensor, Tensor | None]  # W, L⁻¹, s with X = s·LW; None for s = 1
Algorithm: TypeAlias = Callable[[Tensor], RowsAndFactor]  # (b, r, c) → (b, r, c), (b, r, r), any shape for s


def _batch(x: Tensor) -> Tensor:  # (..., m, n) → (b, m, n)
    return x.reshape(-1, *x.shape[-2:])


def inverse_factor(gram: Tensor) -> Tensor:  # (b, r, r), of which the lower triangle is read
    """`L⁻¹` for the Cholesky factor L of each matrix. Note [Inverse factor]."""
    rows = gram.shape[-1]
    if rows <= (_BLOCK if len(gram) > 2 else 2 * _BLOCK):
        lower = torch.linalg.cholesky_ex(gram)[0]
        return torch.linalg.solve_triangular(lower, _identity(gram), upper=False)
    half = rows // 2
    first = inverse_factor(gram[:, :half, :half])
    below = multiply(gram[:, half:, :half], first.mT)
    second = inverse_factor(add_product(gram[:, half:, half:], below, below.mT, alpha=-1))
    inverse = torch.zeros_like(gram, memory_format=torch.contiguous_format)
    inverse[:, :half, :half], inverse[:, half:, half:] = first, second
    inverse[:, half:, :half] = multiply(multiply(second, below), first).neg_()
    return inverse


def _identity(like: Tensor) -> Tensor:  # (b, r, r)
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device).expand_as(like)


def _cholesky_rows(x: Tensor, gram: Tensor) -> Tensor:  # (b, r, c), (b, r, r)
    """`L⁻¹ X` for the Cholesky factor L of `gram`."""
    if may_look(x):
        return multiply(inverse_factor(gram), x)
    return torch.linalg.solve_triangular(torch.linalg.cholesky_ex(gram)[0], x, upper=False)


def _passes(x: Tensor) -> RowsAndFactor:
    """Orthonormal rows by as many passes as it takes. Note [Passes].

    The result for matrices that are ill-conditioned in float32 is in float64.
    """
    if not may_look(x):
        return _shifted_passes(x, _BLIND_PASSES)
    if x.dtype == torch.float32 and x.shape[1] <= _FEW:
        return _passes(x.double())
    inverse = inverse_factor(product_below(x, x))
    w = multiply(inverse, x)
    left, eps = _deviation(w), torch.finfo(x.dtype).eps
    if left <= _ENOUGH * eps:
        return w, inverse, None
    if left <= _LITTLE and _condition(x, inverse) * eps <= _WELL:
        further = inverse_factor(product_below(w, w))
        return multiply(further, w), multiply(further, inverse), None
    # Also if these are NaN: the Gram matrix overflows, or is not positive.
    return _passes(x.double()) if x.dtype == torch.float32 else _shifted_passes(x, _MOST_PASSES)


def product_below(a: Tensor, b: Tensor) -> Tensor:  # (n, r, c), (n, r, c) → (n, r, r)
    """`ABᵀ` on and below the diagonal; what is above it means nothing. Note [One triangle]."""
    rows = a.shape[1]
    if rows < _MANY_ROWS or waits(a):
        return torch.bmm(a, b.mT)
    product = a.new_zeros(len(a), rows, rows)
    for x, y, z in zip(a, b, product, strict=True):
        for first in range(0, rows, _ROWS_AT_ONCE):
            end = min(first + _ROWS_AT_ONCE, rows)
            z[first:end, :end] = multiply(x[first:end], y[:end].mT)
    return product


def _deviation(w: Tensor) -> float:  # (b, r, c)
    """About ‖WWᵀ − I‖ for the worst of the matrices. Note [What a pass leaves]."""
    if w.shape[1] <= _SMALL:
        e = torch.bmm(w, w.mT)
        e.diagonal(dim1=-2, dim2=-1).sub_(1)
        return torch.linalg.vector_norm(e, dim=(-2, -1)).max().item()
    return power_steps(lambda v: multiply(multiply(v, w), w.mT), w)


def _condition(x: Tensor, inverse: Tensor) -> float:  # (b, r, c), (b, r, r)
    """About the largest κ = ‖L⁻¹‖·‖X‖ of the matrices, from below."""

    def squared_norm(m: Tensor) -> float:
        return power_steps(lambda v: v + multiply(multiply(v, m), m.mT), m)

    scale = magnitude(x)
    return math.sqrt(squared_norm(x / scale) * squared_norm(inverse * scale))


def power_steps(gram: Callable[[Tensor], Tensor], like: Tensor) -> float:  # (b, r, c)
    """About ‖G − I‖ for the worst of b Gram matrices `(r, r)`, which are applied to rows `(b, 8, r)`."""
    after = _probes(like.shape[1], like.dtype).expand(like.shape[0], -1, -1)
    for _ in range(2):
        before, after = after, gram(after) - after
    tiny = torch.finfo(like.dtype).tiny
    ratio = torch.linalg.vector_norm(after, dim=-1) / torch.linalg.vector_norm(before, dim=-1).clamp_min(tiny)
    return ratio.max().item()


def is_exact(gram: Callable[[Tensor], Tensor], like: Tensor) -> bool:
    """Whether Gram matrices are the identity up to the rounding that the last pass may leave."""
    return power_steps(gram, like) <= _ENOUGH * torch.finfo(like.dtype).eps


@lru_cache
def _probes(rank: int, dtype: torch.dtype) -> Tensor:
    """Eight random vectors, the same at each call."""
    with torch.inference_mode(False):
        return torch.randn(8, rank, dtype=dtype, device="cpu", generator=torch.Generator().manual_seed(0))


def _shifted_passes(x: Tensor, most: int) -> RowsAndFactor:
    """Orthonormal rows by shifted passes: all if blind, else until nothing is missing. Note [Shifted Cholesky]."""
    eps, rank = torch.finfo(x.dtype).eps, x.shape[1]
    scale = magnitude(x)
    x = x / scale
    gram = torch.bmm(x, x.mT)
    # The largest row sum bounds ‖XXᵀ‖; the floor keeps zero input finite.
    shift = gram.abs().sum(-1).amax(-1, keepdim=True).clamp_min(eps).mul(_SHIFT * eps)
    gram.diagonal(dim1=-2, dim2=-1).add_(shift)
    x = _cholesky_rows(torch.cat((x, _identity(gram)), -1), gram)
    looks = may_look(x)
    for done in range(1, most):
        gram = _shifted_gram(x[..., :-rank])
        missing = rank - gram.diagonal(dim1=-2, dim2=-1).sum(-1).min().item() if looks else 0.0
        x = _cholesky_rows(x, gram)
        if looks and missing <= 0.5:
            break
        if looks and done == most - 1:
            warn_of_deficiency("cholesky", missing, rank)
    return x[..., :-rank].contiguous(), x[..., -rank:].contiguous(), scale


def lower_to_symmetric(a: Tensor) -> Tensor:
    """The symmetric matrix with the lower triangle of `a`."""
    return a.tril() + a.tril(-1).mT


def _shifted_gram(x: Tensor) -> Tensor:
    """`XXᵀ` for ‖X‖ ≤ 1, with a shift that leaves nearly orthonormal rows as they are.

    The shift alone would divide their singular values by √(1 + shift): the matrix is multiplied by the inverse square.
    """
    shift = _SHIFT * torch.finfo(x.dtype).eps
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return torch.baddbmm(identity, x, x.mT, beta=shift / (1 + shift), alpha=1 / (1 + shift))


def _householder(x: Tensor) -> RowsAndFactor:  # (b, r, c)
    """Orthonormal rows by Householder reflections."""
    q, upper = torch.linalg.qr(x.mT)
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(x.dtype)
    upper = upper * sign[..., None]
    # Only the gradient divides by the diagonal: keep it finite where rows are linearly dependent.
    diagonal = upper.diagonal(dim1=-2, dim2=-1)
    info = torch.finfo(x.dtype)
    floor = (info.eps * upper.abs().amax((-2, -1), keepdim=True)).clamp_min(info.eps**2)[..., 0]
    upper = upper + torch.diag_embed((floor - diagonal).clamp_min(0))
    return (q * sign[..., None, :]).mT, torch.linalg.solve_triangular(upper.mT, _identity(upper), upper=False), None


_ONE_PASS = partial(_shifted_passes, most=1)


class _GramSchmidt(HandWritten):
    """(X, algorithm) → W."""

    @staticmethod
    def compute(x: Tensor, factorize: Algorithm) -> tuple[Tensor, list[Tensor]]:
        w, inverse, scale = factorize(_batch(x))
        return w.to(x.dtype).reshape(x.shape), [w, inverse] if scale is None else [w, inverse, scale]

    @staticmethod
    def adjoint(inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor) -> tuple[Tensor, None]:
        w, inverse, *scale = saved
        g = _batch(grad).to(w.dtype)
        symmetric = lower_to_symmetric(product_below(g, w))
        grad_x = multiply(inverse.mT, add_product(g, symmetric, w, alpha=-1))
        for s in scale:
            grad_x = grad_x / s
        if grad_x.dtype != grad.dtype:  # for rank-deficient input it may overflow the smaller range
            limit = torch.finfo(grad.dtype).max
            grad_x = grad_x.clamp(-limit, limit)
        return grad_x.to(grad.dtype).reshape(grad.shape), None

    @classmethod
    def plain(cls, x: Tensor, factorize: Algorithm) -> Tensor:
        """One more pass, by operators that torch differentiates. Note [Preconditioning]."""
        flat = _batch(x)
        w, inverse, scale = factorize(flat.detach())
        y = multiply(inverse, flat.to(w.dtype) if scale is None else flat.to(w.dtype) / scale)
        y = _cholesky_rows(y, _shifted_gram(y))
        # The derivatives are those of y, the value is that of the algorithm.
        return (w + (y - y.detach())).to(x.dtype).reshape(x.shape)


def _gram_schmidt(w: Tensor, algorithm: Algorithm) -> Tensor:
    """Orthonormal columns, or rows of a wide matrix."""
    tall = w.shape[-2] >= w.shape[-1]
    rows = evaluate(_GramSchmidt, w.mT if tall else w, algorithm)
    return rows.mT if tall else rows


@of_matrices(factorizes=True)
def cholesky(w: Tensor, stable: bool = True) -> Tensor:  # (..., rows, columns) → the same shape
    """Orthonormalize the columns (the rows of a wide matrix) in order, by Cholesky factorizations of the Gram matrix.

    The result is that of Gram–Schmidt (and of `qr`), at the cost of matrix products: singular values within 1e-5 of 1
    (nearly always within 2e-6) in float32, 1e-14 in float64, for condition numbers up to 1e6 (1e14). Rank-deficient
    input has no valid result: lost directions come out as zero, or as noise, and a `NumericalWarning` is issued (not on
    accelerators, where the check would make the host wait).

    Args:
        w: matrices of any scale.
        stable: whether to take as many passes as necessary. If False, one pass: an error of about κ²·eps for condition
            number κ.

    >>> w = cholesky(torch.randn(4, 3, 5, dtype=torch.float64))
    >>> bool((w @ w.mT - torch.eye(3)).abs().max() < 1e-14)
    True
    """
    orthonormal = _gram_schmidt(w, _passes if stable else _ONE_PASS)
    if not stable:  # otherwise the passes warn themselves
        warn_if_deficient(orthonormal, "cholesky")
    return orthonormal


@of_matrices(factorizes=True)
def qr(w: Tensor) -> Tensor:  # (..., rows, columns) → the same shape
    """Gram–Schmidt orthonormalization of the columns (the rows of a wide matrix), by Householder reflections.

    This is the factor of the unique QR decomposition with positive diagonal, the result of modified Gram–Schmidt. It is
    orthogonal to rounding error for *every* input; if columns are linearly dependent (e.g. zero input), the completion
    is one of many and the gradient is finite but large.

    >>> bool((qr(torch.zeros(2, 3)) @ qr(torch.zeros(2, 3)).mT == torch.eye(2)).all())
    True
    """
    if float64_is_cheap(w):
        return qr(w.double()).to(w.dtype)
    return _gram_schmidt(scale_to_unit(w), _householder)


class BatchedCholeskyOrthogonalization(ShapedMap):
    """Module form of `cholesky`; one pass (`stable=False`) is off by about κ²·1e-7 in float32."""

    batched = True
    printed = ("stable",)

    def __init__(self, weight_shape: tuple[int, ...], stable: bool = False) -> None:
        super().__init__(weight_shape)
        self.stable = stable

    def forward(self, w: Tensor) -> Tensor:
        """Gram–Schmidt orthonormalization of the matrices, by Cholesky."""
        return cholesky(w, self.stable)


class BatchedQROrthogonalization(ShapedMap):
    """Module form of `qr`: 1e-6 in float32 for every input."""

    batched = True

    def forward(self, w: Tensor) -> Tensor:
        """Gram–Schmidt orthonormalization of the matrices, by reflections."""
        return qr(w)
