"""Building several kernels of one kind at once.

Note [Batches]
Constructions are batched over groups, which are independent. So n kernels of one geometry are the groups of
one kernel with n times the groups: `group_axes` says which axis of each raw parameter counts groups (the last entry
applies to all parameters that follow); results count them on the first axis. Kernels of matrices have no groups, and
build stacks of matrices as they are: their `group_axes` are empty.

Anything not known to treat groups separately is built one by one: kernels without `group_axes`, orthogonalizers that
are not `batched`, and whatever has hooks.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import replace
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from orthogonium.kernels import ConvGeometry
from orthogonium.methods.kernel import Kernel

_ALONE = object()
# Of kernels without hooks; with the settings they had.
_kinds: WeakKeyDictionary[nn.Module, tuple[list[Any], Hashable]] = WeakKeyDictionary()


def kind(kernel: Kernel) -> Hashable | None:
    """What kernels that may be built together have in common: type, sizes, options. None if it must be built alone."""
    if "build" in vars(kernel) or _is_altered(kernel):
        return None
    now = _settings(kernel)
    before, found = _kinds.get(kernel, ([], _ALONE))
    if len(before) != len(now) or not all(map(is_, before, now)):
        description = _describe(kernel)
        found = description if description is _ALONE else _numbers.setdefault(description, len(_numbers))
        _kinds[kernel] = now, found
    return None if found is _ALONE else found


def _settings(part: nn.Module) -> list[Any]:
    """All that decides what a kernel builds, besides raw parameters: sizes, options, and those of its parts."""
    found = [value for _, value in _options(part)]
    for child in part._modules.values():
        found.append(child)
        if child is not None:
            found += _settings(child)
    return found


def _options(part: nn.Module) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(part).items() if name[0] != "_" and name != "training"]


_numbers: dict[Hashable, int] = {}  # of descriptions, which take longer to compare


def _is_altered(part: nn.Module) -> bool:
    """Whether the module or one of its parts has hooks, or a `forward` of its own."""
    if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
        return True
    return "forward" in vars(part) or any(_is_altered(p) for p in part._modules.values() if p is not None)


def _describe(part: nn.Module) -> Hashable:
    declared = vars(type(part)).get("group_axes" if isinstance(part, Kernel) else "batched")
    options = tuple(_options(part))
    parts = tuple((name, None if p is None else _describe(p)) for name, p in part._modules.items())
    known = declared not in (None, False) and not (part._parameters or part._buffers)
    if not known or any(p is _ALONE for _, p in parts) or not all(isinstance(v, Hashable) for _, v in options):
        return _ALONE
    return type(part), options, parts


def direct_sum(kernel: Kernel, count: int) -> Kernel:
    """`count` such kernels as one kernel with `count` times the groups; it shares their orthogonalizers."""
    total = copy.copy(kernel)
    total._modules = {
        name: direct_sum(part, count) if isinstance(part, Kernel) else part for name, part in kernel._modules.items()
    }
    for name, value in vars(kernel).items():
        if isinstance(value, ConvGeometry):
            channels = count * value.in_channels, count * value.out_channels
            wider = replace(value, in_channels=channels[0], out_channels=channels[1], groups=count * value.groups)
            setattr(total, name, wider)
    return total


def build_stacked(kernel: Kernel, *raw: Tensor, by: str = "build") -> Tensor | tuple[Tensor, ...]:  # (n, …) → (n, …)
    """What `kernel.build` (or another method) makes of each of n sets of raw parameters, at once. Note [Batches]."""
    if not kernel.group_axes:
        return kernel.build(*raw)
    count, axes = raw[0].shape[0], kernel.group_axes + kernel.group_axes[-1:] * len(raw)
    groups = (t.movedim(0, axis).flatten(axis, axis + 1) for t, axis in zip(raw, axes, strict=False))
    built = getattr(direct_sum(kernel, count), by)(*groups)
    if isinstance(built, Tensor):
        return built.unflatten(0, (count, -1))
    return tuple(t.unflatten(0, (count, -1)) for t in built)
