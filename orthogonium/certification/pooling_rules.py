"""Poolings, padding and resampling, called as functions.

All averages and interpolations are separable: their norm is the product of the norms of their 1-D matrices, which are
read off the function itself by impulses, at the size at hand. Max pooling counts the windows over a pixel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.certification.rule import NoBound, Rule
from orthogonium.certification.tracking import Call, Tracked
from orthogonium.certification.values import Value
from orthogonium.layers.pooling import max_pool_constant
from orthogonium.layers.shape import copies

_ROUNDING = 1 + 1e-12


def _spatial(call: Call, dims: int | None = None) -> Tracked:
    x = call.argument(0, "input")
    if not isinstance(x, Tracked) or x.dim() < 3 or (dims is not None and x.dim() != dims + 2):
        raise NoBound("It needs a batch (n, c, …).", "Keep the batch in front.")
    return x


def _per_axis(value: Any, dims: int) -> tuple[Any, ...]:
    values = (value,) if value is None or isinstance(value, (int, float)) else tuple(value)
    return values * dims if len(values) == 1 else values


def _dims(call: Call) -> int:
    return int(next(c for c in call.name if c.isdigit()))


def _norm_1d(fn: Callable[[Tensor], Tensor], size: int) -> float:
    """Norm of a linear map of one axis."""
    matrix = fn(torch.eye(size, dtype=torch.float64)[:, None])[:, 0]
    return float(torch.linalg.matrix_norm(matrix, ord=2)) * _ROUNDING


@functools.lru_cache(maxsize=1024)
def _avg_norm(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool, count_pad: bool) -> float:
    return _norm_1d(lambda x: F.avg_pool1d(x, kernel, stride, padding, ceil_mode, count_pad), size)


def average_pool(call: Call) -> Value:
    """Average pooling at the size at hand, any padding and mode."""
    dims = _dims(call)
    x = _spatial(call, dims)
    kernel = _per_axis(call.argument(1, "kernel_size"), dims)
    given = call.argument(2, "stride")
    stride = kernel if given is None or given == () else _per_axis(given, dims)
    padding = _per_axis(call.argument(3, "padding", 0), dims)
    modes = bool(call.argument(4, "ceil_mode", False)), bool(call.argument(5, "count_include_pad", True))
    factor = math.prod(
        _avg_norm(n, k, s, p, *modes) for n, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True)
    )
    divisor = call.argument(6, "divisor_override")
    if divisor is not None:
        if not all(modes[1:]) or modes[0]:
            raise NoBound("divisor_override with ceil_mode or uncounted pads is not followed.", "Scale the output.")
        factor *= math.prod(kernel) / abs(divisor)
    return x.value.scaled(factor)


def max_pool(call: Call) -> Value:
    """Max pooling: the root of the number of windows over a pixel."""
    dims = _dims(call)
    x = _spatial(call, dims)
    kernel = _per_axis(call.argument(1, "kernel_size"), dims)
    given = call.argument(2, "stride")
    stride = kernel if given is None or given == () else _per_axis(given, dims)
    dilation = _per_axis(call.argument(4, "dilation", 1), dims)
    if not isinstance(call.output, Tensor):
        raise NoBound("The indices of maxima jump.", "Leave out return_indices.")
    return x.value.scaled(max_pool_constant(kernel, stride, dilation))


def lp_pool(call: Call) -> Value:
    """L2 pooling: as max pooling."""
    dims = _dims(call)
    x = _spatial(call, dims)
    if float(call.argument(1, "norm_type")) < 2:
        raise NoBound("Only norms of order 2 and more are followed.", "Use L2NormPool.")
    kernel = _per_axis(call.argument(2, "kernel_size"), dims)
    given = call.argument(3, "stride")
    return x.value.scaled(max_pool_constant(kernel, kernel if given is None else _per_axis(given, dims)))


def adaptive_average(call: Call) -> Value:
    """Adaptive average pooling at the size at hand."""
    dims = _dims(call)
    x = _spatial(call, dims)
    sizes = zip(x.shape[2:], call.output.shape[2:], strict=True)
    return x.value.scaled(math.prod(_adaptive_norm(n, o) for n, o in sizes))


@functools.lru_cache(maxsize=1024)
def _adaptive_norm(size: int, output: int) -> float:
    return _norm_1d(lambda x: F.adaptive_avg_pool1d(x, output), size)


def adaptive_max(call: Call) -> Value:
    """Adaptive max pooling: two windows may share a pixel where sizes do not divide."""
    x = _spatial(call, _dims(call))
    if not isinstance(call.output, Tensor):
        raise NoBound("The indices of maxima jump.", "Leave out return_indices.")
    most = 1
    for n, o in zip(x.shape[2:], call.output.shape[2:], strict=True):
        seen = torch.zeros(n, dtype=torch.long)
        for i in range(o):
            seen[i * n // o : -(-(i + 1) * n // o)] += 1
        most *= int(seen.max())
    return x.value.scaled(math.sqrt(most))


def resized(call: Call) -> Value:
    """`F.interpolate`: the product of the norms of the 1-D maps."""
    x = _spatial(call)
    dims = x.dim() - 2
    mode = call.argument(3, "mode", "nearest")
    if call.argument(6, "antialias", False):
        raise NoBound("Antialiased interpolation is not followed.", "Use ScaledAvgPool.")
    size, scale = _per_axis(call.argument(1, "size"), dims), _per_axis(call.argument(2, "scale_factor"), dims)
    corners, recompute = call.argument(4, "align_corners"), call.argument(5, "recompute_scale_factor")
    factor = 1.0
    for n, o, f in zip(x.shape[2:], size, scale, strict=True):
        factor *= _resize_norm(n, o, f, mode, corners, recompute)
    return x.value.scaled(factor)


@functools.lru_cache(maxsize=1024)
def _resize_norm(
    n: int, size: int | None, scale: float | None, mode: str, corners: bool | None, recompute: bool | None
) -> float:
    options = {"align_corners": corners, "recompute_scale_factor": recompute}
    if mode == "bicubic":  # only images have it: a column of pixels

        def resize(x: Tensor) -> Tensor:
            to = None if size is None else (size, 1)
            by = None if scale is None else (scale, 1.0)
            return F.interpolate(x[..., None], to, by, mode, **options)[..., 0]  # type: ignore[arg-type]

    else:
        mode_1d = "linear" if mode in ("linear", "bilinear", "trilinear") else mode

        def resize(x: Tensor) -> Tensor:
            return F.interpolate(x, size, scale, mode_1d, **options)  # type: ignore[arg-type]

    return _norm_1d(resize, n)


def padded(call: Call) -> Value:
    """`F.pad`: the root of the largest number of copies of a pixel, per axis."""
    x = call.argument(0, "input")
    amounts, mode = tuple(call.argument(1, "pad")), call.argument(2, "mode", "constant")
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
    if not isinstance(x, Tracked) or len(pairs) >= x.dim():
        raise NoBound("It pads the batch.", "Pad the other axes.")
    if mode == "constant":
        return x.value
    most = 1
    for axis, (left, right) in enumerate(pairs):
        n = x.shape[-1 - axis]
        most *= int(copies(n + min(left, 0) + min(right, 0), max(left, 0), max(right, 0), mode).max())
    return x.value.scaled(math.sqrt(most))


RULES: dict[str, Rule] = {
    **dict.fromkeys([f"avg_pool{d}d" for d in (1, 2, 3)], average_pool),
    **dict.fromkeys([f"max_pool{d}d" for d in (1, 2, 3)], max_pool),
    **dict.fromkeys([f"lp_pool{d}d" for d in (1, 2, 3)], lp_pool),
    **dict.fromkeys([f"adaptive_avg_pool{d}d" for d in (1, 2, 3)], adaptive_average),
    **dict.fromkeys([f"adaptive_max_pool{d}d" for d in (1, 2, 3)], adaptive_max),
    "interpolate": resized,
    "pad": padded,
}
