"""Gram–Schmidt orthonormalization `W = L⁻¹ X` of the rows of X, `X = LW` with L lower triangular: by QR or Cholesky.

Both algorithms compute the same unique W (positive diagonal of L) and share its gradient, which needs one triangular
solve: with `A = G Wᵀ` for an upstream gradient G,

    ∇X = L⁻ᵀ (G − (tril(A) + tril(A, −1)ᵀ) W).

If only the span of the rows matters (a function of the projector `WᵀW`), A is symmetric and this is `L⁻ᵀ (G − A W)`.
Tall matrices are transposed: their columns are orthonormalized.

Note [Shifted Cholesky]
Cholesky of the Gram matrix squares the condition number κ: one pass leaves an error of about κ²·eps and may break down.
A shift of a few eps·‖XXᵀ‖ prevents the breakdown and divides κ by up to 1/√(8 eps) (1e3 in float32). So two passes serve
κ ≤ 5e3 and three serve κ ≤ 1e6. Square matrices need three: κ is often 1e5. Wide ones, with at least twice as many columns
as rows, are well conditioned: two passes. The shift is part of every pass: it keeps rank-deficient input finite (lost
directions come out as zero), and what it takes from the other directions is given back in the later passes.

Note [Layouts]
A quarter of the time of a build is triangular solves. LAPACK is fastest from the right, on tall right-hand sides stored by
columns (`Xᵀ` for the row-major X) and with a triangle stored by columns, too: forward that is the upper factor as Cholesky
gives it, backward the transpose of a product. Otherwise it takes 1.5 times as long.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from orthogonium.linalg.precision import (
    check_matrix,
    check_shape,
    full_precision,
    full_precision_backward,
    magnitude,
    refuse_onnx,
    scale_to_unit,
    warn_if_deficient,
)

_SHIFT = 4.0  # in units of eps·‖XXᵀ‖


def _batch(x: Tensor) -> Tensor:  # (..., m, n) → (b, m, n)
    return x.reshape(-1, *x.shape[-2:])


def _cholesky_rows(x: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:  # (b, r, c), (b, r, r)
    """`L⁻¹ X` and `Lᵀ` for the Cholesky factor L of `gram`. Note [Layouts]."""
    upper = torch.linalg.cholesky_ex(gram, upper=True)[0]
    return torch.linalg.solve_triangular(upper, x.mT, upper=True, left=False).mT, upper


def _orthonormal_rows(x: Tensor, passes: int) -> tuple[Tensor, Tensor]:  # (b, r, c) → the same shape, (b, r, r)
    """`W` and `Lᵀ` of `X = LW`, entries of X at most 1. Note [Shifted Cholesky]."""
    eps = torch.finfo(x.dtype).eps
    gram = torch.bmm(x, x.mT)
    # The largest row sum bounds ‖XXᵀ‖; the floor keeps zero input finite.
    shift = gram.abs().sum(-1).amax(-1, keepdim=True).clamp_min(eps).mul(_SHIFT * eps)
    gram.diagonal(dim1=-2, dim2=-1).add_(shift)
    x, upper = _cholesky_rows(x, gram)
    if passes > 1:
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    for _ in range(passes - 1):
        # Now ‖XXᵀ‖ = 1 or a little less. Where X is nearly orthonormal the shift would divide every singular value by
        # √(1 + shift): multiply the Gram matrix by the inverse square.
        unit = 1 + _SHIFT * eps
        gram = torch.baddbmm(identity, x, x.mT, beta=_SHIFT * eps / unit, alpha=1 / unit)
        x, factor = _cholesky_rows(x, gram)
        upper = torch.bmm(factor, upper)
    return x, upper


def _gradient(grad: Tensor, w: Tensor, upper: Tensor, span_only: bool) -> Tensor:  # (b, r, c), (b, r, c), (b, r, r)
    inner = torch.bmm(grad, w.mT)
    if not span_only:
        inner = inner.tril() + inner.tril(-1).mT
    rest = torch.baddbmm(grad, inner, w, alpha=-1)
    return torch.linalg.solve_triangular(upper.mT, rest.mT, upper=False, left=False).mT


class _CholeskyRows(torch.autograd.Function):
    """(…, r, c) → the same with orthonormal rows, the triangular factor, and the scale that was taken off before."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, passes: int, span_only: bool) -> tuple[Tensor, Tensor, Tensor]:
        flat = _batch(x)
        scale = magnitude(flat)
        w, upper = _orthonormal_rows(flat / scale, passes)
        return w.reshape(x.shape), upper, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.span_only = inputs[2]
        ctx.set_materialize_grads(False)  # no zeros for what is only saved
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        w, upper, scale = ctx.saved_tensors
        inner = _gradient(_batch(grad), _batch(w), upper, ctx.span_only)
        return (inner / scale).reshape(grad.shape), None, None


class _HouseholderColumns(torch.autograd.Function):
    """(…, c, r) → the same with orthonormal columns, and the triangular factor, by Householder reflections."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        q, upper = torch.linalg.qr(x)
        sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(x.dtype)
        upper = upper * sign[..., None]
        # Only the gradient divides by the diagonal: keep it finite where columns are linearly dependent.
        diagonal = upper.diagonal(dim1=-2, dim2=-1)
        info = torch.finfo(x.dtype)
        floor = (info.eps * upper.abs().amax((-2, -1), keepdim=True)).clamp_min(info.eps**2)[..., 0]
        upper = upper + torch.diag_embed((floor - diagonal).clamp_min(0))
        return q * sign[..., None, :], upper

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)  # no zeros for what is only saved
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    @full_precision_backward
    def backward(ctx: Any, grad: Tensor | None, _: None) -> Tensor | None:
        if grad is None:
            return None
        w, upper = ctx.saved_tensors
        inner = _gradient(_batch(grad.mT), _batch(w.mT), _batch(upper), span_only=False)
        return inner.mT.reshape(grad.shape)


def span_basis(w: Tensor) -> Tensor:  # (..., r, c), r ≤ c → the same shape
    """Orthonormal rows with the span of the rows of `w`; its gradient is that of functions of the projector only."""
    refuse_onnx("span_basis")
    return _CholeskyRows.apply(w, 2, True)[0] if w.numel() else w


@full_precision
def cholesky(w: Tensor, stable: bool = True) -> Tensor:  # (..., rows, columns) → the same shape
    """Orthonormalize the columns (the rows of a wide matrix) in order, by Cholesky factorizations of the Gram matrix.

    The result is that of Gram–Schmidt (and of `qr`), at the cost of matrix products: singular values within 1e-6 of 1
    in float32, 1e-14 in float64, for condition numbers up to 1e6 (1e14; 5e3 and 1e8 where one side is twice the other or
    more). Rank-deficient input has no
    result: the lost directions are zero and a `NumericalWarning` is issued.

    Args:
        w: matrices, any scale.
        stable: two or three passes (Note [Shifted Cholesky]). With False, one pass: an error of about κ²·eps for condition
        number κ.

    >>> w = cholesky(torch.randn(4, 3, 5, dtype=torch.float64))
    >>> bool((w @ w.mT - torch.eye(3)).abs().max() < 1e-14)
    True
    """
    check_matrix(w, "cholesky")
    refuse_onnx("cholesky")
    if w.numel() == 0:
        return w
    tall = w.shape[-2] >= w.shape[-1]
    passes = 1 if not stable else 2 if 2 * min(w.shape[-2:]) <= max(w.shape[-2:]) else 3
    rows = warn_if_deficient(_CholeskyRows.apply(w.mT if tall else w, passes, False)[0], "cholesky")
    return rows.mT if tall else rows


@full_precision
def qr(w: Tensor) -> Tensor:  # (..., rows, columns) → the same shape
    """Gram–Schmidt orthonormalization of the columns (the rows of a wide matrix), by Householder reflections.

    This is the factor of the unique QR decomposition with positive diagonal, the result of modified Gram–Schmidt. It is
    orthogonal to rounding error for *every* input; where columns depend on each other (e.g. zero input) the completion
    is one of many and the gradient is finite but large.

    >>> bool((qr(torch.zeros(2, 3)) @ qr(torch.zeros(2, 3)).mT == torch.eye(2)).all())
    True
    """
    check_matrix(w, "qr")
    refuse_onnx("qr")
    w = scale_to_unit(w)
    if w.numel() == 0:
        return w
    wide = w.shape[-2] < w.shape[-1]
    columns = _HouseholderColumns.apply(w.mT if wide else w)[0]
    return columns.mT if wide else columns


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
