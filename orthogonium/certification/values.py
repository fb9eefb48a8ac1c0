"""Lipschitz constants of the values inside a network, and how they combine.

Note [Bases and forms]
A *base* is a tensor that some operation has computed: the input of the network, the output of a convolution, an
activation, a sum. Every tensor of the network consists of entries of bases, copied around, and of constants. What a
tensor `u` owes to the bases is a *form*: weights `w ≥ 0` for the entries of each base such that

    ‖Δu‖² ≤ Σ_bases Σ_e w_e Δ_e²        for every change Δ of the bases.

For copies, `w_e` is the number of copies of entry e; a `c`-Lipschitz function multiplies forms by c²; tensors side by
side add theirs. So the halves of one tensor, joined again after functions of constants a and b, have the constant
max(a, b) and not √(a² + b²): nothing has to know that they were halves.

A base in turn is bounded by its *terms*, forms over earlier bases: `‖Δu‖ ≤ Σ_terms √form`. For any p > 0 with Σp = 1,
`(Σ √form_t)² ≤ Σ form_t/p_t`, so a base can be replaced by a form over earlier ones (it is *lifted*). Lifting the
latest base again and again until one is left gives the constant of any value.

Note [Rounding of constants]
Constants are float64 numbers; every product, sum or norm that may have been rounded is made larger by 2⁻⁵⁰ of itself,
which is more than the rounding was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rounding import Error

Weights = float | Tensor  # one for all entries, or one for each position in the memory of the base
_UP = 1 + 2.0**-50


def up(x: float) -> float:
    """`x`, made larger by more than the rounding of one operation; exact zeros and ones stay."""
    return x if x in (0.0, 1.0) else x * _UP


def largest(w: Weights) -> float:
    """The largest weight, 0 if there is none."""
    return (float(w.max()) if w.numel() else 0.0) if isinstance(w, Tensor) else w


def _times(w: Weights, factor: float) -> Weights:
    if math.isinf(factor) or (not isinstance(w, Tensor) and math.isinf(w)):
        return math.inf  # an unbounded value stays unbounded, even after a factor of 0
    if factor == 1:
        return w
    return w * (factor * _UP) if isinstance(w, Tensor) else up(w * factor)


def _plus(a: Weights, b: Weights) -> Weights:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return (a + b) * _UP
    return up(a + b)


class Form(dict["Base", Weights]):
    """Weights of the entries of bases. Note [Bases and forms]."""

    def scaled(self, factor: float) -> Form:
        """The form of a `√factor`-Lipschitz function of the value."""
        return Form({base: _times(w, factor) for base, w in self.items()})

    def plus(self, other: Form) -> Form:
        """The form of two values side by side."""
        total = Form(self)
        for base, w in other.items():
            total[base] = _plus(total[base], w) if base in total else w
        return total

    @property
    def bound(self) -> float:
        """Lipschitz constant with respect to the input of the network."""
        form = self
        while len(form) > 1:
            latest = max(form, key=lambda base: base.number)
            rest = Form({base: w for base, w in form.items() if base is not latest})
            form = rest.plus(latest.lifted(largest(form[latest]), rest))
        for base, w in form.items():
            factor = largest(w)
            return math.inf if math.isinf(factor + base.bound) else up(math.sqrt(factor) * base.bound)
        return 0.0


@dataclass(eq=False)
class Base:
    """A computed tensor: how it depends on earlier ones, and where its samples are. Note [Bases and forms].

    Attributes:
        number: in the order of the computation.
        shape: of the tensor.
        stride: of the tensor in its memory, whose positions number the entries.
        terms: forms over earlier bases; none for the input of the network.
        owner: the sample each position belongs to, −1 for none; None where axis 0 is the batch.
        dtype: of the tensor.
        size: largest norm of a sample where the input of the network is 0.
        error: of the computed tensor against exact arithmetic.
        reason: why there is no bound, if its operation has none; it is reported only if the value is used.
        origin: what computed it, for rules that know patterns of several operations.
    """

    number: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    terms: tuple[Form, ...]
    owner: Tensor | None = None
    dtype: torch.dtype = torch.float32
    size: float = 0.0
    error: Error = field(default_factory=Error)
    reason: Any = None
    origin: Any = None
    bound: float = 1.0

    def __post_init__(self) -> None:
        if self.number:
            self.bound = math.inf if self.reason is not None else sum_of(self.terms).bound

    def lifted(self, weight: float, rest: Form | None = None) -> Form:
        """`weight·‖Δ‖²` as a form over earlier bases; `rest` is what it will be added to."""
        if math.isinf(weight) or math.isinf(self.bound):
            return Form(dict.fromkeys(self.terms[0] if self.terms else (), math.inf)) or Form({_NOWHERE: math.inf})
        return sum_of(self.terms, weight, rest)


_NOWHERE = Base(0, (), (), ())  # what an unbounded value without known origin is made of
_NOWHERE.bound = math.inf


def sum_of(terms: Sequence[Form], weight: float = 1.0, rest: Form | None = None) -> Form:
    """A form of a sum of values: `weight·(Σ √form_t)²`, shared out so that the constant (with `rest`) is small."""
    terms = [term for term in terms if term]
    if len(terms) <= 1:
        return terms[0].scaled(weight) if terms else Form()
    bounds = [term.bound for term in terms]
    total = sum(bounds)
    if math.isinf(total) or total == 0:
        return _shared(terms, [1 / len(terms)] * len(terms), weight)
    shares = [max(b / total, 1e-9) for b in bounds]
    shares = [share / sum(shares) for share in shares]
    if len(terms) == 2 and len({base for form in (*terms, rest or Form()) for base in form}) == 1:
        shares = _best_shares(terms[0], terms[1], weight, rest or Form(), shares)
    return _shared(terms, shares, weight)


def _shared(terms: Sequence[Form], shares: Sequence[float], weight: float) -> Form:
    """`Σ form_t/p_t`; the shares may add up to slightly less than 1, by rounding."""
    total = Form()
    for term, share in zip(terms, shares, strict=True):
        total = total.plus(term.scaled(weight / share * (1 + 1e-14)))
    return total


def _best_shares(a: Form, b: Form, weight: float, rest: Form, first: list[float]) -> list[float]:
    """The best shares for two values made of one base, by golden-section search on a convex function of the share."""

    def height(share: float) -> float:
        whole = _shared([a, b], [share, 1 - share], weight).plus(rest)
        return max(largest(w) for w in whole.values())

    if not any(isinstance(w, Tensor) for form in (a, b, rest) for w in form.values()):
        return first  # without pieces the usual shares are optimal
    low, high, ratio = 1e-6, 1 - 1e-6, (math.sqrt(5) - 1) / 2
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if height(left) <= height(right) else (left, high)
    best = min((low + high) / 2, first[0], key=height)
    return [best, 1 - best]
