"""Our functions that are bounded as a whole (Note [As a whole] of `walk.py`)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.certification.block_constant import block_constant
from orthogonium.certification.block_kernels import NoBoundError
from orthogonium.certification.rounding import ULPS, product_roundoff, sum_roundoff, underflow, unit_roundoff
from orthogonium.certification.rules.arithmetic import Scale
from orthogonium.certification.rules.call import NOT_FINITE, Effect, Local, NoBound
from orthogonium.certification.rules.circles import on_circle
from orthogonium.certification.rules.convolutions import Transposed
from orthogonium.certification.rules.entrywise import Sloped
from orthogonium.certification.rules.measured import measured
from orthogonium.certification.sources import codes_of, whole_base
from orthogonium.certification.tracked import Tracked
from orthogonium.layers.activations.elementwise import absolute, concatenated_relu, n_activation
from orthogonium.layers.activations.householder import householder, householder_order_2
from orthogonium.layers.activations.sorting import group_sort, max_min, relu_max_min
from orthogonium.layers.attention import attention_constant, distance_attention
from orthogonium.layers.block import DenseBlock
from orthogonium.layers.conv.block import ConvBlock
from orthogonium.layers.conv.frequencies import convolve_frequencies
from orthogonium.layers.conv.padding import unwrap

_SEVERAL = ("It depends on several values, or on one as a setting.", "Use constants for all but the input.")


def _settings(call: Any) -> None:
    """Parameters must be constants, and finite."""
    for t in call.args[1:]:
        if isinstance(t, Tracked) and not t.constant:
            raise NoBound(*_SEVERAL)
        inner = t.value if isinstance(t, Tracked) else t
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
    """The layer in the report, if the running module is one of ours."""
    module = call.walk.module
    guarantee = getattr(module, "guarantee", None)
    if module is None or guarantee is None:
        return {}
    return {"operation": type(module).__name__.removeprefix("Parametrized"), "guarantee": str(guarantee)}


def attention(call: Any) -> Any:
    """Attention by distance, bounded by the theorem of Note [Attention] of `layers/attention.py`."""
    _settings(call)
    x, sharpness, step = (*call.args, 1.0)[:3]
    if not isinstance(x, Tracked) or x.constant or x.dim() != 3:
        return NotImplemented
    value = sharpness.value if isinstance(sharpness, Tracked) else sharpness
    if not bool((value >= 0).all()) or not 0 < step < math.inf:
        raise NoBound("Its sharpness or its step is negative.", "Use DistanceAttention.")
    owner = call.together(x, (1, 2))
    owner = None if owner is None else owner.expand(call.output.shape)
    factor = attention_constant(step)
    # A weight is off by a relative (channels + 3)t/2 + 4 units, and te^(-t/2) ≤ 1; tokens are summed up twice.
    factors = product_roundoff(x.dtype, x.device, False)
    unit = sum_roundoff(x.shape[1] + x.shape[2] + 16, unit_roundoff(x.dtype), factors)
    inside = 1 + 2 * step
    local = Local(2 * unit * inside, call.rounded(4.0).written, inside, unit=factors)
    step_of_report = {"kind": "guarantee", "factor": factor, "method": "theorem"} | _named(call)
    return Effect((x.form().scaled(factor**2 * (1 + 1e-15)),), owner, local, None, step_of_report)


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
    overlap = math.prod(-(-n // m) for n, m in zip(x.shape[2:], circle, strict=True))  # pixels that are added up
    carried = ((x.form(), math.sqrt(overlap)),)
    return Effect((origin.form.scaled(factor * factor * (1 + 1e-15)),), owner, local, None, step, carried)


def _extended(x: Tracked, base: Any) -> bool:
    """Whether `x` is the whole of a base with constant zeros after it along each axis."""
    codes = x.codes
    for axis, n in enumerate(base.shape):
        if codes.shape[axis] < n:
            return False
        codes = codes.narrow(axis, 0, n)
    rest = x.value[x.codes == 0]
    same = torch.equal(codes, codes_of(base))
    return same and int((x.codes > 0).sum()) == codes.numel() and not bool((rest != 0).any())


def block(call: Any) -> Any:
    """One of our blocks, bounded from the kernels it holds and the slopes of the activation it calls."""
    layer, x = call.args
    if not isinstance(x, Tracked) or x.constant:
        return NotImplemented
    dense = isinstance(layer, DenseBlock)
    if not dense and x.dim() != layer.dims + 2:
        return NotImplemented
    if not all(bool(t.isfinite().all()) for t in layer.parameters()):
        raise NoBound(*NOT_FINITE)
    inner = _inner_shape(layer, x)
    slopes = _slopes(call.walk, layer.activation, inner, x)
    try:
        found = block_constant(layer, tuple(x.shape[1:]), slopes)
    except NoBoundError as error:
        raise NoBound(str(error), "Look for diverged training, or for who changed the block.") from error
    owner = call.together(x, [x.dim() - 1] if dense else range(1, x.dim()))
    owner = None if owner is None else owner.expand(call.output.shape)
    step = {"kind": "upper", "factor": found.value, "sigma_max": found.value, "method": found.method} | _named(call)
    if found.value > layer.guarantee.constant * (1 + 1e-4):
        step["warnings"] = (
            f"Its guarantee is broken: from its kernels and activation it is {found.value:.6g}-Lipschitz at most.",
        )
    # Both products of the branch, their rounding by absolute values.
    a, c, *skip = (_absolute(k, layer) for k in layer.packing.unpack(layer.weight.detach()))
    terms = max(math.prod(shape[1:]) for shape in layer.packing.shapes) + 8
    factors = product_roundoff(x.dtype, x.device, not dense)
    unit = sum_roundoff(terms, unit_roundoff(x.dtype), factors)
    inside = 2 * a * max(c, 1.0) * max(-slopes[0], slopes[1], 1.0) + (skip[0] if skip else layer.lipschitz)
    # The bias and what the activation maps zeros to pass through the outer kernel, and may cancel at the output.
    steepest, pixels = max(-slopes[0], slopes[1], 1.0), math.prod(inner[1:])
    beside = 2 * max(c, 1.0) * (steepest * _bias_norm(layer, call.output) + _norm_at_zero(layer.activation, inner, x))
    written = call.rounded(4.0).written
    lost = terms * underflow(x.dtype) * (c * steepest * math.sqrt(pixels) + math.sqrt(call.output[0].numel()))
    local = Local(
        unit * inside, written, inside, unit=factors, beside=beside, offset=(unit + written) * beside, lost=lost
    )
    return Effect((x.form().scaled(found.value**2 * (1 + 1e-15)),), owner, local, None, step)


def _norm_at_zero(activation: nn.Module, shape: tuple[int, ...], x: Tracked) -> float:
    """Norm of what an activation maps zeros to, for one sample."""
    with torch.no_grad():
        y = activation(torch.zeros(shape, dtype=x.dtype, device=x.device))
    return float(torch.linalg.vector_norm(y.double().flatten(1), dim=1).amax()) * (1 + 1e-12)


def _bias_norm(layer: Any, output: Tensor) -> float:
    """Norm of the bias of the inner channels, over all pixels."""
    if layer.bias is None:
        return 0.0
    pixels = output[0, 0].numel() if output.dim() > 2 and not isinstance(layer, DenseBlock) else output[0].numel()
    return math.sqrt(pixels) * float(torch.linalg.vector_norm(layer.bias.detach().double()))


def _absolute(kernel: Tensor, layer: Any) -> float:
    """Upper bound of the norm of the absolute values of a kernel."""
    a = kernel.double().abs().flatten(2) if kernel.dim() > 2 else kernel.double().abs()[..., None]
    return math.sqrt(float(a.sum((1, 2)).amax()) * float(a.sum((0, 2)).amax())) if a.numel() else 0.0


def _inner_shape(layer: Any, x: Tracked) -> tuple[int, ...]:
    """The shape at which the block calls its activation."""
    seen: list[torch.Size] = []
    if not isinstance(layer.activation, nn.Module):
        raise NoBound("Its activation is no module.", "Use one of those the block accepts at construction.")
    hook = layer.activation.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape), prepend=True)
    try:
        layer.forward(x.value)
    finally:
        hook.remove()
    if len(seen) != 1:
        raise NoBound("It calls its activation several times.", "Use one of those the block accepts at construction.")
    return tuple(seen[0])


def _slopes(walk: Any, activation: Any, shape: tuple[int, ...], x: Tracked) -> tuple[float, float]:
    """The range of slopes of an activation as called, including hooks: it must be a function of each entry alone."""
    places = type(walk.places)(activation)
    inner = type(walk)(walk.rules, walk.patterns, {}, walk.advice, places)
    probe = inner.input(torch.zeros(shape, dtype=x.dtype, device=x.device))
    with places.followed(), inner:
        y = activation(probe)
    low = high = 1.0
    if not isinstance(y, Tracked) or y.constant or inner.unbounded or inner.lost:
        reason = inner.unbounded[0].reason if inner.unbounded else "It does not depend on its input."
        raise NoBound(
            f"Its activation has no bounded slopes: {reason}", "Use one of those the block accepts at construction."
        )
    codes = y.codes
    while True:
        base = whole_base(codes, inner.bases)
        if base is None:
            break
        if base.number == 0:
            return low, high
        if isinstance(base.origin, Sloped):
            slopes = base.origin.slopes
        elif isinstance(base.origin, Scale):
            slopes = float(base.origin.coefficient.min()), float(base.origin.coefficient.max())
        else:
            break
        ends = [a * b for a in (low, high) for b in slopes]
        low, high, codes = min(ends), max(ends), base.origin.codes
    raise NoBound(
        "Its activation is not a function of each entry alone with known slopes.",
        "Use one of those the block accepts at construction.",
    )


WHOLES: dict[Any, Any] = {
    distance_attention: attention,
    DenseBlock.forward: block,
    ConvBlock.forward: block,
    max_min: isometric(0.0, 1),
    relu_max_min: isometric(2.0, 1),
    group_sort: isometric(0.0, 2),
    absolute: isometric(0.0),
    concatenated_relu: isometric(0.0),
    n_activation: isometric(3.0),
    householder: isometric(2 * ULPS, 2),
    householder_order_2: isometric(2 * ULPS + math.tau, 2),
    unwrap: folded,
    convolve_frequencies: on_circle,
}
