"""Several tensors as one vector, so that a block with more than one kernel keeps a single constrained `weight`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.methods.constraint import Constraint

Device = torch.device | str | None


class Packing:
    """Shapes of tensors that are stored one after the other in a vector.

    >>> packing = Packing((2, 3), (4,))
    >>> a, b = packing.unpack(packing.pack(torch.ones(2, 3), torch.zeros(4)))
    >>> a.shape, b.shape
    (torch.Size([2, 3]), torch.Size([4]))
    """

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.shapes = shapes
        self.sizes = [math.prod(shape) for shape in shapes]

    def pack(self, *tensors: Tensor) -> Tensor:
        """The vector of all entries."""
        assert [t.numel() for t in tensors] == self.sizes
        return torch.cat([t.reshape(-1) for t in tensors])

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """The tensors, as views."""
        return [t.view(shape) for t, shape in zip(packed.split(self.sizes), self.shapes, strict=True)]


class PackedConstraint(Constraint):
    """A constraint that builds several tensors. `build` returns them packed."""

    packing: Packing

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Raw parameters to start from."""
        raise NotImplementedError
