"""Sums, products and quotients of values and constants, the maximum of two values, and combinations of these."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rules.call import NOT_FINITE, Call, Effect, NoBound, constant_of, is_value
from orthogonium.certification.tracked import Tracked

aten = torch.ops.aten


def number(x: Any, dtype: torch.dtype, inverse: bool = False) -> Tensor:
    """A constant (or its inverse) in float64; a scalar is taken as the operator rounds it, if that is worse."""
    if isinstance(x, Tensor):
        exact = (x.value if isinstance(x, Tracked) else x).detach().to("cpu", torch.float64, copy=True)
    else:
        exact = torch.tensor(x, dtype=torch.float64)
    if exact.dim() == 0:
        rounded = exact.to(dtype).double() if dtype.is_floating_point else exact
        exact = torch.where(rounded.abs() < exact.abs() if inverse else rounded.abs() > exact.abs(), rounded, exact)
    return 1 / exact if inverse else exact


def _finite(c: Tensor) -> Tensor:
    if not bool(c.isfinite().all()):
        raise NoBound("It multiplies by a constant that is not finite.", "Check the buffers of the model.")
    return c


def times_constant(call: Call, x: Tracked, c: Tensor) -> Effect:
    """`c·x`, entry by entry."""
    c = _finite(c)
    form = call.broadcast(x).scaled(_up(float(c) ** 2)) if c.dim() == 0 else call.broadcast(x, c)
    return Effect((form,), call.merged(x), call.rounded(1.0, 0.0), origin=Scale(x, c))


def _up(x: float) -> float:
    return x if x in (0.0, 1.0) else x * (1 + 2.0**-50)


class Scale:
    """`out = c·x + shift`, entry by entry: the origin of a base that is an entrywise affine image of another."""

    def __init__(self, x: Tracked, c: Tensor, shift: Tensor | None = None) -> None:
        self.codes, self.coefficient = x.codes.clone(), c
        self.shift = torch.zeros((), dtype=torch.float64) if shift is None else shift


def summed(call: Call) -> Effect:
    """`x ± α·y`: constants add; a constant operand only translates."""
    x, y, given = call["self"], call["other"], call.given.get("alpha")
    alpha = 1.0 if given is None else float(number(given, call.output.dtype))
    if not math.isfinite(alpha):
        raise NoBound(*NOT_FINITE)
    if call.func in _REVERSED:
        x, y = y, x
    values = [(t, f) for t, f in ((x, 1.0), (y, alpha)) if is_value(t)]
    for other in (x, y):
        if not is_value(other) and not bool(number(other, call.output.dtype).isfinite().all()):
            raise NoBound("It adds a constant that is not finite.", "Check the buffers of the model.")
    terms = tuple(call.broadcast(t).scaled(_up(f * f)) for t, f in values)
    origin = None
    if len(values) == 1:
        value, factor = values[0]
        other = y if value is x else x
        sign = -1.0 if call.func in _SUBTRACTIONS else 1.0
        slope = sign * factor if value is y else factor
        shift = number(other, call.output.dtype) * (sign * alpha if other is y else 1.0)
        if value.shape == call.output.shape:
            origin = Scale(value, torch.tensor(slope, dtype=torch.float64), shift)
    return Effect(
        terms, call.merged(*[t for t, _ in values]), call.rounded(1.0, 1.0 if alpha != 1 else 0.0), origin=origin
    )


def multiplied(call: Call) -> Effect:
    """`c·x`; the product of two values has no bound."""
    x, c = call["self"], call["other"]
    if is_value(x) and is_value(c):
        raise NoBound("The product of two values is not Lipschitz.", "Gate by a constant, or use a residual wrapper.")
    x, c = (x, c) if is_value(x) else (c, x)
    return times_constant(call, x, number(c, call.output.dtype))


def divided(call: Call) -> Effect:
    """`x/c`."""
    x, c = call["self"], call["other"]
    if call.given.get("rounding_mode") is not None:
        raise NoBound("Division with rounding jumps.", "Leave out rounding_mode.")
    if is_value(c):
        raise NoBound(
            "Division by a value is not Lipschitz.",
            "Divide by constants, or clamp: x / norm.clamp(min=1) has the constant 1.",
        )
    c = number(c, call.output.dtype, inverse=True)
    if not bool(c.isfinite().all()):
        raise NoBound("It divides by 0.", "Clamp the divisor (the std of an input normalization) away from 0.")
    return times_constant(call, x, c)


def larger(call: Call) -> Effect:
    """The larger, the smaller or the hypotenuse of two values, entry by entry: 1-Lipschitz in the pair."""
    values = call.operands
    return side_by_side(call, values, 0.0 if call.func in _EXTREMES else 1.0)


def side_by_side(call: Call, values: list[Tracked], ulps: float) -> Effect:
    """A function that is 1-Lipschitz in all its operands together."""
    form = call.broadcast(values[0])
    for value in values[1:]:
        form = form.plus(call.broadcast(value))
    return Effect((form,), call.merged(*values), call.rounded(8 * ulps))


def clamped(call: Call) -> Effect:
    """`clamp` between tensors: the larger of the smaller."""
    return side_by_side(call, call.operands, 0.0)


def interpolated(call: Call) -> Effect:
    """`lerp(a, b, t) = a + t·(b − a)` with a constant t."""
    weight = _finite(number(call.constant("weight"), call.output.dtype))
    slack = 1 + torch.finfo(call.output.dtype).eps  # computed weights are rounded, too
    terms = []
    for name, c in (("self", (1 - weight) * slack), ("end", weight * slack)):
        if is_value(call[name]):
            x = call[name]
            terms.append(call.broadcast(x).scaled(_up(float(c) ** 2)) if c.dim() == 0 else call.broadcast(x, c))
    return Effect(tuple(terms), call.merged(*call.operands), call.rounded(3.0, 3.0))


def added_products(call: Call) -> Effect:
    """`addcmul` and `addcdiv` with constants: `x + v·a·b` where a or b is constant."""
    x, a, b, v = call["self"], call["tensor1"], call["tensor2"], float(call["value"])
    inverse = call.func is aten.addcdiv.default
    if (is_value(a) and is_value(b)) or (inverse and is_value(b)):
        raise NoBound("The product of two values is not Lipschitz.", "Gate by a constant, or use a residual wrapper.")
    terms = [call.broadcast(x)] if is_value(x) else []
    local = call.rounded(3.0, 3.0)
    if is_value(a) or is_value(b):
        value, c = (a, number(b, call.output.dtype)) if is_value(a) else (b, number(a, call.output.dtype))
        c = 1 / c if inverse else c
        inside = max(abs(v), 1.0) * max(float(c.abs().max()), 1.0) if c.numel() else 1.0  # in any order
        c = _finite(v * c) * (1 + torch.finfo(call.output.dtype).eps)
        terms.append(call.broadcast(value).scaled(_up(float(c) ** 2)) if c.dim() == 0 else call.broadcast(value, c))
        local = replace(local, inside=inside)
    else:
        first, second = (number(t, torch.float64) for t in (a, b))
        product = (v * (first / second if inverse else first * second)).expand(call.output.shape)
        beside = float(torch.linalg.vector_norm(product))
        local = replace(local, beside=beside, offset=local.written * beside)
    return Effect(tuple(terms), call.merged(*call.operands), local)


_EXTREMES = {aten.maximum.default, aten.minimum.default, aten.fmax.default, aten.fmin.default}
_SUBTRACTIONS = {aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.rsub.Tensor}
_REVERSED = {aten.rsub.Scalar, aten.rsub.Tensor}


def normalized(call: Call) -> Any:
    """BatchNorm in eval: `γ/√(Var + ε)` for each channel."""
    x = call["input"]
    if call.given.get("training"):
        raise NoBound(
            "BatchNorm in training, or InstanceNorm without running statistics, divides by the deviation of its input.",
            "Call model.eval(), build InstanceNorm with track_running_stats=True, or use BatchCentering.",
        )
    if not is_value(x) or len(call.operands) != 1:
        raise NoBound("It depends on several values.", "Use constants for all but the input.")
    variance, gamma = constant_of(call["running_var"]).detach().cpu().double(), call["weight"]
    scale = (variance + call["eps"]).rsqrt() * (1 + 1e-12)
    if gamma is not None:
        scale = scale * constant_of(gamma).detach().cpu().double().abs()
    if not bool(scale.isfinite().all()):
        raise NoBound(*NOT_FINITE)
    weights = scale.square().reshape(1, -1, *[1] * (x.dim() - 2)).expand(x.shape)
    # x − mean and the bias may cancel: their sizes count, whatever remains of them.
    added = constant_of(call["running_mean"]).detach().cpu().double().abs() * scale
    if call["bias"] is not None:
        added = added + constant_of(call["bias"]).detach().cpu().double().abs()
    beside = math.sqrt(x.numel() / max(call.walk.batch * len(scale), 1)) * float(torch.linalg.vector_norm(added))
    local = call.rounded(4.0, 4.0 * float(scale.max()), max(float(scale.max()), 1.0))
    local = replace(local, beside=beside, offset=local.written * beside)
    effect = Effect((x.form(weights),), call.together(x, ()), local)
    empty = [Effect((), torch.full(t.shape, -1)) for t in call.output[1:]]
    return [effect, *empty]


RULES: dict[Any, Any] = {
    **dict.fromkeys([aten.add.Tensor, aten.add.Scalar, *_SUBTRACTIONS], summed),
    **dict.fromkeys([aten.mul.Tensor, aten.mul.Scalar], multiplied),
    **dict.fromkeys([aten.div.Tensor, aten.div.Scalar, aten.div.Tensor_mode, aten.div.Scalar_mode], divided),
    **dict.fromkeys([aten.maximum.default, aten.minimum.default, aten.fmax.default, aten.fmin.default], larger),
    **dict.fromkeys([aten.hypot.default, aten.logaddexp.default, aten.logaddexp2.default], larger),
    **dict.fromkeys([aten.clamp.Tensor, aten.clamp_min.Tensor, aten.clamp_max.Tensor], clamped),
    **dict.fromkeys([aten.lerp.Scalar, aten.lerp.Tensor], interpolated),
    **dict.fromkeys([aten.addcmul.default, aten.addcdiv.default], added_products),
    **dict.fromkeys([aten.native_batch_norm.default, aten._native_batch_norm_legit_no_training.default], normalized),
}
