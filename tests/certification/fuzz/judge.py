"""The largest quotient ‖f(x) − f(y)‖/‖x − y‖ that a search finds, and whether samples of a batch know of each other.

Derivatives are hints here, never evidence: a function may edit `.data` or define its own backward. Every quotient is of
two outputs that were computed.

Note [Rounding of a quotient]
An operation that returns t in a format of precision eps may be wrong by a few eps‖t‖, and what follows may amplify
that. So a numerator is known to within 16·Σ eps‖t‖ over all tensors the program makes for this pair, times max(1,
bound); in half precision, where sums are accumulated in a wider format and one rounding is left, within Σ eps‖t‖. A
quotient refutes a bound only if it does so after the numerator is lowered by that much. A cast to a coarser format
counts with its precision.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SCALES = (0.0, 1e-6, 1e-2, 0.3, 1.0, 1.0, 1.0, 1.0, 3.0, 10.0, 100.0, 1e4)
STEPS = (1e-6, 1e-4, 1e-2, 0.3, 3.0, 100.0)
ROUNDING, HALF = 16.0, 1e-4
ALLOWED = 1e-9  # relative, for the arithmetic of the judge itself
BATCHES = (1, 2, 3, 7)
EMPTY = {
    torch.ops.aten.empty, torch.ops.aten.empty_like, torch.ops.aten.new_empty, torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty_strided, torch.ops.aten.resize_, torch.ops.aten.set_,
}  # memory that nobody has computed  # fmt: skip
KEPT = 8  # pairs that are looked at closely


@dataclass(frozen=True)
class Verdict:
    """What speaks against a bound; nothing does if `against` is None.

    Attributes:
        quotient: the largest one that rounding does not explain, lowered by the rounding of its numerator.
        against: the reason why the bound is wrong.
    """

    quotient: float
    against: str | None = None


class _Magnitudes(TorchDispatchMode):
    """Rounding of the tensors that operations compute (views are not computed), and the coarsest eps among them."""

    total = 0.0
    coarsest = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        # Copies round nothing, and those of torch's circular padding hold uninitialized numbers for a while.
        copies = func is torch.ops.aten.copy_.default and args[1].dtype == args[0].dtype
        for t in () if func.is_view or copies or func.overloadpacket in EMPTY else tree_leaves(out):
            if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex()) and t.numel():
                eps, wide = torch.finfo(t.dtype).eps, torch.complex128 if t.is_complex() else torch.float64
                self.total += (
                    eps * (1 if eps > HALF else ROUNDING) * float(torch.linalg.vector_norm(t.detach().to(wide)))
                )
                self.coarsest = max(self.coarsest, eps)
        return out


@contextlib.contextmanager
def _frozen(fn: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Parameters ask for no gradient, so that constrained weights are built once."""
    asking = [p for p in fn.parameters() if p.requires_grad] if isinstance(fn, nn.Module) else []
    try:
        for p in asking:
            p.requires_grad_(False)
        yield
    finally:
        for p in asking:
            p.requires_grad_(True)


class Judge:
    """Tries to refute bounds of one function on inputs of one shape."""

    def __init__(
        self, fn: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0
    ) -> None:
        self.fn, self.shape, self.dtype = fn, shape, dtype
        self.size = math.prod(shape)
        self.generator = torch.Generator().manual_seed(seed)
        self.pairs: list[tuple[float, Tensor, Tensor]] = []  # the most promising, by their score
        with torch.no_grad(), _Magnitudes() as seen:
            self.fn(self._random(1).clone())
        self.eps = max(torch.finfo(dtype).eps, seen.coarsest)

    def _random(self, count: int) -> Tensor:
        return torch.randn(count, *self.shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def __call__(self, x: Tensor) -> Tensor:  # (n, *shape) → (n, outputs) in float64
        with torch.no_grad():
            return self.fn(x.clone()).detach().reshape(len(x), -1).to(torch.float64)

    def rounding(self, *points: Tensor) -> float:
        """Note [Rounding of a quotient]."""
        with torch.no_grad(), _Magnitudes() as seen:
            self.fn(torch.stack(points))
        return seen.total

    def verdict(self, bound: float) -> Verdict:
        """Compare everything the search finds with a bound."""
        with _frozen(self.fn):
            return self._verdict(bound)

    def _verdict(self, bound: float) -> Verdict:
        reason = self.mixing(bound)
        if reason is not None:
            return Verdict(math.inf, reason)
        reason = self.search()
        if reason is not None:
            return Verdict(math.inf, reason)
        best = 0.0
        for rank, (score, x, y) in enumerate(self.pairs):
            if rank > 1 and score <= bound:
                break  # pairs are sorted: the rest speaks for the bound
            distance = float((x.double() - y.double()).norm())
            change = float((self(x[None])[0] - self(y[None])[0]).norm())
            quotient = (change - self.rounding(x, y) * max(1.0, bound)) / distance
            best = max(best, quotient)
            if quotient > bound * (1 + ALLOWED):
                return Verdict(quotient, f"quotient {quotient:.9g} at distance {distance:.3g}, bound {bound:.9g}")
        return Verdict(best)

    def mixing(self, bound: float) -> str | None:
        """A sample's output may depend neither on the other samples nor on their number."""
        x = self._random(max(BATCHES))
        other = torch.cat([x[:1], 3 * self._random(len(x) - 1) - 1])
        alone = self(x[:1])[0]
        if not alone.isfinite().all():
            return "the output is not finite"
        # What is rounded on the way is then multiplied by what follows.
        allowed = (self.rounding(*x) + self.rounding(*other)) * max(1.0, bound)
        outputs = {f"{n} samples": self(x[:n])[0] for n in BATCHES[1:]}
        outputs |= {"other samples": self(other)[0], "another place": self(x.flip(0))[-1]}
        for name, out in outputs.items():
            if out.shape != alone.shape or not float((out - alone).norm()) <= allowed:
                return f"the output of a sample differs with {name}"
        return None

    def search(self) -> str | None:
        """Fill `pairs`; a reason if an output is not finite."""
        points = self.points()
        out = self(points)
        ordinary = points.flatten(1).abs().amax(1) < 1e3
        if not out[ordinary].isfinite().all():
            return "the output is not finite"
        points, out = points[out.isfinite().all(1)], out[out.isfinite().all(1)]
        order = torch.randperm(len(points), generator=self.generator)
        self.keep(points, points[order], out, out[order])
        slopes, directions = self.slopes(points)
        self.along(points, directions)
        self.bisect(points, points[order])
        for radius in (1.0, 0.3, 0.1):  # where it is steep, look for steeper places
            best = slopes.argsort(descending=True)[:4]
            centers = points[best].repeat_interleave(3, 0)
            size = centers.flatten(1).norm(dim=1).clamp_min(0.1).reshape(-1, *[1] * len(self.shape)) / math.sqrt(
                self.size
            )
            near = centers + (radius * size * self._random(len(centers))).to(self.dtype)
            steeper, turned = self.slopes(near)
            points, slopes = torch.cat([points[best], near]), torch.cat([slopes[best], steeper])
            directions = torch.cat([directions[best], turned])
        self.along(points, directions)
        self.ascend(points, directions)
        if self.pairs:  # none where the function is constant
            self.bisect(*(torch.stack(side) for side in zip(*((x, y) for _, x, y in self.pairs), strict=True)))
        return None

    def points(self) -> Tensor:
        """Of many sizes, with ties, constant, and on a lattice where functions like to have their kinks."""
        random = torch.cat([scale * self._random(1) for scale in SCALES])
        lattice = (2 * self._random(4)).round() / 2
        constant = self._random(2).flatten(1)[:, :1].reshape(2, *[1] * len(self.shape)).expand(2, *self.shape)
        return torch.cat([random, lattice, lattice[:2] + 1e-6 * self._random(2), constant.clone()])

    def keep(self, x: Tensor, y: Tensor, fx: Tensor, fy: Tensor) -> Tensor:
        """Quotients (n,) of pairs, lowered by a guess of their rounding; the best of them are kept."""
        distance = (x.double() - y.double()).flatten(1).norm(dim=1)
        numerator = (fx - fy).norm(dim=1)
        guess = 4 * self.eps * (fx.norm(dim=1) + x.double().flatten(1).norm(dim=1) + 1)
        score = torch.where(distance > 0, (numerator - guess) / distance, torch.full_like(distance, -1.0)).nan_to_num(
            -1.0
        )
        values, places = score.topk(min(KEPT, len(score)))
        least = self.pairs[-1][0] if len(self.pairs) == KEPT else 0.0
        better = [(v, x[i], y[i]) for v, i in zip(values.tolist(), places.tolist(), strict=True) if v > least]
        if better:
            self.pairs = sorted(self.pairs + better, key=lambda pair: -pair[0])[:KEPT]
        return score

    def slopes(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Norms (n,) of Jacobians by differences, and the directions (n, *shape) of steepest change."""
        step = self.eps ** (1 / 3) * points.flatten(1).abs().amax(1).clamp_min(1e-3).double()
        unit = torch.eye(self.size, dtype=torch.float64).reshape(self.size, *self.shape)
        moves = step.reshape(-1, 1, *[1] * len(self.shape)) * unit
        moved = (points[:, None] + moves.to(self.dtype)).flatten(0, 1)
        out = (self(moved).unflatten(0, (len(points), self.size)) - self(points)[:, None]) / step[:, None, None]
        _, sigma, right = torch.linalg.svd(out.mT.nan_to_num(0.0, 0.0, 0.0), full_matrices=False)
        return sigma[:, 0], right[:, 0].reshape(-1, *self.shape).to(self.dtype)

    def along(self, points: Tensor, directions: Tensor) -> None:
        """Steps of many lengths, in both ways."""
        steps = torch.tensor([sign * step for step in STEPS for sign in (1, -1)]).to(self.dtype)
        moved = (points[:, None] + steps.reshape(-1, *[1] * len(self.shape)) * directions[:, None]).flatten(0, 1)
        self.keep(
            points.repeat_interleave(len(steps), 0), moved, self(points).repeat_interleave(len(steps), 0), self(moved)
        )

    def bisect(self, x: Tensor, y: Tensor, steps: int = 20) -> None:
        """Of the two halves of a segment one is at least as steep as the whole: descend into it, down to a jump."""
        fx, fy = self(x), self(y)
        for _ in range(steps):
            middle = (x / 2 + y / 2).to(self.dtype)
            fm = self(middle)
            left, right = self.keep(x, middle, fx, fm), self.keep(middle, y, fm, fy)
            first = (left >= right).reshape(-1, *[1] * len(self.shape))
            x, y = torch.where(first, x, middle), torch.where(first, middle, y)
            fx, fy = torch.where(first.reshape(-1, 1), fx, fm), torch.where(first.reshape(-1, 1), fm, fy)

    def ascend(self, points: Tensor, directions: Tensor, steps: int = 10) -> None:
        """Gradient ascent on the logarithm of the quotient in both ends of a segment, where torch knows a gradient."""
        size = points.flatten(1).norm(dim=1).clamp_min(1e-2).reshape(-1, *[1] * len(self.shape))
        for length in (1e-3, 1.0):
            x = points.clone().requires_grad_()
            v = (length * size * directions).to(self.dtype).requires_grad_()
            optimizer = torch.optim.Adam([{"params": [x], "lr": 0.1}, {"params": [v], "lr": 0.1 * length}])
            for _ in range(steps):
                try:
                    change = (self.fn(x + v) - self.fn(x * 1)).reshape(len(x), -1).double().norm(dim=1)
                    if not change.requires_grad:
                        return
                    quotient = (change + 1e-12).log() - (v.double().flatten(1).norm(dim=1) + 1e-12).log()
                    x.grad, v.grad = (g.nan_to_num() for g in torch.autograd.grad(-quotient.sum(), (x, v)))
                except RuntimeError:  # a program that writes where autograd does not allow it: there is no gradient
                    return
                optimizer.step()
            with torch.no_grad():
                self.keep(x.detach(), (x + v).detach(), self(x.detach()), self((x + v).detach()))
