"""Convolutions of float64 images as one matrix product, where torch has no fast kernel for them.

On a CPU torch convolves float64 sample by sample, channels first. Gathered channels last, the windows of several
samples form one matrix, and copying them moves whole runs of memory: about half the time (`benchmarks.certify_cost`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_SAMPLES = 16  # at a time: their windows fit into the caches


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    *rest: Any,
) -> Tensor:
    """`aten.convolution` by a product of windows where that is faster."""
    dims = weight.dim() - 2
    groups = rest[-1]
    plain = not transposed and groups == 1 and all(d == 1 for d in dilation) and x.dim() == dims + 2
    if not plain or x.dtype != torch.float64 or x.device.type != "cpu" or not x.numel():
        return torch.ops.aten.convolution.default(x, weight, bias, stride, padding, dilation, transposed, *rest)
    steps, margins = (list(sizes) * (dims // len(sizes)) for sizes in (stride, padding))
    kernel = weight.movedim(1, -1).flatten(1)  # (co, *k, ci) → (co, k·ci)
    out = [(n + 2 * m - k) // s + 1 for n, m, k, s in zip(x.shape[2:], margins, weight.shape[2:], steps, strict=True)]
    output = x.new_empty(len(x), weight.shape[0], *out)
    rows = x.new_empty(min(_SAMPLES, len(x)), *out, *weight.shape[2:], weight.shape[1])
    for part, result in zip(x.split(_SAMPLES), output.split(_SAMPLES), strict=True):
        padded = F.pad(part, [m for m in reversed(margins) for _ in range(2)]) if any(margins) else part
        windows = padded.movedim(1, -1).contiguous()
        for axis, (size, step) in enumerate(zip(weight.shape[2:], steps, strict=True), 1):
            windows = windows.unfold(axis, size, step)  # (n, *out, ci, *k)
        own = rows[: len(part)].copy_(windows.movedim(dims + 1, -1)).flatten(dims + 1)
        result.copy_(F.linear(own, kernel, bias).movedim(-1, 1))
    return output
