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

from torch import Tensor, nn

from orthogonium.kernels import ConvGeometry
from orthogonium.linalg.evaluation import has_hooks
from orthogonium.methods.kernel import Kernel

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def kind(kernel: Kernel) -> Hashable | None:
    """What kernels that may be built together have in common: type, sizes, options. None if it must be built alone."""
    return None if "build" in vars(kernel) or _is_altered(kernel) else _describe(kernel)


def _is_altered(part: nn.Module) -> bool:
    """Whether the module or one of its parts has hooks, or a `forward` of its own."""
    altered = has_hooks(part) or "forward" in vars(part)
    return altered or any(_is_altered(p) for p in part._modules.values() if p is not None)


def _describe(part: nn.Module) -> Hashable | None:
    """All that decides what a kernel builds, besides raw parameters; None if that is not known."""
    declared = vars(type(part)).get("group_axes" if isinstance(part, Kernel) else "batched")
    options = tuple((name, value) for name, value in vars(part).items() if name not in _OF_EVERY_MODULE)
    parts = tuple((name, p is None or _describe(p)) for name, p in part._modules.items())
    known = declared not in (None, False) and not (part._parameters or part._buffers)
    comparable = all(isinstance(value, Hashable) and not isinstance(value, Tensor) for _, value in options)
    if not known or not comparable or any(p is None for _, p in parts):
        return None
    return type(part), options, parts


def are_alike(known: nn.Module | None, part: nn.Module | None) -> bool:
    """Whether a part is as one whose `kind` is known, which takes less time to see than its kind."""
    if part is known:
        return True
    if part is None or known is None or type(part) is not type(known) or part._modules.keys() != known._modules.keys():
        return False
    options = vars(known).copy()  # this includes the hooks, of which `known` has none
    options["_modules"] = part._modules
    return options == vars(part) and all(map(are_alike, known._modules.values(), part._modules.values()))


def direct_sum(kernel: Kernel, count: int) -> Kernel:
    """`count` such kernels as one kernel with `count` times the groups; it shares their orthogonalizers."""
    total = copy.copy(kernel)
    total._modules = {
        name: direct_sum(part, count) if isinstance(part, Kernel) else part for name, part in kernel._modules.items()
    }
    for name, value in vars(kernel).items():
        if isinstance(value, ConvGeometry):
            sizes = {size: count * getattr(value, size) for size in ("in_channels", "out_channels", "groups")}
            setattr(total, name, replace(value, **sizes))
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
