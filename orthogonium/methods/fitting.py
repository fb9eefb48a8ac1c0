"""Raw parameters found by optimization, where no formula gives them.

Note [Fit]
An orthogonal kernel has a fixed norm, so that the one closest to a weight W is the one that overlaps with it most: the
distance of `K/‖K‖` and `W/‖W‖` is minimized, in float64, by L-BFGS. From random starts this finds kernels that are in
the set (distance 0), and for others overlaps within a few thousandths of each other. Starting where a formula is
roughly right saves most of the steps.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

log = logging.getLogger("orthogonium")

_SILENT_SECONDS = 2.0
_PAUSE = 0.5  # seconds between two lines
_CHUNK = 10  # steps between two looks at the clock and the loss
_ENOUGH = 1e-13  # of a loss that is the square of a relative distance
_STANDSTILL = 1e-4  # relative gain of a chunk below which the fit is over


class Progress:
    """One line on stderr, rewritten as it goes, of work that takes more than two seconds."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total = label, total
        self.start, self.last, self.shown = time.monotonic(), 0.0, False

    def update(self, done: int, distance: float) -> None:
        """Tell how far it is, every now and then."""
        now = time.monotonic()
        seconds = now - self.start
        if seconds < _SILENT_SECONDS or (now - self.last < _PAUSE and done < self.total):
            return
        self.last = now
        filled = round(20 * done / self.total)
        text = f"\r{self.label} [{'█' * filled}{'·' * (20 - filled)}] {done}/{self.total}"
        print(f"{text} distance {distance:.4f} {seconds:.0f} s", end="", file=sys.stderr, flush=True)
        self.shown = True

    def close(self) -> None:
        """End the line."""
        if self.shown:
            print(file=sys.stderr)


def minimize(
    loss: Callable[..., Tensor],  # of the parameters, a squared relative distance
    start: Sequence[Tensor],
    steps: int,
    label: str,
) -> tuple[tuple[Tensor, ...], float]:
    """Parameters (float64) that make the loss small, and the distance that is left. Note [Fit]."""
    raw = [t.detach().to(torch.float64, copy=True).requires_grad_() for t in start]
    optimizer = torch.optim.LBFGS(
        raw, max_iter=_CHUNK, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=0, tolerance_change=0
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(*raw)
        value.backward()
        return value.detach()

    progress = Progress(label, steps)
    with torch.enable_grad():
        value = float(closure())
        for done in range(0, steps, _CHUNK):
            if value <= _ENOUGH:
                break
            optimizer.step(closure)
            before, value = value, float(loss(*raw).detach())
            progress.update(done + _CHUNK, value**0.5)
            if not value < before * (1 - _STANDSTILL):
                break
    progress.close()
    return tuple(t.detach() for t in raw), value**0.5


def fit_kernel(
    build: Callable[..., Tensor], weight: Tensor, start: Sequence[Tensor], steps: int, label: str
) -> tuple[Tensor, ...]:
    """Raw parameters whose kernel points in the direction of `weight`. Note [Fit]."""
    target = weight.detach().double()
    target = target / target.norm().clamp_min(torch.finfo(torch.float64).tiny)

    def loss(*raw: Tensor) -> Tensor:
        kernel = build(*raw)
        return (kernel / kernel.norm() - target).square().sum()

    return minimize(loss, start, steps, label)[0]
