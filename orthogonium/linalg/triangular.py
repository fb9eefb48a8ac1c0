"""Gram–Schmidt orthonormalization `W = X R⁻¹` of the columns of X, `X = WR` with R upper triangular: by QR or Cholesky.

Both algorithms compute the same unique W (positive diagonal of R) and share its gradient, which needs one triangular
solve: with `A = Wᵀ G` for an upstream gradient G,

    ∇X = (G − W (triu(A) + triu(A, 1)ᵀ)) R⁻ᵀ.

If only the span of the columns matters (a function of the projector `WWᵀ`), A is symmetric and this is `(G − W A) R⁻ᵀ`.
Wide matrices are transposed: their rows are orthonormalized.

Note [Shifted Cholesky]
Cholesky of the Gram matrix squares the condition number κ: one pass leaves an error of about κ²·eps and may break down.
A shift of a few eps·‖XᵀX‖ prevents the breakdown and divides κ by up to 1/√(8 eps) (1e3 in float32). So two passes serve
κ ≤ 5e3 and three serve κ ≤ 1e6. Square matrices need three: κ is often 1e5. Tall ones, with at least twice as many rows as
columns, are well conditioned: two passes. The shift is part of every pass: it keeps rank-deficient input finite (lost
directions come out as zero), and what it takes from the other directions is given back in the later passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from orthogonium.linalg.precision import check_matrix, check_shape, full_precision, scale_to_unit, warn_if_deficient


def _cholesky_pass(
    x: Tensor, nearly_orthonormal: bool = False
) -> tuple[Tensor, Tensor]:  # (..., c, r) → the same shape, (..., r, r)
    gram = x.mT @ x
    # The largest row sum bounds ‖XᵀX‖; the floor keeps zero input finite.
    eps = torch.finfo(x.dtype).eps
    shift = (4 * eps) * torch.linalg.vector_norm(gram, 1, dim=-1).amax(-1, keepdim=True).clamp_min(eps)
    gram.diagonal(dim1=-2, dim2=-1).add_(shift)
    upper = torch.linalg.cholesky_ex(gram, upper=True)[0]
    if nearly_orthonormal:  # XᵀX ≈ I: the shift would divide every singular value by √(1 + shift)
        upper = upper * (1 + shift[..., None]).rsqrt()
    return torch.linalg.solve_triangular(upper, x, upper=True, left=False), upper


def _gradient(grad: Tensor, w: Tensor, upper: Tensor, span_only: bool) -> Tensor:
    inner = w.mT @ grad
    if not span_only:
        inner = inner.triu() + inner.triu(1).mT
    return torch.linalg.solve_triangular(upper.mT, grad - w @ inner, upper=False, left=False)


class _CholeskyColumns(torch.autograd.Function):
    """(…, c, r) → the same with orthonormal columns, and the triangular factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, passes: int, span_only: bool) -> tuple[Tensor, Tensor]:
        x, upper = _cholesky_pass(x)
        for _ in range(passes - 1):
            x, factor = _cholesky_pass(x, nearly_orthonormal=True)
            upper = factor @ upper
        return x, upper

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, bool], output: tuple[Tensor, Tensor]) -> None:
        ctx.span_only = inputs[2]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        w, upper = ctx.saved_tensors
        return _gradient(grad, w, upper, ctx.span_only), None, None


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
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        w, upper = ctx.saved_tensors
        return _gradient(grad, w, upper, span_only=False)


def span_basis(w: Tensor) -> Tensor:  # (..., c, r), r ≤ c → the same shape
    """Orthonormal columns with the span of the columns of `w`; its gradient is that of functions of the projector only."""
    return _CholeskyColumns.apply(scale_to_unit(w), 2, True)[0] if w.numel() else w


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
    w = scale_to_unit(w)
    if w.numel() == 0:
        return w
    wide = w.shape[-2] < w.shape[-1]
    passes = 1 if not stable else 2 if 2 * min(w.shape[-2:]) <= max(w.shape[-2:]) else 3
    columns = _CholeskyColumns.apply(w.mT if wide else w, passes, False)[0]
    return warn_if_deficient(columns.mT if wide else columns, "cholesky")


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
