"""The search for two inputs that a function moves far apart: ‖f(x) − f(y)‖ / ‖x − y‖ refutes any smaller constant.

Derivatives only suggest where to look: only the values of f count, so code whose gradients lie (detached terms,
straight-through estimators, jumps) is judged by what it computes.

Note [Search for a quotient]
- **Scan.** f is followed along lines, through the origin and beside it, at points from very near to very far.
  Neighbours give secants of every length; a second difference that stands out from its neighbours betrays a jump or a
  kink.
- **Refine.** A segment is cut into pieces. One of them is at least as steep as the whole (triangle inequality), so
  keeping the steepest climbs without any derivative. A step *down* is lost that way (x, then x + 1 left of 0): other
  segments keep the piece that is least straight instead, which closes in on a jump of either sign.
- **Climb.** Around a point, steps δᵢ give differences Δᵢ; the combination that maximizes ‖Σcᵢ Δᵢ‖/‖Σcᵢ δᵢ‖
  (Rayleigh–Ritz) is tried next, together with the power step JᵀΔ and a move of the point along the gradient, where
  there are gradients.

Note [Rounding of a quotient]
A value of f is off by about `noise·(‖x‖ + ‖f(x)‖)`, and by a few of the smallest numbers of the dtype, so a quotient
may be too large by the sum of these errors at both ends over ‖x − y‖. The quotient that counts is the one that is
largest after this deduction: short steps win at jumps, long ones elsewhere. A program with intermediate numbers much
larger than its inputs and outputs rounds more than that: judge it by its `exact_twin`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from orthogonium.errors import ParameterError
from orthogonium.spectral.operator import Map, as_function
from orthogonium.spectral.rounding import double

_BATCH = 8
_PIECES = 5  # of a segment: four new points, two segments in a batch
_REACH = 30.0  # times a scale: how far the evenly spaced points of a scan go


@dataclass(frozen=True)
class Quotient:
    """Two inputs, and how far apart a function moves them.

    Attributes:
        value: ‖f(x) − f(y)‖ / ‖x − y‖; infinite if some output is not finite.
        rounding: how much of it the rounding of f(x) and f(y) may explain.
        x: an input, without batch.
        y: another input; the same one if its output is not finite.
        finite: whether all outputs seen in the search were finite.
    """

    value: float
    rounding: float
    x: Tensor
    y: Tensor
    finite: bool = True

    @property
    def lower(self) -> float:
        """What remains of the quotient after worst-case rounding: no smaller Lipschitz constant is valid."""
        return max(self.value - self.rounding, 0.0)


class _NotFinite(Exception):
    """An output is NaN or infinite."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class _Search:
    """Values of a function, and the best pair of them so far. Points are rows, outputs are rows in float64."""

    def __init__(
        self,
        fn: Map,
        input_shape: Sequence[int],
        dtype: torch.dtype | None,
        device: torch.device | str | None,
        noise: float | None,
        budget: int,
        seed: int,
    ) -> None:
        self.call, self.dtype, self.device = as_function(fn, dtype, device)
        self.shape = tuple(input_shape)
        self.inputs = math.prod(self.shape)
        self.noise = 8 * torch.finfo(self.dtype).eps if noise is None else noise
        self.batch = max(_BATCH, budget // 60)
        self.generator = torch.Generator().manual_seed(seed)
        origin = self.point(torch.zeros(1, self.inputs))[0]
        self.best = Quotient(0.0, 0.0, origin, origin)

    def point(self, rows: Tensor) -> Tensor:
        """Rows as inputs of the function: rounded to its dtype."""
        return rows.to(self.device, self.dtype).reshape(-1, *self.shape)

    def rounded(self, rows: Tensor) -> Tensor:
        """Rows as they are after rounding to the dtype of the function."""
        return double(rows.to(self.dtype))

    def normal(self, rows: int) -> Tensor:
        """Rows of random numbers of size 1."""
        return torch.randn(rows, self.inputs, generator=self.generator, dtype=torch.float64)

    def noisy(self, x: Tensor, fx: Tensor) -> Tensor:
        """How large the rounding of f may be at each point."""
        smallest = torch.finfo(self.dtype).tiny * torch.finfo(self.dtype).eps * math.sqrt(max(x.shape[1], fx.shape[1]))
        return self.noise * (_norm(x) + _norm(fx)) + 8 * smallest

    @torch.no_grad()
    def values(self, x: Tensor) -> Tensor:  # (n, inputs) → (n, outputs)
        """Values at points, a few at a time."""
        return torch.cat([self._checked(part, self.call(self.point(part))) for part in x.split(self.batch)])

    def pulled(self, x: Tensor, dual: Tensor) -> Tensor | None:  # (n, inputs), (n, outputs) → (n, inputs)
        """Jᵀ·dual at points; None if nothing is differentiable."""
        with torch.enable_grad():
            leaf = self.point(x).requires_grad_()
            try:
                out = self.call(leaf)
                if not out.requires_grad:
                    return None
                (back,) = torch.autograd.grad(out, leaf, dual.to(out).reshape(out.shape), allow_unused=True)
            except RuntimeError:  # code that runs but has no derivative: out=, saved values changed in place
                return None
        return None if back is None else double(back.detach()).cpu().reshape(len(x), -1).nan_to_num(0.0, 0.0, 0.0)

    def _checked(self, x: Tensor, out: Tensor) -> Tensor:
        rows = double(out.detach()).cpu().reshape(len(x), -1)
        broken = ~rows.isfinite().all(dim=1)
        if broken.any():
            raise _NotFinite(self.point(x[broken])[0])
        return rows

    def offer(self, x: Tensor, fx: Tensor, y: Tensor, fy: Tensor) -> Tensor:
        """Quotients of pairs, rounding deducted; the best of them is kept. −∞ for pairs that are one point."""
        distance = _norm(x - y)
        value, rounding = _norm(fx - fy) / distance, (self.noisy(x, fx) + self.noisy(y, fy)) / distance
        score = torch.where(distance > 0, value - rounding, -math.inf)
        top = int(score.argmax())
        if score[top] > self.best.value - self.best.rounding:
            self.best = Quotient(float(value[top]), float(rounding[top]), self.point(x[top])[0], self.point(y[top])[0])
        return score


def _norm(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=-1)


def _unit(rows: Tensor) -> Tensor:
    length = _norm(rows)[..., None]
    return torch.where(length > 0, rows / length, 0.0)


def _straying(x: Tensor, f: Tensor) -> Tensor:  # (points, inputs), (points, outputs) → (points − 2,)
    """How far f at each inner point of a line strays from the chord between its neighbours."""
    share = _norm(x[1:-1] - x[:-2]) / _norm(x[2:] - x[:-2]).clamp_min(torch.finfo(x.dtype).tiny)
    return _norm(torch.lerp(f[:-2], f[2:], share[:, None]) - f[1:-1])


def _lines(search: _Search, scales: Sequence[float], count: int) -> list[Tensor]:
    """Points on lines, in order: spaced by constant factors over all scales, and evenly around each of them."""
    middle = sorted(scales)[len(scales) // 2]
    powers = torch.logspace(
        math.log10(min(scales)) - 3, math.log10(max(scales)), max(count // 2, 2), dtype=torch.float64
    )
    steps = [torch.cat([-powers.flip(0), torch.zeros(1, dtype=torch.float64), powers])]
    # The scale in the middle gets every other line: with few points there is no room for all of them.
    order = [middle, *(s for s in scales if s != middle)]
    steps += [torch.linspace(-_REACH * s, _REACH * s, count, dtype=torch.float64) for s in order]
    ones = torch.ones(1, search.inputs, dtype=torch.float64)
    lines = []
    for t in steps:
        lines.append(t[:, None] * ones)
        lines.append(middle * search.normal(1) + t[:, None] * search.normal(1))
    return lines


def _scan(search: _Search, scales: Sequence[float], points: int) -> tuple[list[Tensor], list[Tensor]]:
    """Segments (2, inputs) that are steep, and those that are not straight, alternating between lines; best first."""
    lines = 4 if points < 256 else 2 + 2 * len(scales)
    steep, bent = [], []
    for line in _lines(search, scales, max(points // lines, 7))[:lines]:
        x = search.rounded(line)
        f = search.values(x)
        score = search.offer(x[1:], f[1:], x[:-1], f[:-1])
        steep += [(-float(score[i]), x[i : i + 2]) for i in score.argsort(descending=True)[:4].tolist()]
        strays, floor = _straying(x, f), 4 * search.noisy(x, f)[1:-1]
        around = torch.sqrt((strays + floor).roll(3) * (strays + floor).roll(-3))
        outstanding = torch.where(strays > floor, strays / around, 0.0)
        order = outstanding.argsort(descending=True)[:4].tolist()
        bent += [(place, x[i : i + 3 : 2]) for place, i in enumerate(order) if outstanding[i] > 0]
    return [s for _, s in sorted(steep, key=itemgetter(0))], [s for _, s in sorted(bent, key=itemgetter(0))]


def _refine(search: _Search, segment: Tensor, by_steepness: bool, batches: int) -> None:
    """Repeatedly cut a segment and keep its steepest piece, or its least straight place."""
    cuts = torch.linspace(0, 1, _PIECES + 1, dtype=torch.float64)[1:-1, None]
    ends, f = segment, search.values(segment)
    for _ in range(batches):
        inner = search.rounded(torch.lerp(ends[:1], ends[1:], cuts))
        x, fx = torch.cat([ends[:1], inner, ends[1:]]), torch.cat([f[:1], search.values(inner), f[1:]])
        score = search.offer(x[1:], fx[1:], x[:-1], fx[:-1])
        if not score.isfinite().all():  # points coincide: the steps have become too short
            return
        low, high = (int(score.argmax()), int(score.argmax()) + 1) if by_steepness else _bend(_straying(x, fx))
        ends, f = x[[low, high]], fx[[low, high]]


def _bend(strays: Tensor) -> tuple[int, int]:
    """The points around a jump or kink: between two that stray because of it, or beside the only one that does."""
    top = int(strays.argmax()) + 1
    sides = torch.cat([strays.new_zeros(1), strays, strays.new_zeros(1)])
    other = top - 1 if sides[top - 1] > sides[top + 1] else top + 1
    return (min(top, other), max(top, other)) if 4 * sides[other] > sides[top] else (top - 1, top + 1)


def _gram(rows: Tensor) -> Tensor:
    """Inner products of a few long rows; a matrix product would start threads for them."""
    return torch.stack([(rows * row).sum(dim=1) for row in rows])


def _ritz(steps: Tensor, moved: Tensor) -> Tensor:  # (m, inputs), (m, outputs) → (1, inputs)
    """The combination of steps that would move the output most for its length if f were linear."""
    squares, vectors = torch.linalg.eigh(_gram(steps))
    told = squares > 1e-10 * squares[-1]
    white = vectors[:, told] / squares[told].sqrt()
    share = white @ torch.linalg.eigh(white.T @ _gram(moved) @ white).eigenvectors[:, -1]
    return (share[:, None] * steps).sum(dim=0, keepdim=True)


def _stretch(search: _Search, turn: int) -> Tensor:
    """A random direction in one of eight parts of the input: large factors of few entries show there."""
    edges = torch.linspace(0, search.inputs, _BATCH + 1, dtype=torch.float64).long().tolist()
    low, high = edges[turn % _BATCH], edges[turn % _BATCH + 1]
    stretch = torch.zeros(1, search.inputs, dtype=torch.float64)
    stretch[:, low : max(high, low + 1)] = 1
    return stretch * search.normal(1)


def _climb(search: _Search, start: Tensor, direction: Tensor, length: float, rounds: int) -> None:
    """Change the directions of steps of one length around a point, and the point itself, to where f is steeper."""
    reach = max(0.1 * float(_norm(start)), 4 * length)
    x, pace = start, reach
    y = search.rounded(x + length * _unit(direction))
    fx, fy = search.values(torch.cat([x, y])).split(1)
    combined, held = search.normal(1), -math.inf
    for turn in range(rounds):
        back = search.pulled(torch.cat([x, y]), _unit(fy - fx).expand(2, -1))
        power = search.normal(1) if back is None else back.sum(dim=0, keepdim=True)
        uphill = torch.zeros_like(x) if back is None else back[1:] - back[:1]
        flat = bool(_norm(uphill) <= 1e-6 * _norm(power))
        there = search.rounded(x + pace * _unit(search.normal(1) if flat else uphill))
        steps = length * _unit(torch.cat([y - x, power, combined, search.normal(2), _stretch(search, turn)]))
        bases = torch.cat([x.expand_as(steps), there])
        ends = search.rounded(bases + torch.cat([steps, steps[1:2]]))
        *_, f_there = f_ends = search.values(torch.cat([ends, there]))
        f_bases = torch.cat([fx.expand(len(steps), -1), f_there[None]])
        score = search.offer(bases, f_bases, ends, f_ends[:-1])
        apart = (ends != bases).any(dim=1)
        apart[-1] = False
        if apart.any():
            combined = _ritz((ends - bases)[apart], (f_ends[:-1] - f_bases)[apart])
        pace = reach if flat else pace * (1.5 if score[-1] > held else 0.5)
        # On a plateau of the steepness the point wanders, to find other pieces.
        best = -1 if score[-1] >= (1 - 1e-6) * score.max() else int(score.argmax())
        x, fx, y, fy, held = (
            bases[best, None],
            f_bases[best, None],
            ends[best, None],
            f_ends[:-1][best, None],
            float(score[best]),
        )


def steepest_quotient(
    fn: Map,
    input_shape: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    scales: Sequence[float] | None = None,
    budget: int = 240,
    noise: float | None = None,
    seed: int = 0,
) -> Quotient:
    """The largest ‖f(x) − f(y)‖ / ‖x − y‖ that a search of bounded cost finds.

    An estimate from below: `lower` refutes any smaller constant, but finding nothing larger proves nothing.

    Args:
        fn: a module, function or `Convolution` that treats the samples of a batch independently; it need not be
            differentiable.
        input_shape: shape of one sample, without the batch dimension.
        dtype: dtype of the inputs; that of the module by default.
        device: device of the inputs; likewise.
        scales: sizes of the entries of inputs, positive; by default 1e-3, 1 and 1e3, as far as the dtype can represent
            the squared norm of the largest inputs. The origin is always among the starting points.
        budget: approximate number of samples to evaluate f on, a derivative counting as two; at most 8 at a time, or a
            60th of the budget.
        noise: relative error of an evaluation; by default 8 units of the dtype.
        seed: seed for everything random.

    >>> from orthogonium.spectral import steepest_quotient
    >>> def lying(x):
    ...     return x + (100 * x.sin()).detach()  # its derivative says 1
    >>> steepest_quotient(lying, (4,)).lower > 100
    True
    """
    if scales is not None and not all(0 < s < math.inf for s in scales):
        raise ParameterError(f"Scales of inputs are positive and finite: got {tuple(scales)}.")
    if budget < 120:
        raise ParameterError(f"A search needs a budget of at least 120 evaluations: got {budget}.")
    search = _Search(fn, input_shape, dtype, device, noise, budget, seed)
    if not scales:
        largest = math.sqrt(torch.finfo(search.dtype).max / max(search.inputs, 1)) / (4 * _REACH)
        scales = sorted({min(s, largest) for s in (1e-3, 1.0, 1e3)})
    try:
        _spend(search, scales, budget)
    except _NotFinite as stop:
        return Quotient(math.inf, 0.0, stop.x, stop.x, finite=False)
    return search.best


def _spend(search: _Search, scales: Sequence[float], budget: int) -> None:
    """Spend a quarter of the budget on scanning, a quarter on refining, and half on climbing."""
    steep, bent = _scan(search, scales, budget // 4)
    deepest = 12 + int(-math.log(torch.finfo(search.dtype).eps) / math.log(_PIECES / 2))
    # Climbing reaches steep places anyway; jumps are found in no other way.
    for by_steepness, found, share in ((True, steep, budget // 16), (False, bent, 3 * budget // 16)):
        segments = max(1, share // (deepest * (_PIECES - 1)))
        for segment in found[:segments]:
            _refine(search, segment, by_steepness, min(deepest, share // (segments * (_PIECES - 1))))
    rounds = 5 + budget // 600
    sizes, short = (0.0, *scales), torch.finfo(search.dtype).eps ** (1 / 3)
    for k in range(max(1, budget // 2 // ((_BATCH + 4) * rounds))):
        if k % 2 == 0:
            start, end = (double(end).cpu().reshape(1, -1) for end in (search.best.x, search.best.y))
            direction = end - start
        else:
            start, direction = search.rounded(sizes[k // 2 % len(sizes)] * search.normal(1)), search.normal(1)
        length = float(_norm(start)) or math.sqrt(search.inputs) * scales[k // 2 // len(sizes) % len(scales)]
        _climb(search, start, direction, length * (short, 1.0, short**0.5)[k // 2 % 3], rounds)
