"""The orthogonal polar factor, the nearest orthogonal matrix: by matrix products, with its exact derivative.

The iteration applies odd polynomials to the singular values, which are minimax on a shrinking interval around 1 (Amsel
et al. 2025, "The Polar Express"), so fourteen steps suffice for every condition number up to 1e6.

Note [Derivative of the polar factor]
Steps that lift small singular values amplify rounding errors, too, and a derivative taken step by step never recovers
from them. The exact one comes from `W = HQ` with H symmetric: for a tangent V of W let `A = VQᵀ`, and let the skew X
solve `HX + XH = A − Aᵀ`. Then the tangent of Q is `XQ + H⁻¹(V − AQ)`. Q is the gradient of the sum of singular values,
so its derivative is symmetric, and the same formula takes gradients backwards. `H⁻¹` solves such an equation as well,
with 2I on the right. So all derivatives follow from that of one linear equation, which has the same form.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from orthogonium.errors import DerivativeError
from orthogonium.linalg.deficiency import warn_if_deficient
from orthogonium.linalg.evaluation import float64_is_cheap, full_precision_backward, of_matrices
from orthogonium.linalg.matrix_map import ShapedMap
from orthogonium.linalg.newton_schulz import cubic_step, quintic_step
from orthogonium.linalg.norms import scale_to_unit

# Minimax odd quintics for singular values in [1e-4, 1], each with a safety factor of 1.01: without it, rounding that
# pushes a singular value above its interval is amplified by each further step. The second one is repeated and lifts
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
_FLOOR = 4.0  # of eigenvalues, in units of eps·‖H‖


def _is_nested() -> bool:
    """Whether one forward derivative is taken inside another."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack) > 1


def _nested_tangents(tangent: Tensor) -> AbstractContextManager[object]:
    """Torch disables forward derivatives inside one: outer ones would take what is computed there as constant."""
    if not _is_nested():
        return nullcontext()
    if torch._C._functorch.is_batchedtensor(tangent):
        raise DerivativeError(
            "polar: forward derivatives of forward derivatives cannot be batched (jacfwd of jacfwd, vmap of jvp of "
            "jvp). Take one of the two backwards: torch.func.hessian, jacfwd of jacrev, or torch.autograd.functional."
        )
    return forward_ad._set_fwd_grad_enabled(True)


def _values(ctx: Any) -> tuple[Tensor, ...]:
    """The saved values, without the tangents that accompany them."""
    if not _is_nested():
        return ctx.saved_tensors
    return tuple(forward_ad.unpack_dual(t).primal for t in ctx.saved_tensors)


class _Sylvester(torch.autograd.Function):
    """(H, B) → X with `HX + XH = B`, H symmetric positive definite, for any number of right-hand sides B."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, b: Tensor) -> Tensor:  # (..., r, r), (..., k, r, r)
        values, vectors = torch.linalg.eigh(h)
        eps = torch.finfo(h.dtype).eps
        # Keeps the gradient of rank-deficient matrices finite. A shift would do so, too, but change all small
        # eigenvalues.
        values = values.maximum(_FLOOR * eps * values[..., -1:].clamp_min(eps))
        vectors = vectors[..., None, :, :]
        sums = values[..., None, :, None] + values[..., None, None, :]
        return vectors @ ((vectors.mH @ b @ vectors) / sums) @ vectors.mH

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    @full_precision_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        h, x = ctx.saved_tensors
        grad_b = _sylvester(h, grad)
        return -(grad_b @ x.mH + x.mH @ grad_b).sum(-3), grad_b


class _SylvesterForward(_Sylvester):
    @staticmethod
    def jvp(ctx: Any, tangent_h: Tensor, tangent_b: Tensor) -> Tensor:
        with _nested_tangents(tangent_b):
            h, x = _values(ctx)
            tangent_h = tangent_h[..., None, :, :]
            return _sylvester(h, tangent_b - tangent_h @ x - x @ tangent_h)


def _sylvester(h: Tensor, b: Tensor) -> Tensor:
    # Compilers refuse functions with forward derivatives.
    return (_Sylvester if torch.compiler.is_compiling() else _SylvesterForward).apply(h, b)


def _derivative(w: Tensor, q: Tensor, v: Tensor) -> Tensor:  # (..., r, c), r ≤ c
    """Note [Derivative of the polar factor]."""
    h, a = w @ q.mH, v @ q.mH
    h, skew = (h + h.mH) / 2, a - a.mH
    if w.shape[-2] == w.shape[-1]:
        return _sylvester(h, skew[..., None, :, :])[..., 0, :, :] @ q
    identity = torch.eye(h.shape[-1], dtype=h.dtype, device=h.device)
    x, inverse = _sylvester(h, torch.stack((skew, (2 * identity).expand_as(skew)), -3)).unbind(-3)
    return x @ q + inverse @ (v - a @ q)


class _Polar(torch.autograd.Function):
    """(..., r, c) with r ≤ c → the same shape."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w: Tensor) -> Tensor:
        squared = (w @ w.mH).abs().sum(-1).amax(-1)[..., None, None]
        q = w / torch.where(squared > 0, squared, torch.ones_like(squared)).sqrt()
        for coefficients in _MINIMAX:
            q = quintic_step(q, *coefficients)
        q = quintic_step(q, *_QUINTIC)
        warn_if_deficient(q, "polar", 0.19)  # 0.9 is within 1e-5 of 1 after the two steps that follow
        return cubic_step(quintic_step(q, *_QUINTIC))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    @full_precision_backward
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        w, q = ctx.saved_tensors
        return _derivative(w, q, grad)


class _PolarForward(_Polar):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        with _nested_tangents(tangent):
            w, q = _values(ctx)
            return _derivative(w, q, tangent)


@of_matrices(factorizes=False, or_complex=True)
def polar(w: Tensor) -> Tensor:  # (..., rows, columns) → the same shape
    """The orthogonal polar factor `(WWᵀ)^(-1/2) W`, for any scale: the nearest matrix with all singular values 1.

    That of a complex matrix is unitary.

    Stateless: a Gram bound `‖W‖² ≤ max_i Σ_j |WWᵀ|_ij` scales the input safely. Eleven minimax steps, two quintic and
    one cubic step leave singular values within 1e-6 of 1 in float32 and 1e-12 in float64, for condition numbers up to
    about 1e6. Rank-deficient input has no such factor: lost directions stay near zero and a `NumericalWarning` is
    issued.

    >>> w = polar(torch.randn(4, 3, 5, dtype=torch.float64))
    >>> bool((w @ w.mT - torch.eye(3)).abs().max() < 1e-12)
    True
    """
    if float64_is_cheap(w):
        return polar(w.to(torch.promote_types(w.dtype, torch.float64))).to(w.dtype)
    w = scale_to_unit(w)
    tall = w.shape[-2] > w.shape[-1]
    rows = (_Polar if torch.compiler.is_compiling() else _PolarForward).apply(w.mH if tall else w)
    return rows.mH if tall else rows


class BatchedPolarOrthogonalization(ShapedMap):
    """Module form of `polar`: 1e-6 in float32 up to a condition number of about 1e6."""

    batched = True

    def forward(self, w: Tensor) -> Tensor:
        """The polar factors of the matrices."""
        return polar(w)
