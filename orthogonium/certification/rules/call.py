"""One call of an ATen operator with values of the network, and what a rule says about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from orthogonium.certification.rounding import sum_growth, underflow, unit_roundoff
from orthogonium.certification.tracked import Tracked, plain, tensors_in
from orthogonium.certification.values import Form

if TYPE_CHECKING:
    from orthogonium.certification.walk import Walk

NOT_FINITE = ("It has weights that are infinite or NaN.", "Look for diverged training.")


class NoBound(Exception):
    """Raised by a rule where the operation has no Lipschitz constant."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


@dataclass(frozen=True)
class Local:
    """Rounding of one operation, where M is the norm of what it reads or writes.

    Attributes:
        read: the error is proved to be at most `read·M_in + written·M_out + offset + lost`.
        written: see `read`.
        inside: intermediate numbers are at most `inside·M_in + beside`.
        power: they are powers with this exponent, under a root.
        unit: the unit roundoff of what it reads, where that is shortened to fewer digits than it writes.
        beside: norm of intermediate constants, which may cancel each other in the end.
        offset: proved bound of what their rounding adds.
        lost: what underflow may add.
        sums: the floor of sums, relative to what is read. Note [Rounding along the walk].
    """

    read: float = 0.0
    written: float = 0.0
    inside: float = 1.0
    power: float = 1.0
    unit: float = 0.0
    beside: float = 0.0
    offset: float = 0.0
    lost: float = 0.0
    sums: float = 0.0


@dataclass
class Effect:
    """What a rule says about an output: its terms over the bases, its samples, its rounding.

    `owner` is the sample of each entry, in the shape of the output; None where axis 0 is the batch. A rule that covers
    several operations has terms over the inputs of the first one; `carried` are the values that the last one reads,
    whose errors are included, with the factor by which it passes them on.
    """

    terms: tuple[Form, ...]
    owner: Tensor | None = None
    local: Local = field(default_factory=Local)
    origin: Any = None
    step: dict[str, Any] | None = None  # fields of a step to report, whatever its factor
    carried: tuple[tuple[Form, float], ...] = ()


@dataclass
class Jump:
    """An output that jumps (indices, comparisons): it has no bound, which is reported only if it is used."""

    reason: str
    remedy: str
    origin: Any = None
    owner: Tensor | None = None
    root: Form | None = None  # of the root of an output that is a sum of squares


Rule = Callable[["Call"], "Effect | Sequence[Effect | Jump] | Jump"]


class Call:
    """Arguments by their schema names, with defaults filled in."""

    def __init__(self, walk: Walk, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.walk, self.func, self.args, self.kwargs = walk, func, args, kwargs
        self.given: dict[str, Any] = {}
        for i, argument in enumerate(func._schema.arguments):
            if i < len(args):
                self.given[argument.name] = args[i]
            elif argument.name in kwargs:
                self.given[argument.name] = kwargs[argument.name]
            else:
                self.given[argument.name] = argument.default_value if argument.has_default_value() else None
        self._output: Any = None

    @property
    def name(self) -> str:
        """The name of the operator, as users write it."""
        return self.func._schema.name.split("::")[-1].removeprefix("native_").strip("_")

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments that are not tensors."""
        return {name: value for name, value in self.given.items() if not isinstance(value, Tensor)}

    @property
    def output(self) -> Any:
        """What the operator computes if the input of the network is 0."""
        if self._output is None:
            self._output = self.func(*plain(self.args), **plain(self.kwargs))
        return self._output

    @property
    def operands(self) -> list[Tracked]:
        """The arguments that depend on the input, in order."""
        return [t for t in tensors_in((self.args, self.kwargs)) if isinstance(t, Tracked) and not t.constant]

    def operand(self, name: str = "self") -> Tracked:
        """The argument with this name, if it is the only value the call depends on."""
        x = self.given[name]
        if not (isinstance(x, Tracked) and not x.constant) or len(self.operands) != 1:
            raise NoBound(
                "It depends on several values, or on one as a setting.", "Use constants for all but the input."
            )
        return x

    def constant(self, name: str) -> Any:
        """A tensor or number that does not depend on the input."""
        x = self.given[name]
        if isinstance(x, Tracked):
            if not x.constant:
                raise NoBound(
                    "It depends on several values, or on one as a setting.", "Use constants for all but the input."
                )
            return x.value
        return x

    # ── samples ──

    def together(self, x: Tracked, axes: Sequence[int]) -> Tensor | None:
        """The samples of `x` where entries along `axes` are combined; None where axis 0 is the batch and not in `axes`.

        The result has size 1 along these axes. Raises `NoBound` if the entries of different samples meet.
        """
        dims = max(x.dim(), 1)
        axes = sorted({a % dims for a in axes})
        if x.batch_first and 0 not in axes:
            return None
        owner = x.owners()
        if not axes or not owner.numel():
            return _in_front(owner, self.walk.batch)
        high = owner.amax(axes, keepdim=True)
        low = torch.where(owner < 0, high, owner).amin(axes, keepdim=True)
        if not torch.equal(low, high):
            raise NoBound("It combines the samples of the batch.", "Name the axes, without the first: dim=(1, 2, 3).")
        return _in_front(high, self.walk.batch) if 0 not in axes else high

    def merged(self, *operands: Tracked) -> Tensor | None:
        """The samples of an entrywise function of tensors that are broadcast against each other."""
        shape = self.first_output.shape
        self.check_places((self.args, self.kwargs))
        if all(x.batch_first and x.dim() == len(shape) and x.shape[0] == shape[0] for x in operands):
            return None
        owners = [x.owners().expand(shape) for x in operands]
        high = torch.stack(owners).amax(0)
        if any(bool(((owner >= 0) & (owner != high)).any()) for owner in owners):
            raise NoBound("It combines the samples of the batch.", "Keep the batch in front of every tensor.")
        return _in_front(high, self.walk.batch)

    def check_places(self, arguments: Any) -> None:
        """Constants added to values, entry by entry, must not differ between samples."""
        dims = self.first_output.dim()
        for t in tensors_in(arguments):
            if not is_value(t):
                c = t.value if isinstance(t, Tracked) else t
                if c.dim() == dims and dims and c.shape[0] == self.walk.batch and not bool((c == c[:1]).all()):
                    raise NoBound(
                        "A constant differs from sample to sample, by their place in the batch.",
                        "Give it size 1 there.",
                    )

    @property
    def first_output(self) -> Tensor:
        """The output, or the first of several."""
        return self.output if isinstance(self.output, Tensor) else self.output[0]

    # ── forms ──

    def broadcast(self, x: Tracked, weights: Tensor | None = None) -> Form:
        """The form of `x` broadcast to the output, times the squares of `weights`."""
        shape = self.first_output.shape
        if weights is None and x.shape == shape:
            return x.form()
        copies = shape.numel() // max(x.numel(), 1)
        if weights is None:
            return x.form().scaled(float(copies))
        squares = weights.detach().to("cpu", torch.float64).square().expand(shape)
        lead = len(shape) - x.dim()
        axes = [*range(lead), *(lead + i for i, n in enumerate(x.shape) if n != shape[lead + i])]
        return x.form(squares.sum(axes, keepdim=True).reshape(x.shape) * (1 + 1e-13) if axes else squares)

    def rounded(self, written: float = 1.0, read: float = 0.0, inside: float = 1.0, power: float = 1.0) -> Local:
        """Rounding in units of the last place of the output's dtype."""
        unit = unit_roundoff(self.first_output.dtype) if self.first_output.is_floating_point() else 0.0
        return Local(read * unit, written * unit, inside, power)

    def summed(self, terms: int, norm: float, local: Local, unit: float = 0.0) -> Local:
        """Rounding of an operation with this norm whose results are sums of `terms` terms."""
        dtype, entries = self.first_output.dtype, self.first_output.numel()
        if not dtype.is_floating_point:
            return local
        lost = terms * underflow(dtype) * math.sqrt(entries)
        return replace(local, lost=local.lost + lost, sums=max(unit_roundoff(dtype), unit) * norm * sum_growth(terms))


def _in_front(owner: Tensor, batch: int) -> Tensor | None:
    """Samples of entries; None if they lie along axis 0, as they usually do."""
    if not owner.dim() or owner.shape[0] != batch:
        return owner
    expected = torch.arange(batch).reshape(-1, *[1] * (owner.dim() - 1))
    return None if bool(((owner < 0) | (owner == expected)).all()) else owner


def is_value(x: Any) -> bool:
    """Whether an argument depends on the input of the network."""
    return isinstance(x, Tracked) and not x.constant


def constant_of(x: Any) -> Tensor:
    """The tensor that a constant is."""
    return x.value if isinstance(x, Tracked) else x


def scaled(call: Call, x: Tracked, factor: float, owner: Tensor | None, local: Local, **more: Any) -> Effect:
    """A `factor`-Lipschitz function of one value."""
    if not factor >= 0:
        raise NoBound(*NOT_FINITE)
    square = factor * factor if factor in (0.0, 1.0) else factor * factor * (1 + 1e-15)
    return Effect((x.form().scaled(math.inf if math.isinf(factor) else square),), owner, local, **more)
