"""Lipschitz constants of torch's functions, by name: one table for functions, methods and operators.

A rule reads a call and returns the value of the output. Whatever has no entry has no bound; nothing is assumed to be 1.
Constants are those of the Euclidean norm of one sample, so a function that mixes the samples of a batch has no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orthogonium.certification import linear_rules, pooling_rules
from orthogonium.certification.rule import NoBound, Rule, axes, one_operand
from orthogonium.certification.values import Base, Value, added, concatenated
from orthogonium.certification.walk import Call, Step, Tracked


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


# ── 1-Lipschitz up to a factor ──


def scaled(factor: float | Callable[[Call], float]) -> Rule:
    """A function of one operand with this constant."""

    def rule(call: Call) -> Value:
        x = one_operand(call)
        return x.value.scaled(factor if isinstance(factor, float) else factor(call))

    return rule


def rearranged(call: Call) -> Value:
    """A change of shape that keeps every entry once, and the batch in front."""
    x = one_operand(call)
    if any(isinstance(a, torch.dtype) for a in call.args):
        raise NoBound("It reads the bits of numbers as others.", "Use .to(dtype).")
    if call.output.shape[:1] != x.shape[:1]:
        raise NoBound(
            f"It moves the axis of the batch: {tuple(x.shape)} → {tuple(call.output.shape)}.",
            "Keep the batch in front: flatten(1), reshape(len(x), …).",
        )
    return x.value


def permuted(call: Call) -> Value:
    """A permutation of axes that leaves the first alone."""
    x = one_operand(call)
    given = call.args[1:] or tuple(call.kwargs.values())
    listed = [a for arg in given for a in (arg if isinstance(arg, (tuple, list)) else (arg,))]
    order = [a % x.dim() for a in listed]
    if call.name in ("T", "mT", "adjoint"):
        order = [0] if call.name == "T" or x.dim() < 3 else []
    first = order[:1] != [0] if call.name == "permute" else 0 in order
    if first:
        raise NoBound("It moves the axis of the batch.", "Keep the batch in front.")
    return x.value


def rolled(call: Call) -> Value:
    """A rotation or reflection along axes other than the batch."""
    x = one_operand(call)
    along = call.argument(2, "dims") if call.name == "roll" else call.args[1:] or call.kwargs.get("dims")
    if along is None or 0 in axes(along, x.dim()):
        raise NoBound("It mixes the samples of the batch.", "Name the axes, without the first.")
    return x.value


def _slopes(call: Call, position: int, name: str, default: float) -> float:
    slope = call.argument(position, name, default)
    steepest = float(slope.detach().abs().max()) if isinstance(slope, Tensor) else abs(float(slope))
    return max(1.0, steepest)


def _softplus(call: Call) -> float:
    beta, threshold = call.argument(1, "beta", 1.0), call.argument(2, "threshold", 20.0)
    if beta <= 0 or threshold < 20:
        raise NoBound("Softplus jumps at a threshold below 20.", "Use the default threshold.")
    return 1.0


def _dropout(call: Call) -> float:
    if call.argument(2, "training", True):
        raise NoBound("Dropout in training is another function at each call.", "Call model.eval() first.")
    return 1.0


def _power(call: Call) -> float:
    exponent = call.argument(1, "exponent")
    if isinstance(exponent, (int, float)) and exponent == 1:
        return 1.0
    raise NoBound("Powers are not Lipschitz.", "Use an activation with bounded slopes.")


# ── several values ──


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
    if call.name == "vstack" or dim % max(call.output.dim(), 1) == 0:
        raise NoBound("It joins along the batch.", "Join along another axis.")
    return concatenated([x.value for x in call.operands])


# ── pieces ──


def _piece(x: Tracked, axis: int, start: int, stop: int) -> Value:
    """The part of `x` from `start` to `stop` along an axis. Note [Pieces of one tensor]."""
    if stop - start >= x.shape[axis]:
        return x.value
    bases = x.walker.bases
    base = bases.setdefault((id(x.value), axis), Base(x.value))
    return Value(base, ({(start, stop): 1.0},))


def cut(call: Call) -> Sequence[Value]:
    """`split`, `chunk`, `unbind` along an axis that is not the batch."""
    x = one_operand(call)
    given = call.argument(1 if call.name == "unbind" else 2, "dim", 0)
    axis = given % x.dim()
    if axis == 0:
        raise NoBound("It cuts the batch.", "Cut along another axis.")
    values, start = [], 0
    for part in call.output:
        length = 1 if call.name == "unbind" else part.shape[axis]
        values.append(_piece(x, axis, start, start + length))
        start += length
    return values


def narrowed(call: Call) -> Value:
    """`narrow(dim, start, length)` and `select(dim, index)`."""
    x = one_operand(call)
    axis, start = call.argument(1, "dim") % x.dim(), call.argument(2, "start" if call.name == "narrow" else "index")
    if axis == 0 or isinstance(start, Tensor):
        raise NoBound("It cuts the batch, or at a computed place.", "Cut along another axis, by ints.")
    length = call.argument(3, "length") if call.name == "narrow" else 1
    start = start % x.shape[axis]
    return _piece(x, axis, start, start + length)


def indexed(call: Call) -> Value:
    """`x[…]` with ints, slices, None, … , or one constant vector of indices."""
    x, key = call.args
    if not isinstance(x, Tracked) or len(call.operands) > 1:
        raise NoBound("It indexes by values.", "Index by constants.")
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [k for k in keys if not isinstance(k, Tensor)]:
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        used = sum(k is not None and k is not Ellipsis for k in keys)
        keys[at : at + 1] = [slice(None)] * (x.dim() - used)
    if not keys or keys[0] != slice(None, None, None):
        raise NoBound("It indexes the batch.", "Begin with a colon: x[:, …].")
    cuts, copies, axis, added_axes = [], 1.0, 0, False
    for k in keys:
        if k is None:
            added_axes = True
            continue
        n = x.shape[axis]
        if isinstance(k, int):
            cuts.append((axis, k % n, k % n + 1))
        elif isinstance(k, slice):
            start, stop, step = k.indices(n)
            if step == 1 and (start, stop) != (0, n):
                cuts.append((axis, start, max(stop, start)))
        elif isinstance(k, Tensor) and k.dtype == torch.long and k.dim() == 1:
            copies *= _most_copies(k % n)
        elif not (isinstance(k, Tensor) and k.dtype == torch.bool and k.dim() == 1):
            raise NoBound(f"It indexes by {type(k).__name__}.", "Index by ints, slices or one constant vector.")
        axis += 1
    if len(cuts) == 1 and copies == 1 and not added_axes:
        return _piece(x, *cuts[0])
    return x.value.scaled(copies)


def _most_copies(index: Tensor) -> float:
    return math.sqrt(int(index.bincount().max())) if index.numel() else 0.0


def selected(call: Call) -> Value:
    """`index_select`: the root of the largest number of copies of an entry."""
    x, index = one_operand(call), call.argument(2, "index")
    if call.argument(1, "dim") % x.dim() == 0 or isinstance(index, Tracked):
        raise NoBound("It selects samples, or by values.", "Select along another axis, by constants.")
    return x.value.scaled(_most_copies(index))


def expanded(call: Call) -> Value:
    """Copies: the root of their number."""
    x = one_operand(call)
    if call.output.dim() != x.dim() or call.output.shape[0] != x.shape[0]:
        raise NoBound("It copies samples.", "Keep the batch in front and of its size.")
    return x.value.scaled(math.sqrt(call.output.numel() / max(x.numel(), 1)))


# ── reductions ──


def _reduced(call: Call) -> tuple[Tracked, int]:
    """The operand and the number of entries that are combined into one."""
    x = one_operand(call)
    name = "axis" if "axis" in call.kwargs else "dim"
    dim = call.argument(2 if call.name in ("norm", "vector_norm", "linalg_vector_norm") else 1, name)
    if dim is None or isinstance(dim, torch.dtype) or 0 in axes(dim, x.dim()):
        raise NoBound("It combines the samples of the batch.", "Name the axes, without the first: dim=(1, 2, 3).")
    return x, math.prod(x.shape[a] for a in axes(dim, x.dim()))


def reduced(factor: Callable[[int], float]) -> Rule:
    """A reduction over named axes with a constant that depends on the number of entries."""

    def rule(call: Call) -> Value | Sequence[Value]:
        x, count = _reduced(call)
        value = x.value.scaled(factor(count))
        return value if isinstance(call.output, Tensor) else [value, value.scaled(math.inf)]  # indices jump

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
    return [x.value, x.value.scaled(math.inf)]


def _softmax(call: Call) -> float:
    return 0.5 if call.argument(1, "dim", 0) % call.output.dim() else _mixing()


def _log_softmax(call: Call) -> float:
    dim = call.argument(1, "dim", 0) % call.output.dim()
    return math.sqrt(call.output.shape[dim]) if dim else _mixing()


def _mixing() -> float:
    raise NoBound("It combines the samples of the batch.", "Name another axis.")


def _cumsum(call: Call) -> float:
    dim = call.argument(1, "dim") % call.output.dim()
    return 1 / (2 * math.sin(math.pi / (4 * call.output.shape[dim] + 2))) if dim else _mixing()


def batch_norm(call: Call) -> Value:
    """In eval: max |γ|/√(Var + ε)."""
    if call.func is not torch.nn.functional.batch_norm:
        raise NoBound("Only torch.nn.functional.batch_norm is known.", "Use nn.BatchNorm in eval, or BatchCentering.")
    if call.argument(5, "training", False):
        raise NoBound(
            "BatchNorm in training divides by the deviation of the batch: no bound.",
            "Call model.eval(), or use BatchCentering.",
        )
    variance, gamma = call.argument(2, "running_var"), call.argument(3, "weight")
    scale = (variance.detach().double() + call.argument(7, "eps", 1e-5)).rsqrt()
    scale = scale if gamma is None else scale * gamma.detach().double().abs()
    return call.args[0].value.scaled(float(scale.max()) * (1 + 1e-12))


_PHI = 0.5 * (1 + math.erf(1.0)) + math.sqrt(2) * math.exp(-1.0) / math.sqrt(2 * math.pi)  # GELU is steepest at √2
_ALIASES = {
    "concat": "cat", "concatenate": "cat", "hstack": "cat", "column_stack": "cat", "vstack": "cat", "swapaxes": "transpose",
    "swapdims": "transpose", "moveaxis": "movedim", "absolute": "abs", "negative": "neg", "true_divide": "div",
    "divide": "div", "multiply": "mul", "subtract": "sub", "clip": "clamp", "special_expit": "sigmoid",
    "special_softmax": "softmax", "__matmul__": "matmul", "linalg_vector_norm": "vector_norm", "__rpow__": "exp",
}  # fmt: skip
ONE = scaled(1.0)
RULES: dict[str, Rule] = {
    **dict.fromkeys("flatten reshape view unflatten squeeze unsqueeze view_as reshape_as ravel".split(), rearranged),
    **dict.fromkeys("pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle".split(), rearranged),
    **dict.fromkeys("permute transpose movedim T mT".split(), permuted),
    **dict.fromkeys("roll flip fliplr".split(), rolled),
    **dict.fromkeys("contiguous clone detach to float double half bfloat16 type type_as".split(), ONE),
    **dict.fromkeys("cpu cuda data real positive pos".split(), ONE),
    **dict.fromkeys("relu relu6 tanh logsigmoid log_sigmoid softsign tanhshrink hardtanh softshrink".split(), ONE),
    **dict.fromkeys("abs neg sin cos atan arctan asinh arcsinh clamp clamp_min clamp_max".split(), ONE),
    "erf": scaled(2 / math.sqrt(math.pi)),
    "leaky_relu": scaled(lambda c: _slopes(c, 1, "negative_slope", 0.01)),
    "prelu": scaled(lambda c: _slopes(c, 1, "weight", 0.25)),
    "elu": scaled(lambda c: _slopes(c, 1, "alpha", 1.0)),
    "celu": ONE,
    "softplus": scaled(_softplus),
    "sigmoid": scaled(0.25),
    "hardsigmoid": scaled(1 / 6 * (1 + 1e-15)),
    "gelu": scaled(lambda c: 1.128994 if c.argument(1, "approximate", "none") == "tanh" else _PHI * (1 + 1e-15)),
    "silu": scaled(1.0998396),
    "mish": scaled(1.0884983),
    "selu": scaled(1.7580994),
    "hardswish": scaled(1.5),
    "softmax": scaled(_softmax),
    "log_softmax": scaled(_log_softmax),
    "cumsum": scaled(_cumsum),
    "pow": scaled(_power),
    **dict.fromkeys("dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout".split(), scaled(_dropout)),
    **dict.fromkeys("add sub radd rsub iadd isub".split(), summed),
    **dict.fromkeys("mul rmul imul".split(), multiplied),
    **dict.fromkeys("div truediv itruediv idiv".split(), divided),
    **dict.fromkeys("maximum minimum fmax fmin hypot".split(), largest_of_two),
    "where": chosen,
    "masked_fill": masked,
    **dict.fromkeys("cat stack".split(), joined),
    **dict.fromkeys("split split_with_sizes chunk tensor_split unbind".split(), cut),
    **dict.fromkeys("narrow select".split(), narrowed),
    "getitem": indexed,
    "index_select": selected,
    **dict.fromkeys("expand expand_as repeat repeat_interleave tile".split(), expanded),
    "mean": reduced(lambda count: 1 / math.sqrt(count)),
    "sum": reduced(math.sqrt),
    **dict.fromkeys("max min".split(), extreme),
    **dict.fromkeys("amax amin logsumexp".split(), reduced(lambda count: 1.0)),
    **dict.fromkeys("norm vector_norm".split(), normed),
    **dict.fromkeys("sort topk".split(), ordered),
    "batch_norm": batch_norm,
    **linear_rules.RULES,
    **pooling_rules.RULES,
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
    "einsum": ("Contractions are not followed.", "Use matmul or F.linear with a constant matrix."),
    "bmm": ("The product of two values is not Lipschitz.", "Use OrthoLinear."),
}  # fmt: skip
