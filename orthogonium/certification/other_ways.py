"""Whether a model is one function: for a sample alone or among others, in any memory layout, with or without gradients.

The walk sees one call: contiguous inputs, two or three of them, no gradients. Code may inspect any of these, and a view
(`flatten`, `reshape`) may be a copy for another size or layout, so what is written to it is lost. Outputs are compared
on random inputs, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from orthogonium.certification.rounding import Error

_SAMPLES, _COPIES = 3, 3


def other_ways(
    model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, bound: float, error: Error
) -> str | None:
    """What a model is found to depend on besides the values of a sample; None if nothing."""
    x = torch.randn(_SAMPLES, *shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    with torch.no_grad():
        alone = torch.cat([_rows(model(part.clone())) for part in x.split(1)])
    if not alone.isfinite().all():
        return None  # which the search will report
    size = bound * torch.linalg.vector_norm(x.double()) + torch.linalg.vector_norm(alone)
    allowed = max(1e-3, 16 * torch.finfo(dtype).eps) * float(size)
    constant, slope = error.proved
    rounding = 2 * math.sqrt(_SAMPLES) * constant + 2 * slope * float(torch.linalg.vector_norm(x.double()))
    if math.isfinite(rounding):  # of both outputs; the smallest sums are those of float64
        allowed = min(allowed, rounding + 1e-12 * float(size))
    ways: dict[str, Callable[[], Tensor]] = {
        "for a sample alone than for the same sample among others": lambda: model(x.repeat(_COPIES, *[1] * len(shape))),
        "for inputs in another memory layout": lambda: model(_turned(x)),
        "where gradients are recorded": lambda: _with_gradients(model, x),
        "in inference mode": lambda: _in_inference(model, x),
    }
    for name, way in ways.items():
        try:
            out = _rows(way())
        except RuntimeError:  # views that another layout does not allow, writes that autograd does not
            continue
        same = out.shape[1:] == alone.shape[1:]
        copies = len(out) // len(alone)
        deviation = torch.linalg.vector_norm(out - alone.repeat(copies, 1)) / math.sqrt(copies) if same else math.inf
        if not deviation <= allowed:
            return (
                f"It computes something else {name}: a view that is a copy there (flatten or reshape before a write in "
                "place), or code that looks at more than values."
            )
    return None


def _rows(out: Tensor) -> Tensor:
    return out.detach().double().reshape(len(out), -1)


def _turned(x: Tensor) -> Tensor:
    """The same numbers with the first axis of each sample last in memory, as in channels-last images."""
    order = [0, *range(2, x.dim()), 1] if x.dim() > 2 else [1, 0]
    turned = x.permute(order).clone(memory_format=torch.contiguous_format)  # a copy in any case: models may write to it
    return turned.movedim(-1, 1) if x.dim() > 2 else turned.T


def _in_inference(model: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(x.clone()).clone()


def _with_gradients(model: nn.Module, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return model(x.clone().requires_grad_() * 1)
