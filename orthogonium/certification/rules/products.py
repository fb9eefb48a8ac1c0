"""Products with constant matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rounding import sum_growth
from orthogonium.certification.rules.call import Call, Effect, Local, NoBound, constant_of, is_value
from orthogonium.certification.rules.measured import (
    PRODUCT,
    absolute_norm,
    layer_step,
    matrix_norm,
    norm_of_sample,
    product_rounding,
    square,
)
from orthogonium.certification.tracked import Tracked
from orthogonium.certification.values import Form

aten = torch.ops.aten


class Dense:
    """`out = Wx + b` for each sample: the origin by which the head of a classifier is recognized."""

    def __init__(self, weight: Tensor, features: float) -> None:
        self.weight, self.features = weight, features


def multiplied(call: Call) -> Effect:
    """`mm`, `bmm`, `mv`, `addmm`, `baddbmm`, `addmv` with one constant factor."""
    a, b = (call[n] for n in _FACTORS[call.func])
    if is_value(a) and is_value(b):
        raise NoBound(*PRODUCT)
    alpha, beta = (abs(float(call.given.get(n, 1))) for n in ("alpha", "beta"))
    terms: list[Form] = []
    operands: list[Tracked] = []
    owner, local, origin, found = None, Local(), None, None
    if is_value(a) or is_value(b):
        x, c, right = (a, constant_of(b), True) if is_value(a) else (b, constant_of(a), False)
        vector = c.dim() == 1 or x.dim() == 1
        matrix = (c[:, None] if right else c[None]) if c.dim() == 1 else c
        norm, found = matrix_norm(call, matrix.mT if right else matrix)
        axis = x.dim() - 1 if right or x.dim() == 1 else x.dim() - 2
        owner = call.together(x, [axis])
        if owner is not None:
            owner = owner.squeeze(axis) if vector and not (right and c.dim() == 2) else owner
            owner = owner.expand(call.output.shape)
        terms.append(x.form().scaled(square(alpha * norm)))
        # The factor may come before the product or after it.
        added = call["self"] if call.func in _ADDS and beta else None
        constants = 0.0
        if isinstance(added, torch.Tensor) and not is_value(added):
            constants = max(beta, 1.0) * norm_of_sample(call, constant_of(added))
        absolute = max(alpha, 1.0) * absolute_norm(matrix)
        if is_value(added):  # the sum may begin with it
            absolute = max(absolute, beta, 1.0)
        local = product_rounding(call, x.shape[axis], alpha * norm, absolute, constants)
        if (
            right
            and x.dim() == 2
            and c.dim() == 2
            and owner is None
            and not (call.func in _ADDS and is_value(call["self"]))
        ):
            origin = Dense(alpha * c.detach().cpu().double().T, x.form().bound)
        operands.append(x)
    added = call["self"] if call.func in _ADDS else None
    call.check_places(added)
    if not operands and isinstance(a, Tensor) and isinstance(b, Tensor):
        local = _constant_product(call, constant_of(a), constant_of(b), alpha)
    if isinstance(added, Tracked) and not added.constant and beta:
        terms.append(call.broadcast(added).scaled(square(beta)))
        operands.append(added)
        owner = call.merged(added) if len(operands) == 1 else _joined(call, owner, added)
    step = layer_step(call, found, (torch.nn.Linear,)) if len(operands) == 1 and alpha == 1 else None
    return Effect(tuple(terms), owner, local, origin, step)


def _constant_product(call: Call, a: Tensor, b: Tensor, alpha: float) -> Local:
    """Rounding if a product of constants is added to a value."""
    product = (a.detach().double().abs() @ b.detach().double().abs()).expand(call.output.shape)
    norm = max(alpha, 1.0) * float(torch.linalg.vector_norm(product))
    one = product_rounding(call, a.shape[-1], norm, norm)
    if not norm:
        return call.rounded(2.0, 1.0)
    # Sums may begin with the value.
    own = {"read": one.read / norm, "sums": one.sums / norm, "written": call.rounded(2.0).written, "inside": 1.0}
    return replace(one, beside=norm * sum_growth(a.shape[-1]), offset=one.read, **own)


def _joined(call: Call, owner: Tensor | None, other: Tracked) -> Tensor | None:
    """Samples of a sum with another value."""
    also = call.merged(other)
    if owner is None and also is None:
        return None
    samples = torch.arange(call.output.shape[0]).reshape(-1, *[1] * (call.output.dim() - 1)).expand(call.output.shape)
    first, second = (samples if o is None else o for o in (owner, also))
    if bool(((first >= 0) & (second >= 0) & (first != second)).any()):
        raise NoBound("It combines the samples of the batch.", "Keep the batch in front of every tensor.")
    return torch.maximum(first, second)


_FACTORS = {
    aten.mm.default: ("self", "mat2"),
    aten.bmm.default: ("self", "mat2"),
    aten.mv.default: ("self", "vec"),
    aten.dot.default: ("self", "tensor"),
    aten.addmm.default: ("mat1", "mat2"),
    aten.baddbmm.default: ("batch1", "batch2"),
    aten.addmv.default: ("mat", "vec"),
}
_ADDS = {aten.addmm.default, aten.baddbmm.default, aten.addmv.default}
RULES: dict[Any, Any] = dict.fromkeys(_FACTORS, multiplied)
