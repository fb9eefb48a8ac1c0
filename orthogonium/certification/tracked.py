"""Tensors without values of their own that know which entries of which bases they consist of.

Note [Memory] A `Tracked` tensor has a shape and no memory that anything outside could read: what the walk does not
follow (`.numpy()`, `.tolist()`, pointers, kernels of C++ extensions) cannot compute with it, instead of taking it for
a constant. Behind it is an ordinary tensor, the value at the input 0 of the network, and beside the memory of that
tensor a second one of the same size, the *sources*: for each position the code of the base and entry that is stored
there, 0 for constants. Views of a tensor are views of its sources. So whatever is written in place is seen through
every alias, as torch's own views see it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from orthogonium.certification.failures import TraceError
from orthogonium.certification.sources import (
    codes_at,
    decoded,
    form_of,
    from_base,
    numbers_in,
    numel,
    owner_of_positions,
)
from orthogonium.certification.values import Base, Form
from orthogonium.layers.whole import Followed

if TYPE_CHECKING:
    from orthogonium.certification.tensors import Tensors

T = TypeVar("T")


class Memory:
    """The sources of one storage. Constant at first; one base, or a mixture, once values are written."""

    def __init__(self, storage: torch.UntypedStorage, dtype: torch.dtype, device: torch.device) -> None:
        self.storage, self.dtype, self.device = storage, dtype, device
        self.base: Base | None = None  # the one that fills all of it, in order
        self.codes: Tensor | None = None  # of a mixture, or once they have been requested
        self.version = 0  # number of writes

    @property
    def constant(self) -> bool:
        """Whether nothing in it depends on the input."""
        return self.base is None and self.codes is None

    def sources(self) -> Tensor:
        """Codes of all positions, to read and to write."""
        if self.codes is None:
            count = self.storage.nbytes() // self.dtype.itemsize
            if self.base is None:
                self.codes = torch.zeros(count, dtype=torch.float64)
            else:
                self.codes = codes_at(self.base.number, torch.arange(count))
        return self.codes

    def written(self) -> None:
        """It is a mixture from here on."""
        self.base = None
        self.version += 1


def _until_written(fn: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache a result about a tensor until its memory is written to."""

    @wraps(fn)
    def kept(self: Tracked) -> T:
        key = (fn.__name__, self.memory.version)
        if key not in self.known:
            self.known[key] = fn(self)
        return self.known[key]

    return kept


class Tracked(Followed):
    """A tensor of the network. Note [Memory]."""

    value: Tensor
    memory: Memory
    walk: Tensors
    known: dict[Any, Any]

    @staticmethod
    def __new__(cls, inner: Tensor, memory: Memory, walk: Tensors) -> Tracked:
        """A tensor of the shape of `inner`."""
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
        )
        self.memory, self.walk = memory, walk
        self.show(inner)
        return self

    def show(self, inner: Tensor) -> None:
        """Be a view of the same memory as `inner`."""
        self.value, self.known = inner, {}

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Outside a walk only constants remain: those made during the walk that a model has kept."""
        tensors = [t for t in tensors_in((args, kwargs)) if isinstance(t, Tracked)]
        if not all(t.constant for t in tensors):
            raise next(t.walk for t in tensors if not t.constant).lose(
                "A value computed from the input is used outside of the call that computed it: the model keeps it from "
                "one call to the next, or hands it to another thread."
            )
        return func(*plain(args), **plain(kwargs or {}))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Nothing is followed here, but `x.data = y` swaps the memory of a tensor without an operator."""
        if getattr(func, "__name__", "") == "__set__":
            raise TraceError(
                "x.data = … on a value computed from the input is not followed. Use x.copy_(…), or a new tensor."
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def _no_memory(self, *_: Any, **__: Any) -> Any:
        raise self.walk.lose(
            f"{self.walk.place} does something with a value computed from the input that cannot be followed: it asks "
            "for its memory, and there is none. Call torch functions on x itself, and keep diagnostics out of forward."
        )

    apply_ = map_ = map2_ = _no_memory
    numpy = tolist = __dlpack__ = __array__ = data_ptr = share_memory_ = __reduce_ex__ = _no_memory

    def as_subclass(self, cls: Any) -> Any:
        """Itself: another type would have no memory to read."""
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Tracked({tuple(self.shape)}, {self.dtype})"

    def take_whole(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Note [As a whole] of `walk.py`."""
        return self.walk.take(fn, args)

    @property
    def constant(self) -> bool:
        """Whether its memory holds constants only."""
        return self.memory.constant

    @property
    def codes(self) -> Tensor:
        """Which entry of which base each of its entries is a copy of: the codes of `sources.py`."""
        inner = self.value
        return self.memory.sources().as_strided(inner.shape, inner.stride(), inner.storage_offset())

    @property
    def whole(self) -> Base | None:
        """The base whose entries it has, each once, in whatever order."""
        base, inner = self.memory.base, self.value
        if base is None or inner.numel() != numel(base):
            return None
        covers = inner.storage_offset() == 0 and (inner.is_contiguous() or _dense(inner))
        return base if covers else None

    def form(self, weights: Tensor | None = None) -> Form:
        """Its form over the bases (Note [Bases and forms] of `values.py`), with `weights` (≥ 0) of its entries."""
        return self._form() if weights is None else form_of(self.codes, self.walk.bases, weights)

    @_until_written
    def _form(self) -> Form:
        base = self.whole
        return Form({base: 1.0}) if base is not None else form_of(self.codes, self.walk.bases)

    @_until_written
    def used(self) -> list[Base]:
        """The bases it consists of."""
        if self.memory.base is not None or self.memory.codes is None:
            return [] if self.memory.base is None else [self.memory.base]
        return [self.walk.bases[number] for number in numbers_in(self.codes)]

    @_until_written
    def owners(self) -> Tensor:
        """The sample each entry belongs to, −1 for constants."""
        if self.batch_first:
            return torch.arange(len(self)).reshape(-1, *[1] * (self.dim() - 1)).expand(self.shape)
        codes = self.codes
        owner = torch.full(self.shape, -1, dtype=torch.long)
        for base in self.used():
            own = from_base(codes, base.number)
            owner[own] = owner_of_positions(base)[decoded(codes[own])[1]]
        return owner

    @_until_written
    def alike(self) -> bool:
        """Whether all samples are treated alike: they consist of the same entries, in the same places."""
        if self.memory.base is not None and self.batch_first:
            return True
        owner, codes = self.owners(), self.codes
        front = self.value.dim() > 0 and self.shape[0] == self.walk.batch and self._in_front(owner)
        for base in self.used():
            if base.owner is not None:
                continue  # that of a value whose samples were told apart when it was computed
            own = from_base(codes, base.number)
            if front:
                shift = torch.arange(self.walk.batch).reshape(-1, *[1] * (codes.dim() - 1)) * base.stride[0]
                within = torch.where(own, codes - shift, 0.0)
                if not bool((within == within[:1]).all()):
                    return False
                continue
            within = decoded(codes[own])[1] - owner[own] * base.stride[0]
            order = [within[owner[own] == b].sort().values for b in range(base.shape[0])]
            if not all(torch.equal(order[0], other) for other in order[1:]):
                return False
        return not front or bool(((codes > 0) == (codes[:1] > 0)).all())

    def _in_front(self, owner: Tensor) -> bool:
        samples = torch.arange(self.walk.batch).reshape(-1, *[1] * (owner.dim() - 1))
        return bool(((owner < 0) | (owner == samples)).all())

    @property
    def batch_first(self) -> bool:
        """Whether axis 0 is known to be the batch, without looking at every entry."""
        base, inner = self.memory.base, self.value
        return (
            base is not None
            and base.owner is None
            and inner.dim() > 0
            and inner.shape[0] == base.shape[0]
            and inner.stride(0) == base.stride[0]
            and inner.storage_offset() < base.stride[0]
            and sum((n - 1) * s for n, s in zip(inner.shape[1:], inner.stride()[1:], strict=True))
            + inner.storage_offset()
            < base.stride[0]
        )


def tensors_in(x: Any) -> Iterator[Tensor]:
    """The tensors among the arguments or results of an operator."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, (tuple, list, dict)):
        for part in x.values() if isinstance(x, dict) else x:
            yield from tensors_in(part)


def replaced(x: Any, by: Callable[[Tensor], Any]) -> Any:
    """The arguments or results of an operator with other tensors."""
    if isinstance(x, Tensor):
        return by(x)
    if isinstance(x, dict):
        return {name: replaced(part, by) for name, part in x.items()}
    if isinstance(x, (tuple, list)) and any(True for _ in tensors_in(x)):
        return [replaced(part, by) for part in x] if isinstance(x, list) else tuple(replaced(part, by) for part in x)
    return x


def plain(x: Any) -> Any:
    """The tensors behind tracked ones."""
    return replaced(x, lambda t: t.value if isinstance(t, Tracked) else t)


class Memories:
    """The memories of the tensors of a walk, by address."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()

    def find(self, tensor: Tensor) -> Memory | None:
        """The memory a tensor lies in, if it is one of these."""
        address = tensor.untyped_storage().data_ptr()
        return self._known.get(address) if address else None

    def of(self, tensor: Tensor) -> Memory:
        """The memory a tensor lies in, a new one if need be."""
        found = self.find(tensor)
        if found is None:
            storage = tensor.untyped_storage()
            found = Memory(storage, tensor.dtype, tensor.device)
            if storage.data_ptr():
                self._known[storage.data_ptr()] = found
        return found


def _dense(x: Tensor) -> bool:
    """Whether the entries of a tensor are distinct positions without gaps."""
    expected = 1
    for n, s in sorted(zip(x.shape, x.stride(), strict=True), key=lambda pair: pair[1]):
        if n != 1:
            if s != expected:
                return False
            expected *= n
    return True
