"""The Lipschitz constant of a whole model."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.certification.failures import RefutedError, TraceError, Unbounded, UnboundedError
from orthogonium.certification.other_ways import other_ways
from orthogonium.certification.places import Places, as_written
from orthogonium.certification.render import at_most
from orthogonium.certification.rounding import Error
from orthogonium.certification.rules import ADVICE, RULES, WHOLES, recognized
from orthogonium.certification.rules.arithmetic import Scale
from orthogonium.certification.rules.movement import BESIDE_ANY_CONSTANT
from orthogonium.certification.rules.products import Dense
from orthogonium.certification.sources import decoded, owner_of_positions
from orthogonium.certification.state import unchanged
from orthogonium.certification.steps import Step
from orthogonium.certification.tracked import Tracked
from orthogonium.certification.values import Base, largest
from orthogonium.certification.walk import Walk, walk_model
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.wrappers import unwrapped
from orthogonium.spectral import Quotient, exact_twin, steepest_quotient

_NOISE = 64.0  # units in the last place by which an evaluation may be off, relative to input and output
_SEARCH = 160  # samples a bound is compared with: as many as an audit of a deep network can afford
_BATCHES = (2, 3)  # batch sizes of the walks: samples can be told apart, and constants must not depend on the size


@dataclass(frozen=True)
class HeadMatrix:
    """The matrix that maps features to outputs, as applied, and the Lipschitz bound of the features."""

    weight: Tensor  # (outputs, features), float64
    features_bound: float


@dataclass(frozen=True)
class LipschitzBound:
    """An upper bound of the factor by which a model moves two inputs apart, and the steps it is made of.

    Attributes:
        value: the bound, including the rounding of its own computation.
        steps: the operations encountered, in order.
        slack: the part of `value` that is due to rounding, relative to `value`.
        steepest: the largest factor by which two inputs were seen to move apart, so `steepest ≤ constant ≤ value`.
        head: the matrix the model ends in, if any, and the bound of everything before it.
        error: a bound of the rounding error of the forward pass in the model's own arithmetic.
        reach: the largest norm of an input for which no intermediate number can overflow.
    """

    value: float
    steps: tuple[Step, ...]
    slack: float
    steepest: float
    head: HeadMatrix | None = None
    error: Error = Error()
    reach: float = math.inf

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{at_most(self.value)}-Lipschitz ({len(self.steps)} steps, rounding {self.slack:.1e})"


@dataclass(frozen=True)
class Survey:
    """Everything a walk has found, whether bounded or not."""

    value: float
    steps: tuple[Step, ...]
    unbounded: tuple[Unbounded, ...]
    head: HeadMatrix | None
    error: Error
    reach: float


def kind_of_input(model: nn.Module) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of the first floating parameter or buffer."""
    held = (t for t in itertools.chain(model.parameters(), model.buffers()) if t.is_floating_point() and not t.is_meta)
    first = next(held, None)
    return (torch.get_default_dtype(), torch.device("cpu")) if first is None else (first.dtype, first.device)


def sample_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of one sample, checked."""
    sizes = tuple(input_shape) if isinstance(input_shape, Iterable) else ()
    if not sizes or any(not isinstance(n, Integral) or n < 1 for n in sizes):
        raise ParameterError(
            f"input_shape is the shape of one sample without the batch, e.g. (3, 32, 32): got {input_shape!r}."
        )
    return tuple(int(n) for n in sizes)


def survey(model: nn.Module, input_shape: Sequence[int]) -> Survey:
    """Walk the model on inputs of this shape (of one sample), with two batch sizes."""
    if not isinstance(model, nn.Module):
        raise ParameterError(f"Only modules have a bound: got {type(model).__name__}. Wrap a function in an nn.Module.")
    shape = sample_shape(input_shape)
    model = unwrapped(model)
    with unchanged(model):
        _warm_up(model, shape)
        measured: list[Any] = []  # spectra, which both walks need
        first, second = (_walked(model, shape, batch, measured) for batch in _BATCHES)
    if not math.isclose(first.value, second.value, rel_tol=1e-12) and not (first.unbounded and second.unbounded):
        raise TraceError(
            f"The constant depends on the size of the batch: {first.value:.7g} for {_BATCHES[0]} samples, "
            f"{second.value:.7g} for {_BATCHES[1]}. What the model computes for a sample must not depend on their "
            "number."
        )
    return first


def _warm_up(model: nn.Module, shape: tuple[int, ...]) -> None:
    """An ordinary call, which fails as it would for any caller, and fills caches with ordinary tensors."""
    dtype, device = kind_of_input(model)
    for batch in _BATCHES:
        places = Places(model)
        try:
            with as_written(), places.followed():
                model(torch.zeros(batch, *shape, dtype=dtype, device=device))
        except (RuntimeError, IndexError, NotImplementedError, AssertionError) as error:
            exported = isinstance(model, torch.fx.GraphModule) or isinstance(error, AssertionError)
            if batch != _BATCHES[0] and not exported:
                return  # because of something kept from the first call, which the walk will report
            raise ShapeError(
                f"The model does not run on a batch of {batch} inputs of shape {shape} without gradients "
                f"({places.failed or places.place}): {error} (Exported programs need dynamic_shapes for the batch.)"
            ) from error


def _walked(model: nn.Module, shape: tuple[int, ...], batch: int, measured: list[Any]) -> Survey:
    dtype, device = kind_of_input(model)
    walk = Walk(RULES, recognized, WHOLES, ADVICE, Places(model), BESIDE_ANY_CONSTANT)
    walk.measured = measured
    drawn = _drawn()
    try:
        output = walk_model(model, torch.zeros(batch, *shape, dtype=dtype, device=device), walk)
    except (RuntimeError, LookupError, NotImplementedError) as error:
        raise TraceError(
            f"{walk.places.failed or walk.place} does something with a value computed from the input that cannot be "
            f"followed: {error} Call torch functions on x itself, and keep diagnostics out of forward."
        ) from error
    if _drawn() != drawn:
        raise TraceError(
            "The model draws random numbers by Python or NumPy: each call is another function. Leave them out."
        )
    if walk.lost is not None:
        raise TraceError(
            f"{walk.place} goes on after a failure to follow what it computes, perhaps with something else: {walk.lost}"
        ) from walk.lost
    if not isinstance(output, Tensor):
        raise TraceError(
            f"The model returns {type(output).__name__}: wrap it so that it returns the one tensor to bound."
        )
    if not isinstance(output, Tracked) or output.constant:
        raise TraceError(
            "The output of the model does not depend on its input by torch functions that can be followed."
        )
    for base in output.used():
        walk.reveal(base)
    if output.shape[:1] != (batch,) or not (output.batch_first or _in_order(output, batch)):
        if not walk.unbounded:
            raise TraceError(
                f"The model returns {tuple(output.shape)} for a batch of {batch}: keep the samples in front, and apart."
            )
    walk.check_alike(output)
    form = output.form()
    if math.isinf(form.bound) and not walk.unbounded:  # through operations that are bounded only in combination
        for base in walk.bases:
            walk.reveal(base)
    rounding = Error()
    for base, w in form.items():
        rounding = rounding.plus(base.error.scaled(math.sqrt(largest(w))))
    return Survey(form.bound, tuple(walk.steps), tuple(walk.unbounded), _head(output, walk), rounding, walk.reach)


def _drawn() -> tuple[Any, ...]:
    """The states of random number generators that torch does not know about."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else repr(numpy.random.get_state())


def _in_order(output: Tracked, batch: int) -> bool:
    """Whether the entries that belong to a sample are at the position of that sample."""
    owner = output.owners()
    expected = torch.arange(batch).reshape(-1, *[1] * (owner.dim() - 1))
    return bool(((owner < 0) | (owner == expected)).all())


def _head(output: Tracked, walk: Walk) -> HeadMatrix | None:
    """The matrix behind the entries of an output (n, classes): rows of one product, moved, scaled and translated."""
    if output.dim() != 2:
        return None
    heads = [_head_of(output.codes[sample], walk) for sample in range(walk.batch)]
    first = heads[0]
    if first is None or not all(other is not None and torch.equal(first.weight, other.weight) for other in heads[1:]):
        return None
    return first


def _head_of(codes: Tensor, walk: Walk) -> HeadMatrix | None:
    """The matrix behind the entries of one sample."""
    codes, scale = codes.clone(), torch.ones(len(codes), dtype=torch.float64)
    while True:
        if not bool((codes > 0).all()):
            return None
        numbers, positions = decoded(codes)
        if len(numbers.unique()) != 1:
            return None
        base = walk.bases[int(numbers[0])]
        if isinstance(base.origin, Dense):
            rows = positions % base.shape[1]
            if base.owner is not None or tuple(base.stride) != (base.shape[1], 1):
                return None
            return HeadMatrix(scale[:, None] * base.origin.weight[rows], base.origin.features)
        if not isinstance(base.origin, Scale) or owner_of_positions(base)[positions].unique().numel() != 1:
            return None
        codes = _by_position(base, base.origin.codes)[positions]
        scale = scale * _by_position(base, base.origin.coefficient)[positions]


def _by_position(base: Base, x: Tensor) -> Tensor:
    """Entries of a tensor in the shape of a base, by position in its memory."""
    flat = torch.zeros(torch.Size(base.shape).numel(), dtype=torch.float64)
    flat.as_strided(base.shape, base.stride).copy_(x.expand(base.shape))
    return flat


def compared(model: nn.Module, input_shape: Sequence[int], bound: float, error: Error) -> tuple[float, str | None]:
    """The largest quotient of distances found by ascent, and an objection if it refutes the bound.

    `error` is the rounding of the model, for intermediate numbers that are larger than its inputs and outputs.
    """
    model = unwrapped(model)
    dtype, device = kind_of_input(model)
    shape = sample_shape(input_shape)
    with unchanged(model), as_written():
        otherwise = other_ways(model, shape, dtype, device, bound, error)
        if otherwise is not None:
            raise TraceError(otherwise)
        for fn, kind in _arithmetics(model, shape, dtype):
            noise = _NOISE * torch.finfo(kind).eps
            for scales in ((1e-3, 1.0, 1e3), (1e-3, 1.0)):  # the largest may overflow in half precision
                found = steepest_quotient(
                    _copied(fn), shape, dtype=kind, device=device, scales=scales, budget=_SEARCH, noise=noise
                )
                if found.finite:
                    break
            unit = torch.finfo(kind).eps / torch.finfo(dtype).eps
            if found.finite and not found.lower > bound * (1 + noise) + _explained(found, error, unit):
                return found.lower, None
    if not found.finite:
        return math.inf, "Its output is infinite or NaN for an input of ordinary size."
    return found.lower, (
        f"Two inputs are moved apart by a factor of {found.lower:.6g}, but the bound is {bound:.6g}: some operation is "
        "not what it seems to be. Custom functions in C++ do this."
    )


def _explained(found: Quotient, error: Error, unit: float) -> float:
    """How much of a quotient the rounding along the walk may explain, in arithmetic with another unit roundoff."""
    ends = [end.double().flatten() for end in (found.x, found.y)]
    distance, norms = float((ends[0] - ends[1]).norm()), sum(float(end.norm()) for end in ends)
    constant, slope = error.proved
    explained = unit * (2 * constant + slope * norms) / distance if distance else 0.0
    return explained if math.isfinite(explained) else 0.0


def _arithmetics(
    model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype
) -> Iterator[tuple[Callable[[Tensor], Tensor], torch.dtype]]:
    """The model in its own arithmetic, if that has enough digits to judge by, and in float64.

    Where they disagree the last one counts: the bound refers to exact arithmetic.
    """
    fine = torch.finfo(dtype).eps <= torch.finfo(torch.float32).eps
    if fine:
        yield model, dtype
    twin = exact_twin(model, shape)
    if twin is not None:
        yield twin, torch.float64
    elif not fine:
        yield model, dtype


def _copied(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The function applied to a copy of its input, which it may change in place."""
    return lambda x: fn(x * 1)


def lipschitz_bound(model: nn.Module, input_shape: Sequence[int]) -> LipschitzBound:
    """Certified upper bound of the Lipschitz constant of any model in the Euclidean norm, for inputs of a given shape.

    The model is run and all its operators are bounded (see `walk`): constants multiply in series, add in sums, and
    become √Σ² in concatenations (less where disjoint pieces are rejoined). Linear layers are measured, even ours;
    functions have known constants. Eval mode is usually wanted. Quotients found by ascent are compared with the result.

    Args:
        model: any module that maps one tensor to one tensor. It is left unchanged.
        input_shape: shape of one sample, without the batch dimension.

    Raises:
        UnboundedError: lists every operation that has no bound, its place and what to use instead.
        TraceError: if the values of the input decide what the model computes.

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
    steepest, refutation = compared(model, input_shape, found.value, found.error)
    if refutation is not None:
        raise RefutedError(refutation)
    return LipschitzBound(found.value, found.steps, slack, steepest, found.head, found.error, found.reach)
