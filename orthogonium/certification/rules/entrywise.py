"""Entrywise functions of one value: the range of their slopes, and of sums and products with constants.

A function with slopes in [low, high] has the constant max(−low, high). Ranges matter where one of our blocks calls an
activation (`rules/wholes.py`): its proof needs their sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.certification.rounding import ULPS
from orthogonium.certification.rules.call import Call, Jump, NoBound, scaled
from orthogonium.certification.tracked import Tracked
from orthogonium.layers.slopes import softplus_jumps

aten = torch.ops.aten
Slopes = tuple[float, float]

_PHI = 0.5 * (1 + math.erf(1.0)) + math.sqrt(2) * math.exp(-1.0) / math.sqrt(2 * math.pi)  # GELU is steepest at ±√2
_GELU = _PHI * (1 + 1e-15)
_JUMPS = ("It jumps: no Lipschitz constant.", "Use clamp, maximum or an activation.")


# Older versions of torch (such as 2.6) subtract 1 from an exponential, and lose digits near 0.
_NEXT_TO_ZERO = torch.full((16,), -1e-9, dtype=torch.float64)
ELU_IS_EXACT = torch.allclose(nn.functional.elu(_NEXT_TO_ZERO), torch.expm1(_NEXT_TO_ZERO), rtol=1e-15, atol=0)


def _number(call: Call, name: str) -> float:
    value = call.constant(name)
    return float(value)


def _leaky(call: Call) -> Slopes:
    slope = _number(call, "negative_slope")
    return min(slope, 1.0), max(slope, 1.0)


def _prelu(call: Call) -> Slopes:
    weight = call.constant("weight").detach().double()
    return min(float(weight.min()), 1.0), max(float(weight.max()), 1.0)


def _check_elu() -> None:
    if not ELU_IS_EXACT:
        raise NoBound(
            "The ELU of this version of torch loses digits next to 0.", "Use a newer torch, or another activation."
        )


def _elu(call: Call) -> Slopes:
    """`scale·x` above 0, `scale·alpha·(exp(input_scale·x) − 1)` below."""
    _check_elu()
    alpha, scale, inner = (_number(call, name) for name in ("alpha", "scale", "input_scale"))
    if inner < 0:
        raise NoBound("ELU with a negative inner scale grows exponentially.", "Use a positive one.")
    ends = [scale, scale * alpha * inner, 0.0]
    return min(ends), max(ends)


def _celu(call: Call) -> Slopes:
    _check_elu()
    if not _number(call, "alpha") > 0:
        raise NoBound("CELU with alpha < 0 grows exponentially.", "Use alpha > 0.")
    return 0.0, 1.0


def _softplus(call: Call) -> Slopes:
    beta, threshold = _number(call, "beta"), _number(call, "threshold")
    if beta <= 0 or softplus_jumps(threshold, call.output.dtype):
        raise NoBound(
            f"Softplus jumps at its threshold of {threshold:g} by more than the rounding of {call.output.dtype}.",
            "Use a larger threshold: 20 for float32, 40 for float64.",
        )
    return 0.0, 1.0


def _threshold(call: Call) -> Slopes:
    if _number(call, "threshold") != _number(call, "value"):
        raise NoBound("It jumps unless value = threshold.", "Use nn.ReLU, or value = threshold.")
    return 0.0, 1.0


def _softshrink(call: Call) -> Slopes:
    if _number(call, "lambd") < 0:
        raise NoBound("Softshrink with lambd < 0 jumps.", "Use lambd ≥ 0.")
    return 0.0, 1.0


def _power(call: Call) -> Slopes:
    if _number(call, "exponent") == 1:
        return 1.0, 1.0
    raise NoBound(
        "Powers are not Lipschitz.", "Use an activation with bounded slopes; roots of sums of squares are known."
    )


def _clamped(call: Call) -> Slopes:
    return 0.0, 1.0


def _rrelu(call: Call) -> Slopes:
    if call["training"]:
        raise NoBound("Its slope is random.", "Call model.eval() first.")
    slope = (_number(call, "lower") + _number(call, "upper")) / 2
    return min(slope, 1.0), max(slope, 1.0)


def fixed(low: float, high: float) -> Callable[[Call], Slopes]:
    """Slopes that depend on no argument."""
    return lambda call: (low, high)


# operator → slopes, and units in the last place of its result (0 for functions that only choose)
SLOPES: dict[Any, tuple[Callable[[Call], Slopes], float]] = {
    **dict.fromkeys(
        [aten.relu.default, aten.hardtanh.default, aten.clamp_min.default, aten.clamp_max.default], (_clamped, 0.0)
    ),
    aten.clamp.default: (_clamped, 0.0),
    aten.abs.default: (fixed(-1.0, 1.0), 0.0),
    aten.neg.default: (fixed(-1.0, -1.0), 0.0),
    aten.positive.default: (fixed(1.0, 1.0), 0.0),
    aten.leaky_relu.default: (_leaky, 1.0),
    aten._prelu_kernel.default: (_prelu, 1.0),
    aten.rrelu_with_noise.default: (_rrelu, 1.0),
    aten.elu.default: (_elu, ULPS),
    aten.celu.default: (_celu, ULPS),
    aten.softplus.default: (_softplus, ULPS),
    aten.threshold.default: (_threshold, 0.0),
    aten.softshrink.default: (_softshrink, 1.0),
    aten.pow.Tensor_Scalar: (_power, 0.0),
    aten.tanh.default: (fixed(0.0, 1.0), ULPS),
    aten.sigmoid.default: (fixed(0.0, 0.25), ULPS),
    aten.log_sigmoid_forward.default: (fixed(0.0, 1.0), ULPS),
    aten.atan.default: (fixed(0.0, 1.0), ULPS),
    aten.asinh.default: (fixed(0.0, 1.0), ULPS),
    aten.sin.default: (fixed(-1.0, 1.0), ULPS),
    aten.cos.default: (fixed(-1.0, 1.0), ULPS),
    aten.sinc.default: (fixed(-1.3704, 1.3704), ULPS),  # π times the steepest of sin(t)/t
    aten.erf.default: (fixed(0.0, 2 / math.sqrt(math.pi) * (1 + 1e-15)), ULPS),
    aten.erfc.default: (fixed(-2 / math.sqrt(math.pi) * (1 + 1e-15), 0.0), ULPS),
    aten.hardsigmoid.default: (fixed(0.0, 0.16666668), 4.0),  # torch multiplies by 1/6 in float32
    aten.gelu.default: (
        lambda c: (-0.129005, 1.129005) if c["approximate"] == "tanh" else (1 - _GELU, _GELU),
        ULPS,
    ),
    aten.silu.default: (fixed(-0.09984, 1.09984), ULPS),
    aten.mish.default: (fixed(-0.112527, 1.0884984), ULPS),
    aten.hardswish.default: (fixed(-0.5, 1.5), 4.0),
    aten.logit.default: (lambda c: _logit(c), ULPS),
}


# Absolute errors near 0, however small the value: approximations 1 − p(t)e^(−x²), good to 1.5e-7 and a few roundings.
_APART = {aten.erf.default: 5e-7, aten.erfc.default: 5e-7}
# Intermediate numbers that are larger than the argument: x·(x + 3)/6, and πx.
_INSIDE = {aten.hardswish.default: 6.0, aten.sinc.default: math.pi}


def _logit(call: Call) -> Slopes:
    eps = call["eps"]
    low = torch.tensor(0.0 if eps is None else eps, dtype=call.output.dtype)  # as it is rounded
    ends = [float(low), float(1 - low)]
    if not 0 < ends[0] <= ends[1] < 1:
        raise NoBound(
            f"logit has infinite slopes at 0 and 1, and eps={eps} is no distance from 1 in {call.output.dtype}.",
            f"Give it an eps of at least {torch.finfo(call.output.dtype).eps:.1e}.",
        )
    return 0.0, max(1 / (z * (1 - z)) for z in ends)


def slopes_of(call: Call) -> Slopes:
    """The range of slopes of a call in the table; constants and NaN are refused."""
    low, high = SLOPES[call.func][0](call)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise NoBound("Its slopes are infinite or NaN.", "Check its arguments and parameters.")
    slack = 1 + torch.finfo(call.first_output.dtype).eps  # arguments are rounded to the dtype
    return tuple(end if end in (-1.0, 0.0, 1.0) else end * slack for end in (low, high))  # type: ignore[return-value]


def sloped(call: Call) -> Any:
    """A function with a range of slopes."""
    x = call.operand()
    low, high = slopes_of(call)
    ulps, apart = SLOPES[call.func][1], _APART.get(call.func, 0.0)
    local = call.rounded(ulps, ulps, _INSIDE.get(call.func, 1.0))
    if apart and call.first_output.dtype != torch.float64:
        local = replace(local, lost=apart * math.sqrt(call.first_output.numel()))
    origin = Sloped(call.func, x, (low, high), call.settings)
    effect = scaled(call, x, max(-low, high), call.together(x, ()), local, origin=origin)
    if isinstance(call.output, Tensor):
        return effect
    return [effect, *[Jump("It is a by-product.", "Use the first output.") for _ in call.output[1:]]]


class Sloped:
    """`out = f(x)`, entry by entry, with slopes of f in a range: the origin of a base."""

    def __init__(self, func: Any, x: Tracked, slopes: Slopes, settings: dict[str, Any] | None = None) -> None:
        self.func, self.codes, self.slopes, self.settings = func, x.codes.clone(), slopes, settings or {}


class Compared:
    """`x > c` and the like."""

    def __init__(self, codes: Tensor, at: Tensor) -> None:
        self.codes, self.at = codes, at


def compared(call: Call) -> Jump:
    """A comparison of a value with a constant, which `where` may be able to use."""
    x, c = call["self"], call["other"]
    if not (isinstance(x, Tracked) and not x.constant) or len(call.operands) > 1:
        return Jump(*_JUMPS)
    at = c.value if isinstance(c, Tracked) else c
    at = (
        at.detach().to("cpu", torch.float64, copy=True)
        if isinstance(at, Tensor)
        else torch.tensor(at, dtype=torch.float64)
    )
    return Jump(*_JUMPS, Compared(x.codes.expand(call.output.shape).clone(), at.expand(call.output.shape)))


def jump(call: Call) -> Any:
    """Comparisons, rounding, signs."""
    jumps = Jump(*_JUMPS)
    return jumps if isinstance(call.output, Tensor) else [jumps for _ in call.output]


_COMPARISONS = [
    getattr(getattr(aten, name), kind) for name in ("gt", "ge", "lt", "le", "eq", "ne") for kind in ("Scalar", "Tensor")
]
JUMPS = [
    aten.sign.default, aten.round.default, aten.round.decimals, aten.floor.default, aten.ceil.default,
    aten.trunc.default, aten.argmax.default, aten.argmin.default, aten.argsort.default, aten.argsort.stable,
    aten.heaviside.default, aten.bucketize.Tensor, aten.isnan.default, aten.isinf.default, aten.logical_not.default,
    aten.logical_and.default, aten.logical_or.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor,
    aten.bitwise_not.default, aten.signbit.default, aten.searchsorted.Tensor, aten.sgn.default,
    aten.any.default, aten.any.dim, aten.all.default, aten.all.dim, aten.isfinite.default,
]  # fmt: skip
RULES: dict[Any, Any] = {
    **dict.fromkeys(SLOPES, sloped),
    **dict.fromkeys(JUMPS, jump),
    **dict.fromkeys(_COMPARISONS, compared),
}
