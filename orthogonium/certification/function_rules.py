"""Lipschitz constants of torch's functions, by name: one table for functions, methods and operators.

A rule reads a call and returns the value of the output. Whatever has no entry has no bound; nothing is assumed to be 1.
Constants are those of the Euclidean norm of one sample, so a function that mixes the samples of a batch has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from orthogonium.certification import (
    arithmetic_rules,
    linear_rules,
    pooling_rules,
    reduction_rules,
    shape_rules,
    slope_rules,
)
from orthogonium.certification.rule import NOT_FINITE, NoBound, Rule
from orthogonium.certification.tracking import Call, Step
from orthogonium.certification.values import Value

RULES: dict[str, Rule] = {
    **shape_rules.RULES,
    **arithmetic_rules.RULES,
    **slope_rules.RULES,
    **reduction_rules.RULES,
    **linear_rules.RULES,
    **pooling_rules.RULES,
}
_ALIASES = {
    "concat": "cat", "concatenate": "cat", "swapaxes": "transpose",
    "swapdims": "transpose", "moveaxis": "movedim", "absolute": "abs", "negative": "neg", "true_divide": "div",
    "divide": "div", "multiply": "mul", "subtract": "sub", "clip": "clamp", "special_expit": "sigmoid",
    "special_softmax": "softmax", "__matmul__": "matmul", "linalg_vector_norm": "vector_norm", "__rpow__": "exp",
}  # fmt: skip
_GENERAL = "Use operations with a bound, or divide the model so that this one lies outside."
_NORM = ("It divides by a deviation that may be arbitrarily small: no useful bound.",)
ADVICE: dict[str, tuple[str, str]] = {
    "layer_norm": (*_NORM, "Use LayerCentering."),
    "rms_norm": (*_NORM, "Leave it out, or use BatchLipNorm."),
    "group_norm": (*_NORM, "Use LayerCentering."),
    "instance_norm": (*_NORM, "Use LayerCentering."),
    "normalize": ("Division by a norm that may be arbitrarily small is not Lipschitz.", "Clamp instead: x/max(1, ‖x‖)."),
    "scaled_dot_product_attention": ("Attention is a product of values: not Lipschitz.", "Use convolutions, OrthoLinear."),
    "multi_head_attention_forward": ("Attention is a product of values: not Lipschitz.", "Use convolutions, OrthoLinear."),
    "glu": ("A gate is a product of values: not Lipschitz.", "Use MaxMin."),
    "exp": ("The exponential is not Lipschitz.", "Use Softplus."),
    "sqrt": ("The root has an infinite slope at 0.", "Use L2NormPool or L2NormResidual."),
    "rsqrt": ("It is not Lipschitz near 0.", "Divide by constants only."),
    "log": ("The logarithm has an infinite slope at 0.", "Use log_softmax or Softplus."),
    "square": ("Squares are not Lipschitz.", "Use abs, or L2NormPool for sums of squares."),
    "reciprocal": ("It is not Lipschitz near 0.", "Divide by constants only."),
    "hardshrink": ("It jumps.", "Use Softshrink."),
    "ScriptMethod": ("What torch.jit has compiled is not followed.", "Use the module it was made from."),
    "einsum": ("Contractions are not followed.", "Use matmul or F.linear with a constant matrix."),
    **dict.fromkeys(
        "gt ge lt le eq ne argmax argmin argsort round floor ceil trunc sign heaviside bucketize".split(),
        ("It jumps: no Lipschitz constant.", "Use clamp, maximum or an activation."),
    ),
    "bmm": ("The product of two values is not Lipschitz.", "Use OrthoLinear."),
}  # fmt: skip


def function_rule(call: Call) -> Value | Sequence[Value] | None:
    """Value of the output of a call, from the table; notes every step that changes distances, or has no bound."""
    name = _ALIASES.get(call.name, call.name)
    rule = RULES.get(name) or RULES.get(name.rstrip("_")) or RULES.get(name.strip("_"))
    operands = call.operands
    source = max((x.value for x in operands), key=lambda v: v.bound)
    try:
        if rule is None:
            reason, remedy = ADVICE.get(name.strip("_"), ("No Lipschitz constant is known.", _GENERAL))
            raise NoBound(reason, remedy)
        if "out" in call.kwargs:
            raise NoBound("Writing into out= is not followed.", "Use the returned tensor.")
        values = rule(call)
    except NoBound as missing:
        return call.walker.no_bound(source, call.name, missing.reason, missing.remedy)
    if any(math.isnan(v.bound) for v in ([values] if isinstance(values, Value) else values)):
        return call.walker.no_bound(source, call.name, *NOT_FINITE)
    if isinstance(values, Value):
        if not call.output.is_floating_point():
            return call.walker.no_bound(source, call.name, "Its output jumps from integer to integer.", _GENERAL)
        _note(call, source, values)
    return values


def _note(call: Call, source: Value, value: Value) -> None:
    """Record the step if it changed the bound."""
    before, after = source.bound, value.bound
    if after == before or math.isinf(before):
        return
    warnings: tuple[str, ...] = ()
    if len(call.operands) > 1 and call.name.strip("_").removeprefix("i") in ("add", "sub", "radd", "rsub"):
        warnings = ("A plain sum adds constants. AdditiveResidual, ConcatResidual or L2NormResidual keep 1.",)
    factor = after / before if before else 1.0
    call.walker.steps.append(Step(call.walker.place, call.name, factor, "constant", after, warnings=warnings))
