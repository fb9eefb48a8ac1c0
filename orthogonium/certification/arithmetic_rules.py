"""Arithmetic of values and constants: sums, products, choices, and values side by side."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.certification.rule import NoBound, Rule
from orthogonium.certification.tracking import Call, Tracked
from orthogonium.certification.values import Value, added, concatenated


def _copies(x: Tensor, shape: torch.Size) -> float:
    """Factor of broadcasting to `shape`: the root of the number of copies."""
    if x.dim() == 0 or len(shape) > x.dim() or x.shape[0] != shape[0]:
        raise NoBound(
            f"It copies a tensor {tuple(x.shape)} along the batch or into new axes in front: {tuple(shape)}.",
            "Give all tensors the same number of axes, the batch in front.",
        )
    return math.sqrt(math.prod(shape) / max(x.numel(), 1))


def summed(call: Call) -> Value:
    """`x ± α·y`: constants add; a constant operand only translates."""
    x, y = call.argument(0, "input"), call.argument(1, "other")
    alpha = abs(float(call.argument(2, "alpha", 1)))
    if call.name in ("rsub", "__rsub__"):
        x, y = y, x
    terms = [(t, f) for t, f in ((x, 1.0), (y, alpha)) if isinstance(t, Tracked)]
    return added([t.value.scaled(f * _copies(t, call.output.shape)) for t, f in terms])


def multiplied(call: Call) -> Value:
    """`c·x`: max|c| (times the root of the copies); the product of two values has no bound."""
    x, c = call.argument(0, "input"), call.argument(1, "other")
    x, c = (x, c) if isinstance(x, Tracked) else (c, x)
    if isinstance(c, Tracked):
        raise NoBound("The product of two values is not Lipschitz.", "Gate by a constant, or use a residual wrapper.")
    return x.value.scaled(_largest(c) * _copies(x, call.output.shape))


def _largest(c: Tensor | float) -> float:
    largest = float(c.detach().double().abs().max()) if isinstance(c, Tensor) else abs(float(c))
    if not math.isfinite(largest):
        raise NoBound("It multiplies by a constant that is not finite.", "Check the buffers of the model.")
    return largest


def divided(call: Call) -> Value:
    """`x/c`: 1/min|c|."""
    x, c = call.argument(0, "input"), call.argument(1, "other")
    if isinstance(c, Tracked) or call.kwargs.get("rounding_mode") is not None:
        raise NoBound("Division by a value (or with rounding) is not Lipschitz.", "Divide by constants only.")
    smallest = float(c.detach().double().abs().min()) if isinstance(c, Tensor) else abs(float(c))
    if not smallest > 0:
        raise NoBound("It divides by 0.", "Clamp the divisor (the std of an input normalization) away from 0.")
    return x.value.scaled(1 / smallest * _copies(x, call.output.shape))


def largest_of_two(call: Call) -> Value:
    """Entrywise maximum, minimum or hypotenuse of two values: 1-Lipschitz in the pair."""
    return concatenated([x.value.scaled(_copies(x, call.output.shape)) for x in call.operands])


def chosen(call: Call) -> Value:
    """`where(mask, x, y)` with a constant mask: disjoint parts."""
    if isinstance(call.argument(0, "condition"), Tracked):
        raise NoBound("A choice by values may jump.", "Use maximum, clamp or an activation.")
    return largest_of_two(call)


def masked(call: Call) -> Value:
    """Entries replaced by a constant, under a constant mask."""
    if not isinstance(call.args[0], Tracked) or len(call.operands) > 1:
        raise NoBound("A mask computed from values may jump.", "Use a constant mask.")
    return call.args[0].value.scaled(_copies(call.args[0], call.output.shape))


def joined(call: Call) -> Value:
    """`cat` and `stack`, not along the batch."""
    dim = call.argument(1, "dim", 1 if call.name == "hstack" else 0)
    if dim % max(call.output.dim(), 1) == 0:
        raise NoBound("It joins along the batch.", "Join along another axis.")
    return concatenated([x.value for x in call.operands])


RULES: dict[str, Rule] = {
    **dict.fromkeys("add sub radd rsub iadd isub".split(), summed),
    **dict.fromkeys("mul rmul imul".split(), multiplied),
    **dict.fromkeys("div truediv itruediv idiv".split(), divided),
    **dict.fromkeys("maximum minimum fmax fmin hypot".split(), largest_of_two),
    "where": chosen,
    "masked_fill": masked,
    **dict.fromkeys("cat stack hstack".split(), joined),
}
