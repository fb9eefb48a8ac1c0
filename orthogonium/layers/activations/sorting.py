"""Activations that permute their input: MaxMin, GroupSort, FullSort, and MaxMin written with ReLU alone.

Anil, Lucas, Grosse, "Sorting out Lipschitz function approximation" (2019). The Jacobian is a permutation matrix, so
gradient norms are unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.activations.axes import ISOMETRY, halves, positive_axis
from orthogonium.layers.whole import as_a_whole
from orthogonium.linalg.evaluation import has_values, waits

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _exchange(x: Tensor, keep: Tensor, axis: int) -> Tensor:
    """The two entries of `axis`, kept in place where `keep` holds and swapped elsewhere."""
    a, b = x.unbind(axis)
    if not has_values(x) or waits(x):
        return torch.stack([torch.where(keep, a, b), torch.where(keep, b, a)], dim=axis)
    if x.requires_grad and torch.is_grad_enabled():
        return _Exchange.apply(x, keep, axis)
    # On a CPU `where` branches at each number, often mispredicted: ten times the cost of masking the bits.
    bits = _INTEGERS[x.dtype.itemsize]
    result = torch.empty_like(x)
    first, second = result.view(bits).unbind(axis)
    a, b = a.view(bits), b.view(bits)
    difference = (a ^ b).mul_(keep)
    torch.bitwise_xor(b, difference, out=first)
    torch.bitwise_xor(a, difference, out=second)
    return result


class _Exchange(torch.autograd.Function):
    """`_exchange` as one self-adjoint node: its gradient is itself. Torch's would write five images instead of one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, axis: int) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.axis = axis
        return _exchange(x, keep, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _exchange(grad, ctx.saved_tensors[0], ctx.axis), None, None


@as_a_whole
def max_min(x: Tensor, axis: int = 1) -> Tensor:
    """`(a, b) ↦ (max(a, b), min(a, b))` for the two halves `a`, `b` of `axis`."""
    a, b, axis = halves(x, axis, "MaxMin")
    return _exchange(x.unflatten(axis, (2, -1)), a >= b, axis).flatten(axis, axis + 1)


@as_a_whole
def relu_max_min(x: Tensor, axis: int = 1) -> Tensor:
    """`(a, b) ↦ (b + relu(a − b), a − relu(a − b))`: `max_min` built from additions and one ReLU."""
    a, b, axis = halves(x, axis, "ReLUMaxMin")
    excess = F.relu(a - b)
    return torch.cat([b + excess, a - excess], dim=axis)


@as_a_whole
def group_sort(x: Tensor, group_size: int, axis: int = 1) -> Tensor:
    """Each group of `group_size` consecutive entries of `axis` in ascending order."""
    axis = positive_axis(x, axis, "GroupSort")
    size = x.shape[axis]
    if size % group_size:
        raise ShapeError(
            f"GroupSort sorts groups of {group_size} along axis {axis}, so its size must be a multiple of "
            f"{group_size}: got {size} (input of shape {tuple(x.shape)}). Change the channels or the group size."
        )
    groups = x.unflatten(axis, (size // group_size, group_size))
    if group_size == 2:  # one comparison instead of a general sort
        a, b = groups.unbind(axis + 1)
        ordered = _exchange(groups, a <= b, axis + 1)
    else:
        ordered = groups.sort(dim=axis + 1).values
    return ordered.flatten(axis, axis + 1)


class MaxMin(nn.Module):
    """Maximum and minimum of two halves: `(a, b) ↦ (max(a, b), min(a, b))`.

    Channel `i` is paired with channel `i + c/2` (`GroupSort(2)` pairs neighbours instead, in ascending order).

    Guarantee: the Jacobian is a permutation at every input, ties included.

    Args:
        axis: the axis to halve; its size must be even.

    >>> from orthogonium.layers.custom_activations import MaxMin
    >>> MaxMin()(torch.tensor([[1.0, 5.0, 3.0, 4.0]]))
    tensor([[3., 5., 1., 4.]])
    """

    guarantee = ISOMETRY

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, z: Tensor) -> Tensor:
        """Same shape as `z`."""
        return max_min(z, self.axis)

    def extra_repr(self) -> str:
        """Arguments that are not the default."""
        return "" if self.axis == 1 else f"axis={self.axis}"


class ReLUMaxMin(MaxMin):
    """`MaxMin` built from subtraction, addition and one ReLU, for verifiers and runtimes that support nothing else.

    `max(a, b) = b + relu(a − b)`, `min(a, b) = a − relu(a − b)`. It has no parameters, so it can replace any `MaxMin`
    of a trained network. Values agree with `MaxMin` up to one rounding of `a − b`.

    Guarantee: the Jacobian is a permutation at every input.

    >>> from orthogonium.layers.custom_activations import MaxMin, ReLUMaxMin
    >>> x = torch.randn(2, 6, 5, 5)
    >>> torch.allclose(ReLUMaxMin()(x), MaxMin()(x), atol=1e-6)
    True
    """

    def forward(self, z: Tensor) -> Tensor:
        """Same shape as `z`."""
        return relu_max_min(z, self.axis)


class GroupSort(nn.Module):
    """Sorts each group of `group_size` consecutive channels in ascending order.

    Guarantee: the Jacobian is a permutation at every input.

    Args:
        group_size: channels per group, at least 2; it must divide the size of the axis.
        axis: the axis that holds the groups.

    >>> from orthogonium.layers.custom_activations import GroupSort
    >>> GroupSort(3)(torch.tensor([[3.0, 1.0, 2.0, 9.0, 8.0, 7.0]]))
    tensor([[1., 2., 3., 7., 8., 9.]])
    """

    guarantee = ISOMETRY

    def __init__(self, group_size: int, axis: int = 1) -> None:
        super().__init__()
        if group_size < 2:
            raise ParameterError(f"GroupSort needs at least two channels per group to sort: got {group_size}.")
        self.group_size = group_size
        self.axis = axis

    def forward(self, z: Tensor) -> Tensor:
        """Same shape as `z`."""
        return group_sort(z, self.group_size, self.axis)

    def extra_repr(self) -> str:
        """The group size, and the axis when it is not the default."""
        return f"{self.group_size}" + ("" if self.axis == 1 else f", axis={self.axis}")


class FullSort(nn.Module):
    """Sorts all channels in ascending order: `GroupSort` with a single group.

    Guarantee: the Jacobian is a permutation at every input.

    Args:
        axis: the axis to sort.

    >>> from orthogonium.layers.custom_activations import FullSort
    >>> FullSort()(torch.tensor([[3.0, 1.0, 2.0]]))
    tensor([[1., 2., 3.]])
    """

    guarantee = ISOMETRY

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, z: Tensor) -> Tensor:
        """Same shape as `z`."""
        return z.sort(dim=positive_axis(z, self.axis, "FullSort")).values

    def extra_repr(self) -> str:
        """Arguments that are not the default."""
        return "" if self.axis == 1 else f"axis={self.axis}"
