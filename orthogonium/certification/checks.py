"""What must hold for a call before its rule can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.failures import TraceError
from orthogonium.certification.rules.call import NOT_FINITE, Call, Jump, NoBound
from orthogonium.certification.tracked import Tracked, tensors_in


def check_constants(call: Call) -> None:
    """Reject infinite or NaN weights: they do not define a function."""
    for t in tensors_in((call.args, call.kwargs)):
        if not (isinstance(t, Tracked) and not t.constant):
            inner = t.value if isinstance(t, Tracked) else t
            if inner.is_floating_point() and not bool(inner.isfinite().all()):
                raise NoBound(*NOT_FINITE)


def check_digits(call: Call, effects: Any, own: torch.dtype) -> None:
    """Reject step functions: results with fewer digits than the operands and the network have, and integers."""
    first = effects[0] if isinstance(effects, (list, tuple)) else effects
    if isinstance(first, Jump) and first.root is None:
        return
    floating = [x for x in call.operands if x.is_floating_point()]
    if isinstance(first, Tracked) and (first.constant or not floating):
        return
    output = call.first_output
    if output.is_complex():
        raise NoBound("No bound of complex numbers is known.", "Keep real and imaginary parts apart, as real tensors.")
    if not output.is_floating_point():
        raise NoBound("Its output jumps from integer to integer.", "Keep values in floating point.")
    finest = min((torch.finfo(x.dtype).eps for x in floating), default=math.inf)
    if torch.finfo(output.dtype).eps > max(finest, torch.finfo(own).eps):
        raise NoBound(
            f"It rounds to {output.dtype}, in a network of {own}: a step function.",
            "Certify in float32, or give the whole model that dtype (model.to(dtype)): its rounding is deducted.",
        )


def _positions(t: Tensor) -> Tensor:
    """Positions of the entries of a tensor in its memory."""
    count = t.untyped_storage().nbytes() // t.dtype.itemsize
    return torch.arange(count).as_strided(t.shape, t.stride(), t.storage_offset()).reshape(-1)


def _distinct(t: Tensor, positions: Tensor) -> bool:
    """Whether no two entries of a tensor share a position: read from its strides where they are conclusive."""
    reach = 0
    for n, s in sorted(zip(t.shape, t.stride(), strict=True), key=lambda axis: axis[1]):
        if n > 1:
            if s <= reach:
                return len(positions.unique()) == len(positions)
            reach += (n - 1) * s
    return True


def check_overlap(place: str, target: Tracked, operands: Sequence[Tracked]) -> None:
    """An operator must not read again what it writes."""
    others = [x for x in operands if x.memory is target.memory and x is not target and not _same_view(x, target)]
    own = _positions(target.value)
    if not _distinct(target.value, own) or any(bool(torch.isin(_positions(x.value), own).any()) for x in others):
        raise TraceError(
            f"{place} writes in place into memory that the operator also reads. Write into a copy (x.clone())."
        )


def _same_view(x: Tracked, y: Tracked) -> bool:
    a, b = x.value, y.value
    return a.shape == b.shape and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
