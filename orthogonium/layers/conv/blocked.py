"""Convolutions with a weight that is kept: laid out once for the processor.

Note [Blocked weights]
oneDNN, which convolves for torch on CPUs, wants weights in blocks of its own. `F.conv2d` cannot know that a weight is the
one of the call before, and copies it into blocks at each call; where images have few pixels, that takes longer than to
convolve. A weight kept by Note [Eval cache] of `methods/constraint.py` is copied once. Which blocks are best depends on
the size of the images, sometimes on that of the batch, and the wrong ones are slow: a layout is made for each shape, and
those that turn out equal are kept once.

The operator is the one that `torch.compile` calls on CPUs. It has neither derivatives nor rules for transforms, and no mode
knows it, so that it stands in for `F.conv2d` only where nobody but the caller looks.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.kernels import ConvGeometry
from orthogonium.linalg.precision import autocasts, has_values
from orthogonium.methods.constraint import Kept, standard_strides

_AVAILABLE = (
    torch.backends.mkldnn.is_available()
    and platform.machine() in ("x86_64", "AMD64")
    and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    and hasattr(torch.ops.mkldnn, "_get_mkldnn_serialized_md")
    and hasattr(torch._C._nn, "mkldnn_reorder_conv2d_weight")
)
_CHANNELS = 256  # with fewer, single images are slower this way
_LAYOUTS = 2  # most layouts of a weight that are kept: a limit to the memory they take


def convolve_blocked(
    kept: Kept | None, x: Tensor, bias: Tensor | None, padding: Sequence[int], geometry: ConvGeometry
) -> Tensor | None:
    """`F.conv2d` with the kept weight, to rounding, where Note [Blocked weights] saves time; else None."""
    g = geometry
    channels = min(g.group_in, g.group_out)
    if kept is None or channels < _CHANNELS or g.dims != 2 or x.dim() != 4 or x.shape[1] != g.in_channels:
        return None
    axes = zip(x.shape[2:], padding, g.extent, g.stride, strict=True)
    outputs = [(n + 2 * p - e) // s + 1 for n, p, e, s in axes]
    # Measured on 2 cores; kernels of 5x5, dilation and more pixels are slower this way.
    few_pixels = min(outputs) > 0 and 4 * math.prod(outputs) <= channels
    pays = few_pixels and g.dilation == (1, 1) and 4 <= math.prod(g.kernel_size) <= 9
    if not pays or not _only_values_matter(x, kept.weight, bias):
        return None
    if kept.derived is None:
        kept.derived = _Blocked(kept.weight)
    return kept.derived.convolve(x, bias, padding, g.stride, g.dilation, g.groups)


def _only_values_matter(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether an operator may be used that knows dense float32 values on the CPU and nothing else."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    return (
        _AVAILABLE
        and torch._C._get_mkldnn_enabled()
        and all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
        and all(t.layout == torch.strided and t.is_contiguous() and not t._is_zerotensor() for t in tensors)
        and x.numel() > 0
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
        and has_values(*tensors)
        and not autocasts(x)
        and not torch._C._len_torch_function_stack()
        and not torch._C._len_torch_dispatch_stack()
    )


class _Blocked:
    """A weight in the layouts of the shapes of images seen so far."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._layouts: dict[torch.Size, tuple[bytes, Tensor]] = {}  # replaced, not changed: threads may share a layer

    def convolve(self, x: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:  # (n, in, h, w) → (n, out, h', w')
        layouts = self._layouts
        if x.shape not in layouts:
            layouts = self._layouts = self._with_layout(x.shape, geometry)
        blocks = layouts[x.shape][1]
        y = torch.ops.mkldnn._convolution_pointwise(x, blocks, bias, *geometry, "none", [], "")
        return standard_strides(y)  # it is in channels_last

    def _with_layout(self, shape: torch.Size, geometry: tuple[Any, ...]) -> dict[torch.Size, tuple[bytes, Tensor]]:
        blocks = torch._C._nn.mkldnn_reorder_conv2d_weight(self._weight.to_mkldnn(), *geometry, shape)  # type: ignore[call-arg]
        description = torch.ops.mkldnn._get_mkldnn_serialized_md(blocks).numpy().tobytes()
        distinct = dict(self._layouts.values())
        if description not in distinct and len(distinct) == _LAYOUTS:
            return {shape: (description, blocks)}
        return {**self._layouts, shape: (description, distinct.get(description, blocks))}
