"""Codes of entries: which entry of which base a number in memory is a copy of.

The entry at position p of the memory of base n has the code `1 + n·2³² + p`; constants have 0. Codes are float64
numbers, exact below 2⁵³, because every operator that copies entries runs on those.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthogonium.certification.values import Base, Form

_SPAN = 2.0**32


def codes_at(number: int, positions: Tensor) -> Tensor:
    """Codes of the entries of a base at these positions of its memory."""
    return positions.double() + (1 + number * _SPAN)


def codes_of(base: Base) -> Tensor:
    """Codes of all entries of a base, in its shape."""
    return codes_at(base.number, torch.arange(extent(base))).as_strided(base.shape, base.stride)


def decoded(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of bases and positions in their memory; those of constants mean nothing."""
    numbers = ((codes - 1) / _SPAN).floor_()
    return numbers, (codes - 1 - numbers * _SPAN).long()


def numbers_in(codes: Tensor) -> list[int]:
    """The bases that entries come from."""
    if not codes.numel() or float(codes.max()) <= 0:
        return []
    stored = codes if float(codes.min()) > 0 else codes[codes > 0]
    low, high = (int((float(end) - 1) // _SPAN) for end in stored.aminmax())
    return [low] if low == high else ((stored - 1) / _SPAN).floor_().unique().long().tolist()


def whole_base(codes: Tensor, bases: Sequence[Base]) -> Base | None:
    """The base whose entries these are, all of them and in order."""
    numbers = numbers_in(codes)
    base = bases[numbers[0]] if len(numbers) == 1 else None
    return base if base is not None and torch.equal(codes, codes_of(base)) else None


def from_base(codes: Tensor, number: int) -> Tensor:
    """Which entries come from a base."""
    return (codes > number * _SPAN) & (codes <= (number + 1) * _SPAN)


def form_of(codes: Tensor, bases: Sequence[Base], weights: Tensor | None = None) -> Form:
    """The form of a tensor with these sources; `weights` (≥ 0) are those of its entries."""
    w = torch.ones(codes.numel(), dtype=torch.float64)
    if weights is not None:
        w = weights.to("cpu", torch.float64).expand(codes.shape).reshape(-1) * (1 + 2.0**-50)
    codes = codes.reshape(-1)
    stored = codes > 0
    codes, w = codes[stored], w[stored]
    form = Form()
    for number in numbers_in(codes):
        base = bases[number]
        own = from_base(codes, number)
        sums = torch.zeros(extent(base), dtype=torch.float64)
        sums.index_add_(0, decoded(codes[own])[1], w[own])
        low, high = float(sums.min()), float(sums.max())
        form[base] = high if low == high else sums
    return form


def numel(base: Base) -> int:
    """Number of entries of a base."""
    return int(torch.Size(base.shape).numel())


def extent(base: Base) -> int:
    """Positions of the memory of a base."""
    return 1 + sum((n - 1) * s for n, s in zip(base.shape, base.stride, strict=True)) if numel(base) else 0


def owner_of_positions(base: Base) -> Tensor:
    """The sample that each position in the memory of a base belongs to."""
    if base.owner is None:
        flat = torch.full((extent(base),), -1, dtype=torch.long)
        samples = torch.arange(base.shape[0]).reshape(-1, *[1] * (len(base.shape) - 1)).expand(base.shape)
        flat.as_strided(base.shape, base.stride).copy_(samples)
        return flat
    return base.owner
