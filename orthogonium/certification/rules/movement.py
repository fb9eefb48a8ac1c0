"""Operators that copy entries around: running them on the sources of their tensors shows what they do.

Views need no rule (Note [Memory] of `tracked.py`). Copies of entries, entries left out and constants between them all
follow from the codes that the operator puts into its output, where 0 is a constant; this file knows nothing about
slices, pads, flips, rolls or indices. It only knows which arguments hold data: every other tensor is an index or a
mask, and a constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rules.call import Call, NoBound, is_value, scaled
from orthogonium.certification.tracked import Tracked, plain, replaced

aten = torch.ops.aten
_DATA = {"self", "input", "src", "source", "values", "other", "tensors"}
_FILL = {"value"}


def _codes(x: Any, like: Tensor | None = None) -> Any:
    """The codes of what is moved, in the same lists."""
    if isinstance(x, (list, tuple)):
        return [_codes(t) for t in x]
    if isinstance(x, Tracked) and not x.constant:
        return x.codes
    if isinstance(x, Tensor):
        return torch.zeros(x.shape, dtype=torch.float64)
    return 0.0


def moved(call: Call) -> Tracked:
    """The output of an operator that copies entries."""
    given: dict[str, Any] = {}
    for name, value in call.given.items():
        if name in _DATA:
            given[name] = _codes(value)
        elif name in _FILL:
            given[name] = _codes(value) if isinstance(value, Tensor) else 0
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            if any(isinstance(v, Tracked) and not v.constant for v in values):
                raise NoBound(
                    "It chooses by values that depend on the input, so that it may jump.", "Choose by constants."
                )
            given[name] = replaced(plain(value), Tensor.cpu)
    output = call.output
    if any(x.dtype != output.dtype for x in call.operands):
        raise NoBound(f"It casts to {output.dtype} on the way.", "Cast first, by .to(dtype).")
    return placed(call, output, call.func(**given))


def moved_alike(call: Call) -> Tracked:
    """An operator that depends on positions along axes, none of which may be the batch."""
    result = moved(call)
    call.walk.check_alike(result)
    return result


def placed(call: Call, output: Tensor, codes: Tensor) -> Tracked:
    """A tensor with its sources."""
    walk = call.walk
    if (
        walk.memories.find(output) is not None
        or output.untyped_storage().nbytes() != output.numel() * output.dtype.itemsize
    ):
        output = output.clone(memory_format=torch.contiguous_format)
    result = walk.constant(output)
    sources = result.memory.sources().as_strided(output.shape, output.stride(), output.storage_offset())
    sources.copy_(codes)
    return result


def copied(call: Call) -> Any:
    """`clone`, `copy` and casts: of those that round, one rounding is deducted, or there is no bound."""
    x = next(call[name] for name in ("src", "value", "self") if name in call.given)
    output = call.output
    if not output.is_floating_point():
        raise NoBound("Its output jumps from integer to integer.", "Keep values in floating point.")
    if is_value(x) and x.is_floating_point():
        own, to, of = (torch.finfo(dtype) for dtype in (call.walk.bases[0].dtype, output.dtype, x.dtype))
        if to.eps > max(of.eps, own.eps):
            raise NoBound(
                f"It rounds {x.dtype} to {output.dtype}, in a network of {call.walk.bases[0].dtype}: a step function.",
                "Certify in float32, or give the whole model that dtype (model.to(dtype)): its rounding is deducted.",
            )
        if to.eps > of.eps or to.max < of.max:  # one rounding; large numbers overflow, small ones are lost
            copies = Tracked(x.value.expand(output.shape), x.memory, call.walk)
            return scaled(call, copies, 1.0, call.together(copies, ()), call.rounded(1.0))
    codes = x.codes if isinstance(x, Tracked) and not x.constant else torch.zeros((), dtype=torch.float64)
    return placed(call, output, codes.expand(output.shape))


def filled(call: Call) -> Any:
    """A tensor that is overwritten by one number, a constant or a value."""
    return copied(call) if is_value(call.given.get("value")) else call.walk.constant(call.output)


def of_shape(call: Call) -> Tracked:
    """A constant made in the shape of a value."""
    return call.walk.constant(call.output)


MOVES = [
    aten.cat.default, aten.stack.default, aten.repeat.default, aten.roll.default, aten.flip.default, aten.rot90.default,
    aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_select.default,
    aten.gather.default, aten.take.default, aten.constant_pad_nd.default, aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default, aten.channel_shuffle.default, aten.native_channel_shuffle.default,
    *[getattr(aten, f"{kind}_pad{d}d").default for kind in ("reflection", "replication") for d in (1, 2, 3)],
    *[getattr(aten, f"upsample_nearest{d}d").default for d in (1, 2, 3)],
    *[getattr(aten, f"_upsample_nearest_exact{d}d").default for d in (1, 2, 3)],
    aten.im2col.default, aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
    aten.as_strided_scatter.default, aten.scatter.src, aten.scatter.value, aten.index_copy.default,
    aten.index_fill.int_Scalar, aten.index_fill.int_Tensor,
    aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.masked_scatter.default,
    aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.diag_embed.default, aten._reshape_copy.default,
    aten.repeat_interleave.self_int, aten.repeat_interleave.self_Tensor,
    *[
        getattr(aten, f"{name}_copy").default
        for name in ("alias", "permute", "view", "expand", "unfold", "diagonal", "detach", "t")
    ],
]  # fmt: skip
FACTORIES = [
    *[getattr(aten, f"{name}_like").default for name in ("zeros", "ones", "empty", "full")],
    *[getattr(aten, f"new_{name}").default for name in ("zeros", "ones", "empty", "full", "empty_strided")],
    aten.zero.default,
]
RULES: dict[Any, Any] = {
    **dict.fromkeys(MOVES, moved),
    **dict.fromkeys([aten.tril.default, aten.triu.default], moved_alike),
    **dict.fromkeys(FACTORIES, of_shape),
    **dict.fromkeys([aten.clone.default, aten._to_copy.default, aten.copy.default, aten.contiguous.default], copied),
    **dict.fromkeys([aten.fill.Scalar, aten.fill.Tensor], filled),
}
# Constants may be infinite, as masks often are, or uninitialized memory, like the noise of RReLU in eval mode.
BESIDE_ANY_CONSTANT = frozenset({*RULES, aten.rrelu_with_noise.default})
