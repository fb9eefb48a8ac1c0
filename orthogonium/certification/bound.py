"""The Lipschitz constant of a whole model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor, nn

from orthogonium.certification.failures import RefutedError, TraceError, Unbounded, UnboundedError
from orthogonium.certification.function_rules import function_rule
from orthogonium.certification.layer_rules import layer_rule, summarized
from orthogonium.certification.slopes import steepest_secant
from orthogonium.certification.tracking import Step, Tracked
from orthogonium.certification.walk import BATCH, Walker, unchanged, walk
from orthogonium.errors import ParameterError, ShapeError


@dataclass(frozen=True)
class Head:
    """The dense layer that computes the output, and the bound of everything before it."""

    layer: nn.Linear
    features_bound: float


@dataclass(frozen=True)
class LipschitzBound:
    """A number by which no two inputs are moved further apart, and the steps it is made of.

    Attributes:
        value: the bound, rounding of its own computation included.
        steps: the operations that were met, in order.
        slack: the part of `value` that is rounding, relative to it.
        steepest: the largest factor by which inputs were seen to move apart, so `steepest ≤ constant ≤ value`.
        head: the dense layer the model ends in, if it does, and the bound of everything before it.
    """

    value: float
    steps: tuple[Step, ...]
    slack: float
    steepest: float
    head: Head | None = None

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.7g}-Lipschitz ({len(self.steps)} steps, rounding {self.slack:.1e})"


@dataclass(frozen=True)
class Survey:
    """Everything a walk has found, bounded or not."""

    value: float
    steps: tuple[Step, ...]
    unbounded: tuple[Unbounded, ...]
    head: Head | None


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside wrappers for compilation, several devices, or averages of weights."""
    while True:
        if isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


def kind_of_input(model: nn.Module) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of the first floating parameter or buffer."""
    held = (t for t in itertools.chain(model.parameters(), model.buffers()) if t.is_floating_point())
    first = next(held, None)
    return (torch.get_default_dtype(), torch.device("cpu")) if first is None else (first.dtype, first.device)


def _sizes(input_shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(input_shape) if isinstance(input_shape, Iterable) else ()
    if not sizes or any(not isinstance(n, Integral) or n < 1 for n in sizes):
        raise ParameterError(
            f"input_shape is the shape of one sample without the batch, e.g. (3, 32, 32): got {input_shape!r}."
        )
    return tuple(int(n) for n in sizes)


def survey(model: nn.Module, input_shape: Sequence[int]) -> Survey:
    """Walk the model on inputs of this shape (of one sample)."""
    if not isinstance(model, nn.Module):
        raise ParameterError(f"Only modules have a bound: got {type(model).__name__}. Wrap a function in an nn.Module.")
    shape = _sizes(input_shape)
    model = unwrapped(model)
    dtype, device = kind_of_input(model)
    walker = Walker(function_rule, layer_rule, summarized)
    try:
        output = walk(model, torch.zeros(BATCH, *shape, dtype=dtype, device=device), walker)
    except (RuntimeError, IndexError) as error:
        if walker.lost is not None:
            raise walker.lost from error
        raise ShapeError(
            f"The model does not run on a batch of {BATCH} inputs of shape {shape} without gradients ({walker.failed}): "
            f"{error}"
        ) from error
    if not isinstance(output, Tensor):
        raise TraceError(
            f"The model returns {type(output).__name__}: wrap it so that it returns the one tensor to bound."
        )
    if not isinstance(output, Tracked):
        raise TraceError(
            "The output of the model does not depend on its input by torch functions that can be followed."
        )
    with torch._C.DisableTorchFunctionSubclass():
        if output.shape[:1] != (BATCH,):
            raise TraceError(
                f"The model returns {tuple(output.shape)} for a batch of {BATCH}: keep the batch in front."
            )
    bound = output.value.bound
    walker.reveal(output.value)
    last = walker.last_dense
    head = Head(last[1], last[2].bound) if last is not None and last[0] is output else None
    return Survey(bound, tuple(walker.steps), tuple(walker.unbounded), head)


def compared(model: nn.Module, input_shape: Sequence[int], bound: float) -> tuple[float, str | None]:
    """The steepest secant found, and what it says against the bound, if it does."""
    model = unwrapped(model)
    dtype, device = kind_of_input(model)
    with unchanged(model):
        steepest = steepest_secant(model, _sizes(input_shape), dtype, device)
    if not steepest > bound * (1 + max(1e-3, 64 * torch.finfo(dtype).eps)) + 1e-6:
        return steepest, None
    return steepest, (
        f"Two inputs are moved apart by a factor of {steepest:.6g}, but the bound is {bound:.6g}: some operation is not "
        "what it seems to be. Custom functions in C++ do this, and a forward pass in low precision."
    )


def lipschitz_bound(model: nn.Module, input_shape: Sequence[int]) -> LipschitzBound:
    """A certified upper bound of the Lipschitz constant of any model in the Euclidean norm, for inputs of one shape.

    The model is run once and every operation met is bounded (see `walk`): series multiply, sums add, concatenation is
    √Σ² (less where disjoint pieces are joined again), linear layers are measured, ours too, and functions have known
    constants. Eval mode is what is usually meant. Secants at a few random points are compared with the result.

    Args:
        model: any module from one tensor to one tensor. It is left unchanged.
        input_shape: of one sample, without the batch.

    Raises:
        UnboundedError: with every operation that has no bound, its place and what to use instead.
        TraceError: if what the model computes depends on values.

    >>> from orthogonium import lipschitz_bound
    >>> from torch import nn
    >>> model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 2, bias=False))
    >>> _ = nn.init.eye_(model[2].weight)
    >>> round(lipschitz_bound(model, (1, 4, 4)).value, 6)
    0.5
    """
    found = survey(model, input_shape)
    if found.unbounded:
        raise UnboundedError(found.unbounded)
    slack = sum(step.slack for step in found.steps) + 1e-13 * len(found.steps)
    steepest, refutation = compared(model, input_shape, found.value)
    if refutation is not None:
        raise RefutedError(refutation)
    return LipschitzBound(found.value, found.steps, slack, steepest, found.head)
