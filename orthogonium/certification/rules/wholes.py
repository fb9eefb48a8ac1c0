"""Functions of ours that are bounded as a whole (Note [As a whole] of `walk.py`)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.certification.rules.call import NOT_FINITE, Effect, NoBound
from orthogonium.certification.rules.linear import Transposed, measured
from orthogonium.certification.rounding import ULPS
from orthogonium.certification.tracked import Tracked
from orthogonium.layers.activations.elementwise import absolute, concatenated_relu, n_activation
from orthogonium.layers.activations.householder import householder, householder_order_2
from orthogonium.layers.activations.sorting import group_sort, max_min, relu_max_min
from orthogonium.layers.conv.padding import unwrap

_SEVERAL = ("It depends on several values, or on one as a setting.", "Use constants for all but the input.")


def _settings(call: Any) -> None:
    """Parameters must be constants, and finite."""
    for t in call.args[1:]:
        if isinstance(t, Tracked) and not t.constant:
            raise NoBound(*_SEVERAL)
        inner = t.inner if isinstance(t, Tracked) else t
        if isinstance(inner, Tensor) and not bool(inner.isfinite().all()):
            raise NoBound(*NOT_FINITE)


def isometric(ulps: float, axis_at: int | None = None) -> Any:
    """A function with orthogonal Jacobians: permutations, reflections and rotations of the entries along an axis."""

    def rule(call: Any) -> Any:
        _settings(call)
        x = call.args[0]
        if not isinstance(x, Tracked) or x.constant:
            return NotImplemented
        axis = [] if axis_at is None else [call.args[axis_at] if len(call.args) > axis_at else 1]
        owner = call.together(x, axis)
        owner = None if owner is None else owner.expand(call.output.shape)
        step = {"kind": "guarantee", "factor": 1.0, "method": "theorem"} | _named(call)
        return Effect((x.form(),), owner, call.rounded(ulps, ulps), None, step)

    return rule


def _named(call: Any) -> dict[str, Any]:
    """The layer in the report, if it is one of ours that runs."""
    module = call.walk.module
    guarantee = getattr(module, "guarantee", None)
    if module is None or guarantee is None:
        return {}
    return {"operation": type(module).__name__.removeprefix("Parametrized"), "guarantee": str(guarantee)}


def folded(call: Any) -> Any:
    """Margins added back: the adjoint of a circular convolution, if the image is that of a transposed one."""
    x, left, right = call.args
    if not isinstance(x, Tracked) or x.constant:
        return NotImplemented
    used = x.used()
    origin = used[0].origin if len(used) == 1 else None
    if not isinstance(origin, Transposed) or any(origin.geometry["padding"]) or not _extended(x, used[0]):
        return NotImplemented
    circle = [n - a - b for n, a, b in zip(x.shape[2:], left, right, strict=True)]
    axes = list(zip(circle, origin.geometry["stride"], origin.inputs, strict=True))
    if any(n % s or m > n // s for n, s, m in axes):
        return NotImplemented
    # The norm of an operator is that of its adjoint, a convolution from the circle to the inputs of the transposed one.
    weight = origin.weight
    channels = weight.shape[1] * origin.groups
    geometry = {n: origin.geometry[n] for n in ("stride", "dilation")}
    found = measured(
        call, weight, (channels, *circle), groups=origin.groups, padding="same", padding_mode="circular", **geometry
    )
    owner = call.together(x, range(1, x.dim()))
    owner = None if owner is None else owner.expand(call.output.shape)
    factor = found.upper_bound
    step = {
        "kind": found.kind,
        "factor": factor,
        "sigma_min": found.sigma_min,
        "sigma_max": found.sigma_max,
        "stable_rank": found.stable_rank,
        "slack": factor / found.sigma_max - 1 if found.sigma_max else 0.0,
        "method": found.method,
    } | _named(call)
    local = call.rounded(2.0 ** len(circle), 2.0 ** len(circle))
    return Effect((origin.form.scaled(factor * factor * (1 + 1e-15)),), owner, local, None, step)


def _extended(x: Tracked, base: Any) -> bool:
    """Whether `x` is the whole of a base with constant zeros after it along each axis."""
    codes = x.codes
    for axis, n in enumerate(base.shape):
        if codes.shape[axis] < n:
            return False
        codes = codes.narrow(axis, 0, n)
    flat = torch.arange(math.prod(base.shape), dtype=torch.float64).as_strided(base.shape, base.stride)
    rest = x.inner[x.codes == 0]
    same = torch.equal(codes, flat + (1 + base.number * 2.0**32))
    return same and int((x.codes > 0).sum()) == codes.numel() and not bool((rest != 0).any())


WHOLES: dict[Any, Any] = {
    max_min: isometric(0.0, 1),
    relu_max_min: isometric(2.0, 1),
    group_sort: isometric(0.0, 2),
    absolute: isometric(0.0),
    concatenated_relu: isometric(0.0),
    n_activation: isometric(3.0),
    householder: isometric(2 * ULPS, 2),
    householder_order_2: isometric(2 * ULPS, 2),
    unwrap: folded,
}
