"""Poolings and resampling.

All averages and interpolations are separable: their norm is the product of the norms of their 1-D matrices, which are
read off the operator itself by impulses, at the size at hand and in its own precision. For max pooling, the windows
over a pixel are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rules.call import Call, Jump, scaled
from orthogonium.certification.rules.movement import placed
from orthogonium.certification.tracked import Tracked
from orthogonium.layers.pooling import max_pool_constant, per_axis

aten = torch.ops.aten


def _pooled(call: Call, factor: float, taps: int = 0) -> Any:
    """A function of the pixels of each image; if `taps` is given, a sum of that many pixels."""
    x = call.operand()
    dims = _dims(call)
    owner = call.together(x, range(x.dim() - dims, x.dim()))
    owner = None if owner is None else owner.expand(call.first_output.shape)
    local = call.rounded(0.0)
    if taps:  # their sum may overflow where the average does not
        local = call.summed(taps, factor, call.rounded(taps + 2.0, taps + 2.0, math.sqrt(taps)))
    effect = scaled(call, x, factor, owner, local)
    if isinstance(call.output, Tensor):
        return effect
    return [effect, *[Jump("The indices of maxima jump.", "Leave out return_indices.")] * (len(call.output) - 1)]


def _dims(call: Call) -> int:
    return int(next(c for c in call.name if c.isdigit()))


def _windows(call: Call, dims: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and stride of the windows."""
    kernel = per_axis(call["kernel_size"], dims, "kernel_size")
    return kernel, per_axis(call["stride"], dims, "stride") if call["stride"] else kernel


def _matrix(fn: Callable[[Tensor], Tensor], size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Matrix (inputs, outputs) of a linear map of one axis, `fn` of images (n, 1, size, 1), computed in `dtype`."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return fn(torch.eye(size, dtype=wide)[:, None, :, None]).reshape(size, -1).double()


def _norm(matrices: Sequence[Tensor], slack: float = 1e-12) -> float:
    return math.prod(float(torch.linalg.matrix_norm(m, ord=2)) * (1 + slack) for m in matrices)


def averages(call: Call, x: Tracked) -> list[Tensor]:
    """The matrices (inputs, outputs) of an average pooling, one for each axis."""
    dims = _dims(call)
    if "output_size" in call.given:
        sizes = zip(x.shape[-dims:], call.output.shape[-dims:], strict=True)
        return [_matrix(lambda t, o=o: aten._adaptive_avg_pool2d.default(t, [o, 1]), n) for n, o in sizes]  # type: ignore[misc]
    kernel, stride = _windows(call, dims)
    padding = per_axis(call["padding"], dims, "padding")
    divisor = call.given.get("divisor_override")
    matrices = []
    for n, k, s, p in zip(x.shape[-dims:], kernel, stride, padding, strict=True):
        own = None if divisor is None else 1  # with 1, the operator only sums
        modes = bool(call["ceil_mode"]), bool(call["count_include_pad"])

        def pool(t: Tensor, k: int = k, s: int = s, p: int = p, modes: Any = modes, own: int | None = own) -> Tensor:
            return aten.avg_pool2d.default(t, [k, 1], [s, 1], [p, 0], *modes, own)

        matrices.append(_matrix(pool, n))
    if divisor is not None:
        matrices[0] = matrices[0] / divisor
    return matrices


def average(call: Call) -> Any:
    """Average pooling at the actual size, with any padding and mode."""
    matrices = averages(call, call.operand())
    return _pooled(call, _norm(matrices), math.prod(int((m != 0).sum(0).max()) for m in matrices))


def maximum(call: Call) -> Any:
    """Max pooling: the root of the number of windows over a pixel."""
    dims = _dims(call)
    dilation = per_axis(call["dilation"], dims, "dilation")
    return _pooled(call, max_pool_constant(*_windows(call, dims), dilation))


def adaptive_maximum(call: Call) -> Any:
    """Adaptive max pooling: two windows may share a pixel where sizes do not divide."""
    dims, x = _dims(call), call.operand()
    most = 1
    for n, o in zip(x.shape[-dims:], call.first_output.shape[-dims:], strict=True):
        seen = torch.zeros(n, dtype=torch.long)
        for i in range(o):
            seen[i * n // o : -(-(i + 1) * n // o)] += 1
        most *= int(seen.max())
    return _pooled(call, math.sqrt(most) * (1 + 1e-15))


def interpolated(call: Call) -> Any:
    """Linear, bilinear, trilinear and bicubic resampling."""
    dims, x = _dims(call), call.operand()
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[dims]
    aliased = {"linear": aten.upsample_bilinear2d.default, "cubic": aten.upsample_bicubic2d.default}
    smooth = {"linear": aten._upsample_bilinear2d_aa.default, "cubic": aten._upsample_bicubic2d_aa.default}
    operator = (smooth if call.name.endswith("aa") else aliased)["cubic" if "cubic" in call.name else "linear"]
    sizes = list(zip(x.shape[-dims:], call.output.shape[-dims:], names, strict=True))
    matrices = []
    for axis, (n, o, name) in enumerate(sizes):
        # Torch treats columns one pixel wide differently: matrices are read from such columns if there are any, else
        # from rows.
        column = dims == 2 and axis == 0 and sizes[1][1] == 1

        def resize(t: Tensor, o: int = o, scale: Any = call[name], column: bool = column) -> Tensor:
            size, scales = ([o, 1], (scale, None)) if column else ([1, o], (None, scale))
            return operator(t if column else t.mT, size, call["align_corners"], *scales)

        matrices.append(_matrix(resize, n, x.dtype))
    slack = 1e-12 if x.dtype == torch.float64 else 1e-6
    return _pooled(call, _norm(matrices, slack), 8 * math.prod(int((m != 0).sum(0).max()) for m in matrices))


def nearest(call: Call) -> Tracked:
    """Copies of the nearest pixels: the operator itself shows which ones, in its own precision."""
    dims, x = _dims(call), call.operand()
    codes = x.codes
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    for axis in range(dims):
        sizes = [1] * dims
        sizes[axis] = x.shape[x.dim() - dims + axis]
        ramp = torch.arange(sizes[axis], dtype=wide).reshape(1, 1, *sizes)
        given = {**call.given, "self": ramp}
        given["output_size"] = [o if i == axis else 1 for i, o in enumerate(call.output.shape[-dims:])]
        for i, name in enumerate(n for n in call.given if n.startswith("scales")):
            given[name] = call[name] if i == axis else None
        index = call.func(**given).reshape(-1).long()
        codes = codes.index_select(x.dim() - dims + axis, index)
    return placed(call, call.output, codes)


def _known(names: Sequence[str], kind: str = "default") -> list[Any]:
    return [getattr(getattr(aten, name), kind) for name in names if hasattr(aten, name)]


RULES: dict[Any, Any] = {
    **dict.fromkeys(_known(["avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"]), average),
    **dict.fromkeys(_known(["max_pool2d_with_indices", "max_pool3d_with_indices"]), maximum),
    **dict.fromkeys(_known(["adaptive_max_pool2d", "adaptive_max_pool3d"]), adaptive_maximum),
    **dict.fromkeys(
        _known(
            [
                "upsample_linear1d",
                "upsample_bilinear2d",
                "upsample_trilinear3d",
                "upsample_bicubic2d",
                "_upsample_bilinear2d_aa",
                "_upsample_bicubic2d_aa",
            ]
        ),
        interpolated,
    ),
    **dict.fromkeys(
        _known([f"{kind}{d}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3)]), nearest
    ),
}
