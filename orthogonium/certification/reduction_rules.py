"""Reductions over axes of a sample, and sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orthogonium.certification.arithmetic_rules import largest_of_two
from orthogonium.certification.rule import NoBound, Rule, axes, one_operand
from orthogonium.certification.tracking import Call, Tracked
from orthogonium.certification.values import Value


def _reduced(call: Call) -> tuple[Tracked, int]:
    """The operand and the number of entries that are combined into one."""
    x = one_operand(call)
    name = "axis" if "axis" in call.kwargs else "dim"
    dim = call.argument(2 if call.name in ("norm", "vector_norm", "linalg_vector_norm") else 1, name)
    if dim is None or isinstance(dim, torch.dtype) or 0 in axes(dim, x.dim()):
        raise NoBound("It combines the samples of the batch.", "Name the axes, without the first: dim=(1, 2, 3).")
    return x, math.prod(x.shape[a] for a in axes(dim, x.dim()))


def indices(call: Call, x: Tracked) -> Value:
    """Where an extreme value was found: integers."""
    return call.walker.latent(x.value, call.name, "Indices jump from integer to integer.", "Use the values only.")


def reduced(factor: Callable[[int], float]) -> Rule:
    """A reduction over named axes with a constant that depends on the number of entries."""

    def rule(call: Call) -> Value | Sequence[Value]:
        x, count = _reduced(call)
        value = x.value.scaled(factor(count))
        return value if isinstance(call.output, Tensor) else [value, indices(call, x)]

    return rule


def extreme(call: Call) -> Value | Sequence[Value]:
    """`max` and `min`: of two tensors entry by entry, or over an axis."""
    if isinstance(call.argument(1, "other"), Tensor):
        return largest_of_two(call)
    return reduced(lambda count: 1.0)(call)


def normed(call: Call) -> Value:
    """Norm over axes: 1 for p ≥ 2, n^(1/p − 1/2) below."""
    p = call.argument(1, "ord" if "vector" in call.name else "p", 2)
    order = 2.0 if p in (None, "fro") else float(p)
    if order < 1:
        raise NoBound("Norms of order below 1 are not Lipschitz.", "Use p ≥ 1.")
    x, count = _reduced(call)
    return x.value.scaled(max(1.0, count ** (1 / order - 0.5)))


def ordered(call: Call) -> Sequence[Value]:
    """`sort` and `topk`: sorting is 1-Lipschitz; the indices jump."""
    x = one_operand(call)
    if call.argument(2 if call.name == "topk" else 1, "dim", -1) % x.dim() == 0:
        raise NoBound("It sorts the batch.", "Sort along another axis.")
    return [x.value, indices(call, x)]


RULES: dict[str, Rule] = {
    "mean": reduced(lambda count: 1 / math.sqrt(count)),
    "sum": reduced(math.sqrt),
    **dict.fromkeys("max min".split(), extreme),
    **dict.fromkeys("amax amin logsumexp".split(), reduced(lambda count: 1.0)),
    **dict.fromkeys("norm vector_norm".split(), normed),
    **dict.fromkeys("sort topk".split(), ordered),
}
