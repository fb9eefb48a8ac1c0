"""Gram–Schmidt orthonormalization `W = L⁻¹X` of the rows of X, `X = LW` with L lower triangular: by QR or by Cholesky.

Both algorithms compute the same unique W (positive diagonal of L) and share its gradient, which needs triangular
solves only: with `A = G Wᵀ` for an upstream gradient G,

    ∇X = L⁻ᵀ (G − (tril(A) + tril(A, −1)ᵀ) W).

If only the span of the rows matters (a function of the projector `WᵀW`), A is symmetric and this is `L⁻ᵀ (G − A W)`.

Note [Shifted Cholesky]
Cholesky of the Gram matrix squares the condition number κ: one pass leaves an error of about κ²·eps and may break
down. A shift of a few eps·‖XXᵀ‖ prevents the breakdown, and brings every κ ≤ 1/eps down to at most about 1/√eps; a
second and a third pass finish. The shift is part of every pass: at κ ≈ 1 it costs an error of a few eps, and it keeps
rank-deficient input finite (lost directions come out as zero).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from orthogonium.linalg.precision import check_matrix, check_shape, full_precision, scale_to_unit, warn_if_deficient


def _cholesky_pass(x: Tensor) -> tuple[Tensor, Tensor]:
    gram = x @ x.mT
    # The largest row sum bounds ‖XXᵀ‖; the floor keeps zero input finite.
    eps = torch.finfo(x.dtype).eps
    shift = 4 * eps * gram.abs().sum(-1).amax(-1).clamp_min(eps) if x.shape[-2] else gram.new_zeros(gram.shape[:-2])
    lower, _ = torch.linalg.cholesky_ex(gram + torch.diag_embed(shift[..., None].expand(gram.shape[:-1])))
    return torch.linalg.solve_triangular(lower, x, upper=False), lower


def _triangular_gradient(grad: Tensor, w: Tensor, factors: tuple[Tensor, ...], span_only: bool) -> Tensor:
    inner = grad @ w.mT
    if not span_only:
        inner = inner.tril() + inner.tril(-1).mT
    gradient = grad - inner @ w
    for lower in reversed(factors):
        gradient = torch.linalg.solve_triangular(lower.mT, gradient, upper=True)
    return gradient


class _CholeskyRows(torch.autograd.Function):
    """(…, r, c) → the same with orthonormal rows, and the triangular factors of the passes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, passes: int, span_only: bool) -> tuple[Tensor, ...]:
        factors = []
        for _ in range(passes):
            x, lower = _cholesky_pass(x)
            factors.append(lower)
        return x, *factors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool], output: tuple[Tensor, ...]) -> None:
        ctx.span_only = inputs[2]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        w, *factors = ctx.saved_tensors
        return _triangular_gradient(grad, w, tuple(factors), ctx.span_only), None, None


class _HouseholderRows(torch.autograd.Function):
    """(…, r, c) → the same with orthonormal rows, and the lower triangular factor, by Householder reflections."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        q, r = torch.linalg.qr(x.mT)
        sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(r.dtype)
        lower = (r * sign[..., None]).mT
        # Only the gradient divides by the diagonal: keep it finite where rows are linearly dependent.
        diagonal = lower.diagonal(dim1=-2, dim2=-1)
        info = torch.finfo(x.dtype)
        floor = (info.eps * lower.abs().amax((-2, -1), keepdim=True)).clamp_min(info.eps**2)[..., 0]
        lower = lower + torch.diag_embed((floor - diagonal).clamp_min(0))
        return (q * sign[..., None, :]).mT, lower

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        w, lower = ctx.saved_tensors
        return _triangular_gradient(grad, w, (lower,), span_only=False)


def span_basis(w: Tensor) -> Tensor:  # (..., r, c), r ≤ c → the same shape
    """Orthonormal rows with the span of the rows of `w`; its gradient is that of functions of the projector only."""
    return _CholeskyRows.apply(scale_to_unit(w), 3, True)[0]


@full_precision
def cholesky(w: Tensor, stable: bool = True) -> Tensor:  # (..., rows, columns) → the same shape
    """Orthonormalize the rows (the columns of a tall matrix) in order, by Cholesky factorizations of the Gram matrix.

    The result is that of Gram–Schmidt (and of `qr`), at the cost of matrix products: singular values within 1e-6 of 1
    in float32, 1e-14 in float64, for condition numbers up to 1e6 (1e14). Rank-deficient input has no
    result: the lost directions are zero and a `NumericalWarning` is issued.

    Args:
        w: matrices, any scale.
        stable: three passes (Note [Shifted Cholesky]). With False, one pass: an error of about κ²·eps for condition
        number κ.

    >>> w = cholesky(torch.randn(4, 3, 5, dtype=torch.float64))
    >>> bool((w @ w.mT - torch.eye(3)).abs().max() < 1e-14)
    True
    """
    check_matrix(w, "cholesky")
    w = scale_to_unit(w)
    wide = w.shape[-2] <= w.shape[-1]
    rows = _CholeskyRows.apply(w if wide else w.mT, 3 if stable else 1, False)[0]
    return warn_if_deficient(rows if wide else rows.mT, "cholesky")


@full_precision
def qr(w: Tensor) -> Tensor:  # (..., rows, columns) → the same shape
    """Gram–Schmidt orthonormalization of the rows (the columns of a tall matrix), by Householder reflections.

    This is the factor of the unique QR decomposition with positive diagonal, the result of modified Gram–Schmidt. It is
    orthogonal to rounding error for *every* input; where rows depend on each other (e.g. zero input) the completion is
    one of many and the gradient is finite but large.

    >>> bool((qr(torch.zeros(2, 3)) @ qr(torch.zeros(2, 3)).mT == torch.eye(2)).all())
    True
    """
    check_matrix(w, "qr")
    w = scale_to_unit(w)
    wide = w.shape[-2] <= w.shape[-1]
    rows = _HouseholderRows.apply(w if wide else w.mT)[0]
    return rows if wide else rows.mT


class BatchedCholeskyOrthogonalization(nn.Module):
    """Module form of `cholesky`; `stable=True` reaches 1e-6 in float32, one pass about κ²·1e-7."""

    def __init__(self, weight_shape: tuple[int, ...], stable: bool = False) -> None:
        super().__init__()
        self.weight_shape = check_shape(weight_shape, type(self).__name__)
        self.stable = stable

    def forward(self, w: Tensor) -> Tensor:
        """Orthonormalize."""
        return cholesky(w, self.stable)

    def extra_repr(self) -> str:
        """Arguments, for printing."""
        return f"stable={self.stable}"


class BatchedQROrthogonalization(nn.Module):
    """Module form of `qr`: 1e-6 in float32 for every input."""

    def __init__(self, weight_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight_shape = check_shape(weight_shape, type(self).__name__)

    def forward(self, w: Tensor) -> Tensor:
        """Orthonormalize."""
        return qr(w)
