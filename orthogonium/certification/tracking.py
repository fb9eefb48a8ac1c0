"""Tensors that know their Lipschitz constant, the calls they take part in, and the steps of a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.certification.values import Value

if TYPE_CHECKING:
    from orthogonium.certification.walk import Walker


@dataclass(frozen=True)
class Step:
    """One operation of the model that may change distances."""

    place: str
    operation: str
    factor: float  # Lipschitz constant of the operation
    kind: str
    bound: float  # of its output, with respect to the input of the network
    sigma_min: float | None = None
    sigma_max: float | None = None
    stable_rank: float | None = None
    slack: float = 0.0  # relative, of the factor
    guarantee: str | None = None
    method: str = ""
    warnings: tuple[str, ...] = ()


class Tracked(Tensor):
    """A tensor that knows its Lipschitz constant. Note [How the graph is walked]."""

    value: Value
    walker: Walker

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func` and apply its rule."""
        kwargs = kwargs or {}
        walker = next(t.walker for t in tensors((args, kwargs)) if isinstance(t, Tracked))
        with torch._C.DisableTorchFunctionSubclass():
            return walker.function(func, args, kwargs)


def plain(x: Any) -> Any:
    """The same tensors without their constants, in any nesting."""
    return mapped(lambda t: t.as_subclass(Tensor) if isinstance(t, Tracked) else t, x)


def mapped(fn: Callable[[Any], Any], x: Any) -> Any:
    """`fn` of every tensor, in any nesting."""
    if isinstance(x, Tensor):
        return fn(x)
    if isinstance(x, dict):
        return {k: mapped(fn, v) for k, v in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(mapped(fn, v) for v in x))
    if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
        if type(x).__module__ == "torch.return_types":
            return type(x)([mapped(fn, v) for v in x])
        return type(x)(mapped(fn, v) for v in x)
    if isinstance(x, slice):
        return slice(mapped(fn, x.start), mapped(fn, x.stop), mapped(fn, x.step))
    return x


def tensors(x: Any) -> list[Tensor]:
    """All tensors, in any nesting, in order."""
    found: list[Tensor] = []
    mapped(found.append, x)
    return found


class Call:
    """One call of a torch function: its name, its arguments by name or position, which of them are tracked."""

    def __init__(self, func: Any, args: Any, kwargs: Any, walker: Walker) -> None:
        self.func, self.args, self.kwargs, self.walker = func, args, kwargs, walker
        name = getattr(func, "__name__", type(func).__name__)
        self.name = func.__self__.__name__ if name == "__get__" else name
        self.output: Any = None

    @property
    def in_place(self) -> bool:
        """Whether the first argument is changed."""
        arithmetic = self.name.startswith("__i") and self.name != "__invert__"
        method = self.name.endswith("_") and not self.name.startswith("_")
        return arithmetic or method or bool(self.kwargs.get("inplace"))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, however it was given."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if len(self.args) > position else default

    @property
    def operands(self) -> list[Tracked]:
        """The tracked arguments, in order."""
        return [t for t in tensors((self.args, self.kwargs)) if isinstance(t, Tracked)]


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook may change what the module computes."""
    everywhere = torch.nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
    )


def type_name(module: nn.Module) -> str:
    """Class of a module as written by its author."""
    return parametrize.type_before_parametrizations(module).__name__


# Names of functions and properties that tell of the shape or kind of a tensor and not of its values,
SHAPES = frozenset(
    "shape size dim ndim numel nelement dtype device layout is_floating_point is_complex is_cuda is_cpu is_contiguous "
    "stride storage_offset __len__ get_device requires_grad grad_fn is_leaf itemsize element_size is_sparse is_quantized "
    "is_meta is_mps data_ptr __hash__ __repr__ __format__ is_same_size is_nested is_inference is_shared _version "
    "grad retains_grad is_signed ndimension".split()
)
# that make a constant of its shape,
CONSTANTS = frozenset("zeros_like ones_like empty_like new_zeros new_ones new_empty".split())
# and that turn values into Python numbers.
ESCAPES = frozenset(
    "item tolist numpy __array__ __bool__ __float__ __int__ __index__ __complex__ is_nonzero equal allclose "
    "__contains__ __dlpack__ nonzero __reversed__ untyped_storage".split()
)
