"""Reductions over axes, sorting, softmax and cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rounding import ULPS
from orthogonium.certification.rules.call import Call, Jump, NoBound, scaled
from orthogonium.certification.tracked import Tracked

aten = torch.ops.aten
_INDICES = Jump("Indices jump from integer to integer.", "Use the values only.")


def _axes(call: Call, x: Tracked) -> list[int]:
    """The axes an operator reduces; all of them if it names none."""
    dim = call.given.get("dim")
    dims = max(x.dim(), 1)
    if dim is None or dim == []:
        return list(range(x.dim()))
    return [d % dims for d in (dim if isinstance(dim, (list, tuple)) else [dim])]


def reduced(
    factor: Callable[[Call, int], float],
    ulps: Callable[[int], float] = lambda n: 0.0,
    power: Callable[[Call], float] = lambda c: 1.0,
) -> Any:
    """A reduction with a constant that depends on the number of entries; `power` is that of intermediate numbers."""

    def rule(call: Call) -> Any:
        x = call.operand()
        axes = _axes(call, x)
        count = math.prod(x.shape[a] for a in axes) if x.dim() else 1
        owner = call.together(x, axes)
        keeps = call.given.get("keepdim", False)
        if owner is not None and not keeps and owner.dim():
            owner = owner.squeeze(tuple(axes)) if axes else owner
        if not call.first_output.is_floating_point():
            return Jump("Its output jumps from integer to integer.", "Keep values in floating point.")
        read = ulps(count) * math.sqrt(count) if ulps(count) else 0.0
        local = call.rounded(ulps(count), read, max(math.sqrt(count), 1.0), power(call))
        constant = factor(call, count)
        if ulps(count) and math.isfinite(constant):
            local = call.summed(count, constant, local)
        effect = scaled(call, x, constant, owner, local, origin=Reduced(call, x, axes, bool(keeps)))
        return effect if isinstance(call.output, Tensor) else [effect, *[_INDICES] * (len(call.output) - 1)]

    return rule


class Reduced:
    """A reduction of x over axes: the origin of a base."""

    def __init__(self, call: Call, x: Tracked, axes: list[int], keepdim: bool) -> None:
        self.func, self.codes, self.axes, self.keepdim, self.settings = (
            call.func,
            x.codes.clone(),
            axes,
            keepdim,
            call.settings,
        )


def _given_order(call: Call) -> float:
    given = call["ord" if "ord" in call.given else "p"]
    return 2.0 if given is None else float(given)


def _norm(call: Call, count: int) -> float:
    order = _given_order(call)
    if order == -math.inf:
        return 1.0
    if order < 1:
        raise NoBound("Norms of order below 1 are not Lipschitz.", "Use an order of at least 1.")
    return max(1.0, count ** (1 / order - 0.5)) * (1 + 1e-15)


def _deviation(call: Call, count: int) -> float:
    correction = 1.0 if call["correction"] is None else float(call["correction"])
    if count <= correction:
        raise NoBound("The deviation of so few entries is NaN.", "Use correction=0.")
    return 1 / math.sqrt(count - correction) * (1 + 1e-15)


def along(factor: Callable[[Call, int], float], ulps: Callable[[int], float] = lambda n: 0.0) -> Any:
    """A function along one axis that keeps it, or picks from it; further outputs are indices."""

    def rule(call: Call) -> Any:
        x = call.operand()
        axis = call["dim"] % max(x.dim(), 1)
        owner = call.together(x, [axis])
        count = x.shape[axis] if x.dim() else 1
        effect = scaled(call, x, factor(call, count), owner, call.rounded(ulps(count), ulps(count)))
        return effect if isinstance(call.output, Tensor) else [effect, *[_INDICES] * (len(call.output) - 1)]

    return rule


def _sorted(call: Call, count: int) -> float:
    if not call.given.get("sorted", True) and call["k"] != 1:
        raise NoBound("topk(sorted=False) gives its values in any order, which jumps.", "Leave out sorted=False.")
    return 1.0


def _picked(call: Call) -> Any:
    """`kthvalue` and `median` along an axis: an order statistic."""
    return reduced(lambda c, n: 1.0)(call)


def _order(call: Call) -> float:
    """The exponent of a norm; the maximum norm takes no powers."""
    order = _given_order(call)
    return order if 1 <= order < math.inf else 1.0


def _both_extremes(call: Call) -> Any:
    """`aminmax`: two reductions."""
    least, _ = reduced(lambda c, n: 1.0)(call)
    return [least, least]


def _softmax(call: Call, count: int) -> float:
    return 0.5 if count > 1 else 0.0


def _cumulated(n: int) -> float:
    """Norm of the triangular matrix of ones."""
    return 1 / (2 * math.sin(math.pi / (4 * n + 2))) * _UPWARDS if n else 0.0


_SUMS = [aten.sum.default, aten.sum.dim_IntList]
_MEANS = [aten.mean.default, aten.mean.dim]
_EXTREMES = [aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.max.dim, aten.min.dim]
_NORMS = [aten.linalg_vector_norm.default, aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype]
_UPWARDS = 1 + 1e-15
RULES: dict[Any, Any] = {
    **dict.fromkeys(_SUMS, reduced(lambda c, n: math.sqrt(n) * (_UPWARDS if n > 1 else 1), float)),
    **dict.fromkeys(
        _MEANS,
        reduced(lambda c, n: 1 / math.sqrt(n) * (_UPWARDS if n > 1 else 1) if n else math.inf, lambda n: 1.0 + n),
    ),
    **dict.fromkeys(_EXTREMES, reduced(lambda c, n: 1.0)),
    aten.logsumexp.default: reduced(lambda c, n: 1.0, lambda n: ULPS + n),
    **dict.fromkeys(_NORMS, reduced(_norm, lambda n: ULPS + n, _order)),
    aten.std.correction: reduced(_deviation, lambda n: ULPS + 2 * n, lambda c: 2.0),
    **dict.fromkeys(
        [aten.median.dim, aten.kthvalue.default, aten.median.default, aten.nanmedian.dim, aten.nanmedian.default],
        _picked,
    ),
    **dict.fromkeys([aten.sort.default, aten.sort.stable], along(lambda c, n: 1.0)),
    aten.topk.default: along(_sorted),
    **dict.fromkeys([aten._softmax.default, aten._safe_softmax.default], along(_softmax, lambda n: 2 * ULPS + n)),
    aten._log_softmax.default: along(lambda c, n: math.sqrt(n) * _UPWARDS if n > 1 else 0.0, lambda n: 2 * ULPS + n),
    aten.cumsum.default: along(lambda c, n: _cumulated(n), lambda n: n * _cumulated(n)),
    aten.logcumsumexp.default: along(lambda c, n: math.sqrt(n) * _UPWARDS, lambda n: 64.0 + n),
    aten.aminmax.default: lambda call: _both_extremes(call),
    **dict.fromkeys([aten.cummax.default, aten.cummin.default], along(lambda c, n: math.sqrt(n) * _UPWARDS)),
}
