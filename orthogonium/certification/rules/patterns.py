"""Functions written as several operators, each of which alone has no bound or a larger one.

Patterns are recognized by values: sources show whether the entries that meet are those of one tensor.

Note [Energies] Sums of squares are not Lipschitz, but their roots are: with `e_i = Σ_j m_ij x_j² + c_i`, m, c ≥ 0,
each `√e_i` is a norm of a vector, so `Σ_i (√e_i(x) − √e_i(y))² ≤ Σ_j (Σ_i m_ij)(x_j − y_j)²`. An *energy* is such a
tensor with the form of its root. It stays one under sums, averages, positive factors and maxima with constants. This
covers norms, L2 and lp (p = 2) pooling, root mean squares and √(1 + x²), however they are written.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rounding import ULPS, underflow, unit_roundoff
from orthogonium.certification.rules.arithmetic import Scale
from orthogonium.certification.rules.call import Call, Effect, Jump, NoBound, is_value
from orthogonium.certification.rules.entrywise import Compared, Sloped
from orthogonium.certification.rules.pooling import averages
from orthogonium.certification.rules.reductions import Reduced
from orthogonium.certification.sources import codes_of, form_of, numel, whole_base
from orthogonium.certification.tracked import Tracked
from orthogonium.certification.values import Form, largest

aten = torch.ops.aten
_SQUARES = ("Squares are not Lipschitz.", "Use abs; roots of sums of squares are known.")


class Energy:
    """Note [Energies]: the form of the root, and how far the computed energy may be from the exact one of its operands.

    Attributes:
        form: form of the root.
        roundings: relative error, in units of the last place.
        lost: absolute error of an entry due to underflow.
    """

    def __init__(self, form: Form, roundings: float, lost: float) -> None:
        self.form, self.roundings, self.lost = form, roundings, lost


class Sign:
    """The sign of an energy."""

    def __init__(self, energy: Energy) -> None:
        self.energy = energy


def _inner(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return (x.value if isinstance(x, Tracked) else x).detach().to("cpu", torch.float64)
    return torch.tensor(x, dtype=torch.float64)


def _same(x: Any, codes: Tensor) -> bool:
    return is_value(x) and x.shape == codes.shape and torch.equal(x.codes, codes) and bool((codes > 0).all())


def _origin(x: Any, kind: type) -> Any:
    """What computed the whole of `x`, if it is of this kind."""
    base = x.whole if is_value(x) else None
    if base is None or tuple(base.shape) != tuple(x.shape) or tuple(base.stride) != x.value.stride():
        return None
    return base.origin if isinstance(base.origin, kind) else None


def recognized(call: Call, rule: Any) -> Any:
    """What is known of a call from the operators before it; None if nothing."""
    for pattern in _PATTERNS.get(call.func, ()):
        found = pattern(call)
        if found is not None:
            return found
    operands = call.operands
    if call.func in _KEEP_ENERGY and all(_energy_of(x) is not None for x in operands):
        return _kept(call, rule)
    return None


# ── energies ──


def _energy_of(x: Any) -> Energy | None:
    """The energy that makes up a tensor."""
    if not is_value(x):
        return None
    base = x.whole
    if base is not None:
        return base.origin if isinstance(base.origin, Energy) else None
    used = x.used()
    if not all(isinstance(b.origin, Energy) for b in used) or bool((_inner(x)[x.codes <= 0] < 0).any()):
        return None
    form = Form()
    for base, w in x.form().items():
        form = form.plus(base.origin.form.scaled(largest(w)))
    parts = [base.origin for base in used]
    return Energy(form, max((e.roundings for e in parts), default=0.0), max((e.lost for e in parts), default=0.0))


def _in_order(x: Tracked) -> bool:
    """Whether a tensor has the entries of one base, in the order in which that was computed."""
    base = x.whole
    return base is not None and torch.equal(x.codes.reshape(-1), codes_of(base).reshape(-1))


def _squared(call: Call) -> Jump | None:
    """`x²` and `x·x`."""
    x = call["self"]
    if call.func is aten.pow.Tensor_Scalar:
        if call["exponent"] != 2 or not is_value(x) or _energy_of(x) is not None:
            return None
        form = x.form()
    else:
        other = call["other"]
        if not (is_value(x) and is_value(other)) or x.shape != other.shape or not torch.equal(x.codes, other.codes):
            return None
        if bool((x.codes <= 0).any()) and not torch.equal(_inner(x), _inner(other)):
            return None
        form = x.form()
    return Jump(*_SQUARES, Energy(form, 1.0, underflow(call.output.dtype)), call.merged(x), form)


def _kept(call: Call, rule: Any) -> Any:
    """An energy computed from energies."""
    name, operands = call.func, call.operands
    energies = [_energy_of(x) for x in operands]
    first = energies[0]
    assert first is not None
    tiny = underflow(call.output.dtype)
    if name in _SAME:
        low = 0.0
        if name in (aten.clamp.default, aten.clamp_min.default):
            low, high = call["min"], call.given.get("max")
            if high is not None or low is None or low < 0:
                return None
        # The same one only if its entries stay what and where they are: `sign(e)·max(e, c)` and `sign(e)·eᵀ` jump.
        same = low == 0 and _in_order(operands[0])
        energy = first if same else Energy(first.form, first.roundings, first.lost)
    elif name in (aten.add.Tensor, aten.add.Scalar):
        alpha = call.given.get("alpha")
        if alpha is not None and alpha < 0:
            return None
        form, roundings, lost = Form(), 0.0, 0.0
        for argument, factor in (("self", 1.0), ("other", 1.0 if alpha is None else float(alpha))):
            value = call[argument]
            if is_value(value):
                own = _energy_of(value)
                assert own is not None
                copies = call.output.numel() / max(value.numel(), 1)
                form = form.plus(own.form.scaled(copies * factor))
                roundings, lost = max(roundings, own.roundings), lost + factor * own.lost
            elif bool((_inner(value) < 0).any()) or not bool(_inner(value).isfinite().all()):
                return None
        energy = Energy(form, roundings + 2, lost + tiny)
    elif name in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
        value, c = (call["self"], call["other"]) if is_value(call["self"]) else (call["other"], call["self"])
        if is_value(c) or (value is not call["self"] and "div" in call.name):
            return None
        factors = _inner(c) if "mul" in call.name else 1 / _inner(c)
        if not bool((factors >= 0).all()) or not bool(factors.isfinite().all()):
            return None
        copies = call.output.numel() / max(value.numel(), 1)
        factor = float(factors.max()) * (1 + 1e-15)
        energy = Energy(first.form.scaled(copies * factor), first.roundings + 1, factor * first.lost + tiny)
    else:
        weight = _largest_column(call, operands[0])
        if weight is None:
            return None
        count = operands[0].numel() // call.walk.batch  # terms of a sum, at most
        energy = Energy(first.form.scaled(weight), first.roundings + count + 1, count * first.lost + tiny)
    effects = rule(call)
    effect = effects if isinstance(effects, Effect) else effects[0]
    return Jump(*_SQUARES, energy, effect.owner, energy.form)


def _largest_column(call: Call, x: Tracked) -> float | None:
    """The largest total weight of an entry in a sum or average of positive numbers; None if a weight is negative."""
    if call.func in (aten.sum.dim_IntList, aten.sum.default):
        return 1.0
    if call.func in (aten.mean.dim, aten.mean.default):
        return call.output.numel() / max(x.numel(), 1) * (1 + 1e-15)
    matrices = averages(call, x)
    if any(bool((matrix < 0).any()) for matrix in matrices):
        return None
    return math.prod(float(matrix.sum(1).max()) * (1 + 1e-12) for matrix in matrices)


def _root(call: Call) -> Effect | None:
    """`√e`."""
    if call.func is aten.pow.Tensor_Scalar and call["exponent"] != 0.5:
        return None
    energy = _energy_of(call["self"])
    if energy is None:
        return None
    unit = unit_roundoff(call.output.dtype)
    own = energy.roundings * unit
    relative = math.inf if own >= 1 else own / (1 - own)  # error of the energy; its root halves it
    lost = math.sqrt(energy.lost * call.output.numel())
    local = replace(call.rounded(power=2.0), written=relative + ULPS * unit, lost=lost)
    return Effect((energy.form,), call.merged(call["self"]), local)


def _sign(call: Call) -> Jump | None:
    energy = _energy_of(call["self"])
    if energy is None or not _in_order(call["self"]):
        return None
    return Jump(*_SQUARES, Sign(energy), call.merged(call["self"]))


def _signed(call: Call) -> Jump | None:
    """`sign(e)·e = e`."""
    for a, b in ((call["self"], call["other"]), (call["other"], call["self"])):
        sign, energy = _origin(a, Sign), _origin(b, Energy)
        if sign is not None and sign.energy is energy and a.shape == b.shape:
            return Jump(*_SQUARES, energy, call.merged(a, b), energy.form)
    return None


# ── differences and quotients ──


def _centered(call: Call) -> Effect | None:
    """`x − mean(x)` over axes: an orthogonal projection."""
    x, y, alpha = call["self"], call["other"], call.given.get("alpha", 1)
    mean = _origin(y, Reduced)
    if mean is None or alpha != 1 or mean.func is not aten.mean.dim or not mean.keepdim or not _same(x, mean.codes):
        return None
    count = mean.codes.numel() / max(y.numel(), 1)  # entries in a mean, whose rounding counts here
    local = call.summed(int(count), 1.0, call.rounded(2.0, count + 4.0))
    return Effect((x.form(),), call.merged(x, y), local)


def _shrunk(call: Call) -> Effect | None:
    """`x − f(x)` with slopes of f in [a, b]: slopes in [1 − b, 1 − a]."""
    x, y, alpha = call["self"], call["other"], call.given.get("alpha", 1)
    f = _origin(y, Sloped)
    if f is None or alpha != 1 or not _same(x, f.codes):
        return None
    slopes = 1 - f.slopes[1], 1 - f.slopes[0]
    factor = max(-slopes[0], slopes[1]) * (1 + 1e-15)
    origin = Sloped(call.func, x, slopes)
    carried = (x.form(), 1.0), (y.form(), 1.0)
    return Effect((x.form().scaled(factor**2),), call.merged(x, y), call.rounded(2.0, 2.0), origin, carried=carried)


def _softsign(call: Call) -> Effect | None:
    """`x/(c + |x|)`: slopes in [0, 1/c]."""
    x, below = call["self"], _origin(call["other"], Scale)
    if below is None or not is_value(x) or float(below.coefficient.min()) != 1 or float(below.coefficient.max()) != 1:
        return None
    base = whole_base(below.codes, call.walk.bases)
    absolute = base.origin if base is not None else None
    if not isinstance(absolute, Sloped) or absolute.func is not aten.abs.default or not _same(x, absolute.codes):
        return None
    low = float(below.shift.min())
    if not low > 0:
        return None
    steepest = 1 / low * (1 + 1e-15)
    origin = Sloped(call.func, x, (0.0, steepest))
    return Effect((x.form().scaled(steepest**2),), call.merged(x), call.rounded(4.0), origin)


def _projected(call: Call) -> Effect | None:
    """`x/max(c, ‖x‖)`: the projection onto a ball, divided by its radius c."""
    x, y = call["self"], call["other"]
    if not (is_value(x) and is_value(y)) or x.shape != call.output.shape or y.value.dim() != x.value.dim():
        return None
    base = y.used()[0] if len(y.used()) == 1 else None
    clamp = base.origin if base is not None and isinstance(base.origin, Sloped) else None
    if clamp is None or clamp.func not in (aten.clamp_min.default, aten.clamp.default) or base is None:
        return None
    norm_base = whole_base(clamp.codes, call.walk.bases)
    norm = None if norm_base is None else norm_base.origin
    if not isinstance(norm, Reduced) or norm.func is not aten.linalg_vector_norm.default or not norm.keepdim:
        return None
    if (
        not _same(x, norm.codes)
        or not torch.equal(y.codes, codes_of(base).expand(y.shape))
        or norm.settings["ord"] != 2
    ):
        return None
    least = float(clamp.settings["min"] or 0)
    if not least > 0 or clamp.settings.get("max") is not None:
        return None
    if least < 1e-6:
        raise NoBound(
            f"Division by a norm that may be as small as {least:g} has the constant {1 / least:g}.",
            "Clamp at a larger number: F.normalize(x, eps=1.0) has the constant 1.",
        )
    count = norm.codes.numel() / max(numel(base), 1)  # terms of a norm, whose rounding counts here
    return Effect((x.form().scaled((1 / least * (1 + 1e-15)) ** 2),), call.merged(x, y), call.rounded(2 * ULPS + count))


# ── choices ──


def _chosen(call: Call) -> Effect | None:
    """`where(x > c, a, b)` of pieces that are affine in x and meet at c."""
    condition = call["condition"]
    if not is_value(condition):
        return None
    test = _origin(condition, Compared)
    if test is None:
        raise NoBound("A choice by values may jump.", "Use maximum, clamp or an activation.")
    shape = call.output.shape
    codes, at = test.codes.expand(shape), test.at.expand(shape)
    pieces = [_affine(call[name], codes, shape) for name in ("self", "other")]
    if any(piece is None for piece in pieces):
        raise NoBound("A choice by values may jump.", "Use maximum, clamp or an activation.")
    (a, b), (c, d) = pieces  # type: ignore[misc]
    if bool(((a - c) * at + b - d != 0).any()):
        raise NoBound(
            "Its two pieces do not meet where the choice is made: it jumps.", "Use pieces that meet, or clamp."
        )
    slopes = torch.maximum(a.abs(), c.abs())
    form = form_of(codes, call.walk.bases, slopes.square())
    owner = call.merged(*call.operands)
    carried = tuple((call.broadcast(call[name]), 1.0) for name in ("self", "other") if is_value(call[name]))
    return Effect((form,), owner, call.rounded(1.0, 1.0), carried=carried)


def _affine(x: Any, codes: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor] | None:
    """Slope and constant of `x` as an affine function of the entries `codes`, entry by entry."""
    slope = torch.zeros(shape, dtype=torch.float64)
    if not is_value(x):
        return slope, _inner(x).expand(shape)
    slope, constant, own = slope + 1, slope, x.codes.expand(shape)
    while not torch.equal(own, codes):
        base = whole_base(own, x.walk.bases)
        if base is None or not isinstance(base.origin, Scale):
            return None
        slope, constant = slope * base.origin.coefficient, constant + slope * base.origin.shift
        own = base.origin.codes.expand(shape)
    return slope, constant


_PATTERNS: dict[Any, tuple[Any, ...]] = {
    aten.pow.Tensor_Scalar: (_squared, _root),
    aten.mul.Tensor: (_signed, _squared),
    aten.sqrt.default: (_root,),
    aten.sign.default: (_sign,),
    aten.sub.Tensor: (_centered, _shrunk),
    aten.div.Tensor: (_softsign, _projected),
    aten.where.self: (_chosen,),
}
_SAME = {aten.abs.default, aten.relu.default, aten.clamp_min.default, aten.clamp.default}
_KEEP_ENERGY = _SAME | {
    aten.add.Tensor, aten.add.Scalar, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar,
    aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default,
    aten.avg_pool2d.default, aten.avg_pool3d.default,
    aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default,
}  # fmt: skip
