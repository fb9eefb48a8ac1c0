"""Entries that are added at indices: `index_add`, `scatter_add`, `fold`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rules.call import Call, Effect, NoBound, is_value, scaled
from orthogonium.certification.rules.measured import (
    square,
)
from orthogonium.certification.rules.movement import moved
from orthogonium.certification.tracked import Tracked

aten = torch.ops.aten


def gathered_back(call: Call) -> Effect:
    """`index_add`, `scatter_add`, accumulating `index_put`: each target is the sum of what is sent to it."""
    given = {k: (v.value if isinstance(v, Tracked) else v) for k, v in call.given.items()}
    sent = "values" if "values" in call.given else "source" if "source" in call.given else "src"
    for name in ("index", "indices"):
        values = call.given.get(name)
        if any(is_value(v) for v in (values if isinstance(values, (list, tuple)) else [values])):
            raise NoBound("It chooses by values that depend on the input, so that it may jump.", "Choose by constants.")
    target, source = given["self"], given[sent]
    ones = {
        **given,
        "self": torch.zeros(target.shape, dtype=torch.float64),
        sent: torch.ones(source.shape, dtype=torch.float64),
    }
    if "indices" in given:
        ones["indices"] = [i if not isinstance(i, Tracked) else i.value for i in given["indices"]]
    alpha = abs(float(call.given.get("alpha", 1) or 0))
    ones.pop("alpha", None)
    arrived = call.func(**ones)
    # Sources may be copied on the way, and several copies may meet.
    copies = float(arrived.sum()) / source.numel() if "indices" in given and source.numel() else 1.0
    most = float(arrived.max()) * copies if arrived.numel() else 0.0
    call.check_places((call["self"], call[sent]))
    terms, owners = [], []
    if is_value(call["self"]):
        terms.append(call["self"].form())
        owners.append(call["self"].owners())
    if is_value(call[sent]):
        terms.append(call[sent].form().scaled(square(alpha) * most))
        owners.append(_reduced_owner(call, ones, sent))
    return Effect(tuple(terms), _one_owner(owners), call.rounded(most + 1, most))


def _reduced_owner(call: Call, ones: dict[str, Any], sent: str) -> Tensor:
    """Samples of the targets, tried one by one: everything sent to one target must belong to one sample."""
    samples = call[sent].owners()
    found: Tensor | None = None
    for sample in samples.unique().tolist():
        part = {**ones, "self": torch.zeros_like(ones["self"]), sent: (samples == sample).double()}
        touched = call.func(**part) > 0
        if found is None:
            found = torch.full(touched.shape, -1, dtype=torch.long)
        if sample >= 0:
            if bool((touched & (found >= 0)).any()):
                raise NoBound("It combines the samples of the batch.", "Keep the batch in front of every tensor.")
            found[touched] = int(sample)
    assert found is not None
    return found


def _one_owner(owners: Sequence[Tensor]) -> Tensor:
    high = torch.stack([*owners]).amax(0)
    if any(bool(((o >= 0) & (o != high)).any()) for o in owners):
        raise NoBound("It combines the samples of the batch.", "Keep the batch in front of every tensor.")
    return high


def folded(call: Call) -> Effect:
    """`fold`: the adjoint of `unfold`, so its norm is the root of the number of windows over a pixel."""
    x = call.operand()
    ones = torch.ones(x.shape, dtype=torch.float64)
    most = float(call.func(**{**call.given, "self": ones}).max())
    owner = call.together(x, range(1, x.dim()))
    owner = None if owner is None else owner[..., None].expand(call.output.shape)
    return scaled(call, x, math.sqrt(most) * (1 + 1e-15), owner, call.rounded(most, most))


RULES: dict[Any, Any] = {
    aten.index_put.default: lambda call: gathered_back(call) if call["accumulate"] else moved(call),
    **dict.fromkeys([aten.index_add.default, aten.scatter_add.default], gathered_back),
    aten.col2im.default: folded,
}
