"""Products with the orthonormal rows `W = L⁻¹ X` of Gram–Schmidt, `x Wᵀ` and `WᵀW x`, without W.

Note [Without W]
A dense layer with many more inputs than outputs and a small batch, or a strided stage with few tiles (one column for
each), may apply X, then `K = L⁻¹`, to its inputs. For r outputs and c inputs that takes 3 to 4 r²c flops of a training
step besides those of any dense layer (one triangle of the Gram matrix and its derivative times X) instead of 8 r²c:
products with K and its derivative act on few columns.
With `P = ȲK` for an upstream gradient Ȳ and S the symmetric matrix whose lower triangle is that of `Ȳᵀ y`,

    ∇x = P X,    ∇X = Pᵀ x − KᵀSK X.

That is Gram–Schmidt in one pass, for matrices for which one is enough (Note [Passes] of `triangular.py`). Whether it
is enough is measured, which is only free on CPUs.

Note [Projections]
The projection onto the rows of X is `P = WᵀW = XᵀKX` with `K = (XXᵀ)⁻¹`, which does not depend on which basis X is.
So for p columns x, its derivative only has thin products: with `z = KXx`, and `w = KXȳ` for an upstream gradient ȳ,

    x̄ = Pȳ = Xᵀ w,    ∇X = w (x − Px)ᵀ + z (ȳ − Pȳ)ᵀ.

In a training step that takes `14 rcp + 2 r²c` flops, the latter for K, instead of `12 rcp + 8 r²c` with W. K is as
exact as one pass: both are good to 16 eps for κ ≤ 6 or so, and that is measured in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from orthogonium.linalg.evaluation import HandWritten, autocasts, evaluate, has_values, may_look, products_are_rounded
from orthogonium.linalg.multiply import add_product, multiply
from orthogonium.linalg.triangular import (
    BatchedCholeskyOrthogonalization,
    cholesky,
    inverse_factor,
    is_exact,
    lower_to_symmetric,
    product_below,
)

FEWEST_WITHOUT_ROWS = 4  # columns for each input: with fewer, forming the rows is faster


def needs_no_rows(orthonormalize: Any, x: Tensor, raw: Tensor) -> bool:
    """Whether products with x may do without W: `cholesky` makes its rows orthonormal, and there are values to see."""
    own = type(orthonormalize) is BatchedCholeskyOrthogonalization and orthonormalize.stable
    return (
        own
        and raw.shape[-2] < raw.shape[-1]
        and may_look(raw)
        and has_values(x)
        and not autocasts(x)
        and not products_are_rounded()
    )


# ── x Wᵀ ──


def are_few(inputs: int, columns: int) -> bool:
    """Whether the inputs of a wide matrix are so few that its rows are not worth forming. Note [Without W]."""
    return FEWEST_WITHOUT_ROWS * inputs <= columns


def _factor(raw: Tensor) -> Tensor | None:  # (r, c) → (r, r)
    """`L⁻¹`, if one pass is enough."""
    inverse = inverse_factor(product_below(raw[None], raw[None]))[0]

    def gram(v: Tensor) -> Tensor:  # times L⁻¹ XXᵀ L⁻ᵀ, as it is applied
        return multiply(multiply(v[0] @ inverse, raw), raw.mT)[None] @ inverse.mT

    return inverse if is_exact(gram, raw[None]) else None


class _Applied(HandWritten):
    """(x, X, L⁻¹) → y."""

    @staticmethod
    def compute(x: Tensor, raw: Tensor, inverse: Tensor) -> tuple[Tensor, list[Tensor]]:
        y = multiply(multiply(x, raw.mT), inverse.mT)
        return y, [y.clone()]  # which is ours, whatever is written to y

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        (x, raw, inverse), (y,) = inputs, saved
        p = multiply(grad, inverse)
        grad_x = multiply(p, raw) if wants[0] else None
        if not wants[1]:
            return grad_x, None, None
        s = multiply(multiply(inverse.mT, lower_to_symmetric(multiply(grad.mT, y))), inverse)
        return grad_x, multiply(p.mT, x).sub_(multiply(s, raw)), None

    @classmethod
    def plain(cls, x: Tensor, raw: Tensor, inverse: Tensor) -> Tensor:
        return F.linear(x, cholesky(raw))


def apply_orthonormal_rows(x: Tensor, raw: Tensor) -> Tensor:  # (b, c), (r, c) → (b, r)
    """`x Wᵀ` for the rows W that `cholesky` makes of a wide matrix, by X itself if one pass is exact enough."""
    inverse = _factor(raw.detach())
    return F.linear(x, cholesky(raw)) if inverse is None else evaluate(_Applied, x, raw, inverse)


# ── WᵀW x: Note [Projections] ──


def inverse_gram(raw: Tensor) -> Tensor | None:  # (b, r, c) → (b, r, r)
    """`(XXᵀ)⁻¹`, if it gives projections as exact as one pass that is enough."""
    factor = inverse_factor(product_below(raw, raw))
    inverse = multiply(factor.mT, factor)

    def gram(v: Tensor) -> Tensor:
        return multiply(multiply(multiply(v, inverse), raw), raw.mT)

    return inverse if is_exact(gram, raw) else None


class _Projected(HandWritten):
    """(x, X, K) → Px."""

    @staticmethod
    def compute(x: Tensor, raw: Tensor, inverse: Tensor) -> tuple[Tensor, list[Tensor]]:
        z = multiply(inverse, multiply(raw, x))
        y = multiply(raw.mT, z)
        return y, [z, x - y]

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        (_, raw, inverse), (z, rest) = inputs, saved
        w = multiply(inverse, multiply(raw, grad))
        grad_x = multiply(raw.mT, w)
        grad_raw = add_product(multiply(w, rest.mT), z, (grad - grad_x).mT) if wants[1] else None
        return grad_x, grad_raw, None

    @classmethod
    def plain(cls, x: Tensor, raw: Tensor, inverse: Tensor) -> Tensor:
        return project(x, cholesky(raw))


def project(x: Tensor, rows: Tensor, inverse: Tensor | None = None) -> Tensor:  # (b, c, p), (b, r, c), (b, r, r)
    """The projection of columns onto the span of rows, which are orthonormal unless their `inverse_gram` is given."""
    if inverse is None:
        return multiply(rows.mT, multiply(rows, x))
    return evaluate(_Projected, x, rows, inverse)
