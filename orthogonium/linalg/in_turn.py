"""`y = x Wᵀ` for the orthonormal rows `W = L⁻¹ X` of Gram–Schmidt, without W.

Note [Without W]
A dense layer with many more inputs than outputs and a small batch may apply X, then L⁻¹, to its inputs. For r outputs
and c inputs that takes 3 to 4 r²c flops of a training step besides those of any dense layer (one triangle of the Gram
matrix and its derivative times X) instead of 8 r²c: solves with L and products with its derivative
act on few columns. With `P = Ȳ L⁻¹` for an upstream gradient Ȳ and S the symmetric matrix whose lower triangle is
that of `Ȳᵀ y`,

    ∇x = P X,    ∇X = Pᵀ x − L⁻ᵀ S L⁻¹ X.

That is Gram–Schmidt in one pass, for matrices for which one is enough (Note [Passes] of `triangular.py`). Whether it
is enough is measured, which is only free on CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.linalg.evaluation import HandWritten, evaluate
from orthogonium.linalg.triangular import ENOUGH, cholesky, lower_to_symmetric, power_steps, product_below


def _factor(raw: Tensor) -> Tensor | None:  # (r, c) → (r, r)
    """`Lᵀ`, if one pass is enough."""
    upper = torch.linalg.cholesky_ex(product_below(raw[None], raw[None])[0].mT, upper=True)[0]

    def gram(v: Tensor) -> Tensor:  # times L⁻¹ XXᵀ L⁻ᵀ, as it is applied
        v = torch.linalg.solve_triangular(upper.mT, v[0], upper=False, left=False) @ raw
        return torch.linalg.solve_triangular(upper, v @ raw.mT, upper=True, left=False)[None]

    return upper if power_steps(gram, raw[None]) <= ENOUGH * torch.finfo(raw.dtype).eps else None


class _Applied(HandWritten):
    """(x, X, Lᵀ) → y."""

    @staticmethod
    def compute(x: Tensor, raw: Tensor, upper: Tensor) -> tuple[Tensor, list[Tensor]]:
        y = torch.linalg.solve_triangular(upper, x @ raw.mT, upper=True, left=False)
        return y, [y]

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        (x, raw, upper), (y,) = inputs, saved
        p = torch.linalg.solve_triangular(upper.mT, grad, upper=False, left=False)
        grad_x = p @ raw if wants[0] else None
        if not wants[1]:
            return grad_x, None, None
        s = lower_to_symmetric(grad.mT @ y)
        s = torch.linalg.solve_triangular(upper, s, upper=True)
        s = torch.linalg.solve_triangular(upper.mT, s, upper=False, left=False)
        return grad_x, (p.mT @ x).addmm_(s, raw, alpha=-1), None

    @classmethod
    def plain(cls, x: Tensor, raw: Tensor, upper: Tensor) -> Tensor:
        return F.linear(x, cholesky(raw))


def apply_orthonormal_rows(x: Tensor, raw: Tensor) -> Tensor:  # (b, c), (r, c) → (b, r)
    """`x Wᵀ` for the rows W that `cholesky` makes of a wide matrix, by the matrix itself if that is exact."""
    upper = _factor(raw.detach())
    return F.linear(x, cholesky(raw)) if upper is None else evaluate(_Applied, x, raw, upper)
