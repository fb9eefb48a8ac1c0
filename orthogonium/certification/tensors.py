"""The tensors of a walk: its input, constants, and what operations compute, with norms, rounding and reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.failures import TraceError
from orthogonium.certification.places import Places
from orthogonium.certification.rounding import Error, underflow, unit_roundoff
from orthogonium.certification.rules.call import Effect, Jump
from orthogonium.certification.tracked import Memories, Tracked
from orthogonium.certification.values import Base, largest
from orthogonium.certification.walk_record import WalkRecord


class Tensors(WalkRecord):
    """Bases in order of computation, the memory they lie in, and how large inputs may be before one overflows."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self.bases: list[Base] = []
        self.memories = Memories()
        self.reach = math.inf  # the input norm up to which no number overflows

    @property
    def batch(self) -> int:
        """Number of samples."""
        return self.bases[0].shape[0]

    def take(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """How a walk treats a function that may be taken as a whole."""
        raise NotImplementedError

    def input(self, zeros: Tensor) -> Tracked:
        """The input of the network, batch in front."""
        return self.made(zeros, Base(0, tuple(zeros.shape), tuple(zeros.stride()), (), dtype=zeros.dtype))

    def made(self, inner: Tensor, base: Base) -> Tracked:
        """A tensor that is a base."""
        memory = self.memories.of(inner)
        memory.base = base
        self.bases.append(base)
        return Tracked(inner, memory, self)

    def constant(self, inner: Tensor) -> Tracked:
        """A tensor made during the walk that does not depend on the input, but may be written to."""
        return Tracked(inner, self.memories.of(inner), self)

    def computed(self, inner: Tensor, effect: Effect | Jump, operands: Sequence[Tracked], name: str) -> Tracked:
        """The output of an operation, as a new base."""
        for x in operands:
            self.check_alike(x)
        if self.memories.find(inner) is not None or not _fills_its_memory(inner):
            inner = inner.clone(memory_format=torch.contiguous_format)
        number, shape, stride = len(self.bases), tuple(inner.shape), tuple(inner.stride())
        if isinstance(effect, Jump):
            terms = tuple(x.form() for x in operands)
            owner = everything(inner, self.batch) if effect.owner is None else effect.owner
            base = Base(number, shape, stride, terms, _flat(inner, owner), reason=(name, effect), origin=effect.origin)
            if effect.root is not None:
                self._within(inner.dtype, math.sqrt(_norm(inner, self.batch, order=1)), effect.root.bound, 2.0)
            return self.made(inner, base)
        base = Base(number, shape, stride, effect.terms, _flat(inner, effect.owner), origin=effect.origin)
        if effect.owner is None and (not shape or shape[0] != self.batch):
            raise AssertionError("A rule has lost the batch.")
        self._size(base, inner, effect, operands)
        return self.made(inner, base)

    def _size(self, base: Base, inner: Tensor, effect: Effect, operands: Sequence[Tracked]) -> None:
        """Norm at the input 0, rounding and reach (Note [Rounding along the walk])."""
        base.size = _norm(inner, self.batch)
        if not inner.is_floating_point():
            return
        error = Error()
        for form, factor in (*((form, 1.0) for form in effect.terms), *effect.carried):
            for source, w in form.items():
                error = error.plus(source.error.scaled(factor * math.sqrt(largest(w))))
        local, dtype = effect.local, inner.dtype
        base.error = error
        for x in operands:
            size = _norm(x.value, self.batch) * local.inside + local.beside
            self._within(dtype, size, x.form().bound * local.inside, local.power)
        self._within(dtype, base.size, base.bound, local.power)
        if not (local.read or local.written):
            return
        count = max(inner.numel(), 1)
        lost = underflow(dtype) * math.sqrt(count) + local.lost
        if local.power != 1:
            entries = max(x.numel() for x in operands)
            lost += (entries * underflow(dtype)) ** (1 / local.power) * math.sqrt(count)
        reads = local.read or local.sums
        read = math.fsum(_norm(x.value, self.batch) for x in operands) if reads else 0.0
        slope = math.fsum(x.form().bound for x in operands) if reads else 0.0
        proved = (
            local.read * read + local.written * base.size + local.offset + lost,
            local.read * slope + local.written * base.bound,
        )
        unit = max(unit_roundoff(dtype), local.unit)
        floor = (
            unit * (base.size + local.beside) + local.sums * read + lost,
            max(unit * base.bound, local.sums * slope),
        )
        base.error = error.plus(Error(proved, floor))

    def _within(self, dtype: torch.dtype, size: float, bound: float, power: float) -> None:
        """Put inputs out of reach for which `(size + bound·‖x‖)^power` overflows in the dtype."""
        most = (torch.finfo(dtype).max / 2) ** (1 / power)
        if 0 < bound < math.inf:  # energies have no bound; their roots do, and are checked instead
            self.reach = min(self.reach, max(most - size, 0.0) / bound)

    def check_alike(self, x: Tracked) -> None:
        """What is computed for a sample must not depend on its place in the batch."""
        if not x.alike():
            raise TraceError(
                f"{self.place} treats the samples of the batch differently, by their place. Index from the second axis "
                "on: x[:, …]."
            )


def _fills_its_memory(t: Tensor) -> bool:
    return t.storage_offset() == 0 and t.untyped_storage().nbytes() == t.numel() * t.dtype.itemsize


def _norm(x: Tensor, batch: int, order: float = 2) -> float:
    """An upper bound of the norm of a sample."""
    if not x.numel() or not x.is_floating_point():
        return 0.0
    rows = x.reshape(batch, -1) if x.dim() and x.shape[0] == batch else x.reshape(1, -1)
    return float(torch.linalg.vector_norm(rows.double(), order, dim=1).max()) * (1 + 1e-12)


def everything(t: Tensor, batch: int) -> Tensor | None:
    """Samples of an output about which nothing is known: axis 0, if that may be the batch."""
    return None if t.dim() and t.shape[0] == batch else torch.full(t.shape, -1, dtype=torch.long)


def _flat(inner: Tensor, owner: Tensor | None) -> Tensor | None:
    """Samples by position in memory."""
    if owner is None:
        return None
    flat = torch.full((inner.untyped_storage().nbytes() // inner.dtype.itemsize,), -1, dtype=torch.long)
    flat.as_strided(inner.shape, inner.stride()).copy_(owner.expand(inner.shape))
    return flat
