"""Changes of shape, parts of tensors, and copies. Every part of a tensor keeps track of what it is a part of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from orthogonium.certification.rule import NoBound, Rule, axes, one_operand
from orthogonium.certification.tracking import Call, Tracked
from orthogonium.certification.values import Base, Value


def rearranged(call: Call) -> Value:
    """A change of shape that keeps every entry once, and the batch in front."""
    x = one_operand(call)
    if any(isinstance(a, torch.dtype) for a in call.args):
        raise NoBound("It reads the bits of numbers as others.", "Use .to(dtype).")
    if call.output.shape[:1] != x.shape[:1]:
        raise NoBound(
            f"It moves the axis of the batch: {tuple(x.shape)} → {tuple(call.output.shape)}.",
            "Keep the batch in front: flatten(1), reshape(len(x), …).",
        )
    return x.value


def permuted(call: Call) -> Value:
    """A permutation of axes that leaves the first alone."""
    x = one_operand(call)
    given = call.args[1:] or tuple(call.kwargs.values())
    listed = [a for arg in given for a in (arg if isinstance(arg, (tuple, list)) else (arg,))]
    order = [a % x.dim() for a in listed]
    if call.name in ("T", "mT", "adjoint"):
        order = [0] if call.name == "T" or x.dim() < 3 else []
    first = order[:1] != [0] if call.name == "permute" else 0 in order
    if first:
        raise NoBound("It moves the axis of the batch.", "Keep the batch in front.")
    return x.value


def rolled(call: Call) -> Value:
    """A rotation or reflection along axes other than the batch."""
    x = one_operand(call)
    along = call.argument(2, "dims") if call.name == "roll" else call.args[1:] or call.kwargs.get("dims")
    if along is None or 0 in axes(along, x.dim()):
        raise NoBound("It mixes the samples of the batch.", "Name the axes, without the first.")
    return x.value


def _piece(x: Tracked, axis: int, start: int, stop: int) -> Value:
    """The part of `x` from `start` to `stop` along an axis. Note [Pieces of one tensor]."""
    if stop - start >= x.shape[axis]:
        return x.value
    # Of this very tensor: flip(x) has the same constant as x, but its pieces are others.
    base = x.walker.bases.setdefault((id(x), id(x.value), axis), Base(x.value))
    return Value(base, ({(start, stop): 1.0},))


def cut(call: Call) -> Sequence[Value]:
    """`split`, `chunk`, `unbind` along an axis that is not the batch."""
    x = one_operand(call)
    given = call.argument(1 if call.name == "unbind" else 2, "dim", 0)
    axis = given % x.dim()
    if axis == 0:
        raise NoBound("It cuts the batch.", "Cut along another axis.")
    values, start = [], 0
    for part in call.output:
        length = 1 if call.name == "unbind" else part.shape[axis]
        values.append(_piece(x, axis, start, start + length))
        start += length
    return values


def narrowed(call: Call) -> Value:
    """`narrow(dim, start, length)` and `select(dim, index)`."""
    x = one_operand(call)
    axis, start = call.argument(1, "dim") % x.dim(), call.argument(2, "start" if call.name == "narrow" else "index")
    if axis == 0 or isinstance(start, Tensor):
        raise NoBound("It cuts the batch, or at a computed place.", "Cut along another axis, by ints.")
    length = call.argument(3, "length") if call.name == "narrow" else 1
    start = start % x.shape[axis]
    return _piece(x, axis, start, start + length)


def indexed(call: Call) -> Value:
    """`x[…]` with ints, slices, None, … , or one constant vector of indices."""
    x, key = call.args
    if not isinstance(x, Tracked) or len(call.operands) > 1:
        raise NoBound("It indexes by values.", "Index by constants.")
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [k for k in keys if not isinstance(k, Tensor)]:
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        used = sum(k is not None and k is not Ellipsis for k in keys)
        keys[at : at + 1] = [slice(None)] * (x.dim() - used)
    if not keys or keys[0] != slice(None, None, None):
        raise NoBound("It indexes the batch.", "Begin with a colon: x[:, …].")
    cuts, copies, axis, added_axes = [], 1.0, 0, False
    for k in keys:
        if k is None:
            added_axes = True
            continue
        n = x.shape[axis]
        if isinstance(k, int):
            cuts.append((axis, k % n, k % n + 1))
        elif isinstance(k, slice):
            start, stop, step = k.indices(n)
            if step == 1 and (start, stop) != (0, n):
                cuts.append((axis, start, max(stop, start)))
        elif isinstance(k, Tensor) and k.dtype == torch.long and k.dim() == 1:
            copies *= _most_copies(k % n)
        elif not (isinstance(k, Tensor) and k.dtype == torch.bool and k.dim() == 1):
            raise NoBound(f"It indexes by {type(k).__name__}.", "Index by ints, slices or one constant vector.")
        axis += 1
    if len(cuts) == 1 and copies == 1 and not added_axes:
        return _piece(x, *cuts[0])
    return x.value.scaled(copies)


def _most_copies(index: Tensor) -> float:
    return math.sqrt(int(index.bincount().max())) if index.numel() else 0.0


def selected(call: Call) -> Value:
    """`index_select`: the root of the largest number of copies of an entry."""
    x, index = one_operand(call), call.argument(2, "index")
    if call.argument(1, "dim") % x.dim() == 0 or isinstance(index, Tracked):
        raise NoBound("It selects samples, or by values.", "Select along another axis, by constants.")
    return x.value.scaled(_most_copies(index))


def expanded(call: Call) -> Value:
    """Copies: the root of their number, of the largest where they differ."""
    x = one_operand(call)
    if call.output.dim() != x.dim() or call.output.shape[0] != x.shape[0]:
        raise NoBound("It copies samples.", "Keep the batch in front and of its size.")
    repeats = call.argument(1, "repeats") if call.name == "repeat_interleave" else None
    if isinstance(repeats, Tensor):
        return x.value.scaled(math.sqrt(int(repeats.max())) if repeats.numel() else 0.0)
    return x.value.scaled(math.sqrt(call.output.numel() / max(x.numel(), 1)))


RULES: dict[str, Rule] = {
    **dict.fromkeys("flatten reshape view unflatten squeeze unsqueeze view_as reshape_as ravel".split(), rearranged),
    **dict.fromkeys("pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle".split(), rearranged),
    **dict.fromkeys("permute transpose movedim T mT".split(), permuted),
    **dict.fromkeys("roll flip".split(), rolled),
    **dict.fromkeys("split split_with_sizes chunk tensor_split unbind".split(), cut),
    **dict.fromkeys("narrow select".split(), narrowed),
    "getitem": indexed,
    "index_select": selected,
    **dict.fromkeys("expand expand_as repeat repeat_interleave tile".split(), expanded),
}
