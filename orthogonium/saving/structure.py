"""Whether two networks are the same except for the values of their state: layers, attributes, hooks, shared tensors.

Note [Same structure]
A state dict has names and shapes, and says nothing about what is done with them: a layer of another method with the
same raw parameters, another stride or constant, a hook, a forward pass assigned to an instance. So everything attached
to the modules is compared, in both networks at once, and what cannot be compared counts as different. What a network
acquires in use, and what is not part of the function it computes in eval mode, is left out: its mode, cached or
prebuilt weights, a compiled call.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.building.together import BuildTogether
from orthogonium.layers.parametrization import Constraint

_OF_USE = {"training", "_origin", "_compiled_call_impl", "_is_full_backward_hook"}
_OF_USE_OF_CONSTRAINTS = _OF_USE | {"_kept", "supply"}
_TENSORS = ("_parameters", "_buffers")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
# types whose values are compared by ==
_PLAIN = (
    bool, int, float, complex, str, bytes, NoneType, Enum, type, range, set, frozenset, CodeType, BuiltinFunctionType,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class _Different(Exception):
    """Raised at the first difference; its message says where it is."""


def first_difference(model: nn.Module, twin: nn.Module) -> str | None:
    """Where the model differs from its twin, in words; None if they are the same. Note [Same structure]."""
    try:
        _Walk().modules(model, twin, "")
    except _Different as found:
        return str(found)
    return _overlap(model)


class _Walk:
    """Walks through two networks at once, to the first difference."""

    def __init__(self) -> None:
        self.twin_of: dict[int, int] = {}  # of modules, tensors and other objects met in the model
        self.model_of: dict[int, int] = {}  # and back

    def modules(self, a: nn.Module, b: nn.Module, place: str) -> None:
        where = place or "the network"
        if (kind := _kind(a)) is not (expected := _kind(b)):
            raise _Different(f"{where} is {_name(kind)}, not {_name(expected)}")
        if self._met(a, b, where):
            return
        for name in (*_TENSORS, "_modules"):
            self._named(vars(a)[name], vars(b)[name], place)
        for name in a._non_persistent_buffers_set:
            if not _equal(a._buffers[name], b._buffers.get(name)):
                raise _Different(f"{_inside(place, name)}, which is no part of the state dict, has other values")
        left_out = _OF_USE_OF_CONSTRAINTS if isinstance(a, Constraint) else _OF_USE
        own, other = (_attributes(m, left_out) for m in (a, b))
        for name in {**own, **other}:
            if name not in own or name not in other:
                raise _Different(f"{where} has {'an' if name in own else 'no'} attribute {name}")
            self.values(own[name], other[name], f"{name} of {where}")

    def _named(self, a: Mapping[str, Any], b: Mapping[str, Any], place: str) -> None:
        if list(a) != list(b):
            raise _Different(
                f"{place or 'the network'} has {', '.join(a) or 'nothing'}, not {', '.join(b) or 'nothing'}"
            )
        for name in a:
            x, y, where = a[name], b[name], _inside(place, name)
            if x is None or y is None:
                if x is not y:
                    raise _Different(f"{where} is {'' if x is None else 'not '}None")
            elif isinstance(x, nn.Module):
                self.modules(x, y, where)
            else:
                self._state(x, y, where)

    def _state(self, a: Tensor, b: Tensor, where: str) -> None:
        """Compare parameters and buffers: everything but their values."""
        if self._met(a, b, where):
            return
        if type(a) is not type(b) or a.layout != b.layout or a.is_meta:
            raise _Different(f"{where} is a {_name(type(a))} of layout {a.layout} on {a.device}")
        if a.shape != b.shape or a.dtype != b.dtype:
            raise _Different(f"{where} has shape {tuple(a.shape)} in {a.dtype}, not {tuple(b.shape)} in {b.dtype}")
        if not isinstance(a, nn.Parameter) and a.requires_grad:
            raise _Different(f"{where}, a buffer, asks for gradients")
        if any(getattr(a, hooks, None) for hooks in _HOOKS_OF_TENSORS):
            raise _Different(f"{where} has hooks")

    def values(self, a: Any, b: Any, where: str) -> None:
        """Compare everything else attached to a module."""
        if isinstance(a, nn.Module) and isinstance(b, nn.Module):
            return self.modules(a, b, where)
        same = a is b
        if type(a) is type(b) and not same:
            if isinstance(a, _PLAIN):
                same = a == b or (a != a and b != b)  # NaN
            elif isinstance(a, Tensor):
                same = _equal(a, b)
            elif isinstance(a, Mapping | list | tuple):
                return self._containers(a, b, where)
            elif (parts := _parts(a)) is not None:
                return None if self._met(a, b, where) else self._containers(parts, _parts(b), where)
        if not same:
            raise _Different(f"{where} is {_shown(a)}, not {_shown(b)}")
        return None

    def _containers(self, a: Any, b: Any, where: str) -> None:
        keys, others = (list(x) if isinstance(x, Mapping) else list(range(len(x))) for x in (a, b))
        if keys != others:
            raise _Different(f"{where} is {_shown(a)}, not {_shown(b)}")
        for key in keys:
            self.values(a[key], b[key], f"{key!r} in {where}")

    def _met(self, a: Any, b: Any, where: str) -> bool:
        """Whether these two have been met before; if one was paired with another object, that is a difference."""
        met = id(a) in self.twin_of
        if self.twin_of.setdefault(id(a), id(b)) != id(b) or self.model_of.setdefault(id(b), id(a)) != id(a):
            raise _Different(f"{where} is the same object as another part of the network, or no longer is")
        return met


def _attributes(module: nn.Module, left_out: set[str]) -> dict[str, Any]:
    """All but tensors, layers and traces of use; hooks without their numbers and without `build_together`."""
    found = {k: v for k, v in vars(module).items() if k not in left_out and k not in (*_TENSORS, "_modules")}
    hooks = {k: v for k, v in found.items() if k.endswith("_hooks") or "_hooks_" in k}
    speed = {
        number
        for table in hooks.values()
        for number, hook in table.items()
        if isinstance(getattr(hook, "__self__", None), BuildTogether)
    }
    return found | {k: [v for number, v in table.items() if number not in speed] for k, table in hooks.items()}


def _parts(x: Any) -> dict[str, Any] | None:
    """The parts of an object; None if they cannot be seen."""
    if isinstance(x, FunctionType):
        cells = [cell.cell_contents for cell in x.__closure__ or ()]
        return {
            "code": x.__code__,
            "defaults": x.__defaults__,
            "keywords": x.__kwdefaults__,
            "closure": cells,
            **vars(x),
        }
    if isinstance(x, MethodType):
        return {"function": x.__func__, "self": x.__self__}
    if isinstance(x, functools.partial):
        return {"function": x.func, "arguments": x.args, "keywords": x.keywords}
    slots = [name for cls in type(x).__mro__ for name in vars(cls).get("__slots__", ())]
    if hasattr(x, "__dict__") or slots:
        return {**{name: getattr(x, name) for name in slots if hasattr(x, name)}, **getattr(x, "__dict__", {})}
    return None


def _overlap(model: nn.Module) -> str | None:
    """Two different tensors of the state that share memory, so they change together."""
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes, name) for name, t in named if t.numel())
    for (_, end, name), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            return f"{name} and {other} share memory"
    return None


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.detach().cpu(), b.detach().cpu())


def _kind(module: nn.Module) -> type:
    return parametrize.type_before_parametrizations(module)


def _name(kind: type) -> str:
    return kind.__qualname__


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _shown(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 100 else f"{text[:100]}…"
