"""Raw parameters found by optimization, for which there is no formula.

Note [Fit]
An orthogonal kernel has a fixed norm, so the one closest to a weight W is the one that overlaps with it most: the
distance between `K/‖K‖` and `W/‖W‖` is minimized, in float64, by L-BFGS. From random starts this recovers kernels that
are in the set (distance 0); for others, the overlaps agree to a few thousandths. Starting where a formula is roughly
right saves most of the steps.

Note [Last steps]
Near a kernel of the set L-BFGS slows: many raw parameters build the same kernel, and some directions hardly change it.
There, Gauss–Newton steps `(JᵀJ + λ)d = −Jᵀr` of the residual r with `λ = ‖r‖²` converge quadratically, although JᵀJ is
singular (Yamashita & Fukushima 2001, "On the rate of convergence of the Levenberg–Marquardt method"). After a step that
gains little, λ is increased. The equations are solved by conjugate gradients, which only need products with J and Jᵀ.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_SILENT_SECONDS = 2.0
_PAUSE = 0.5  # seconds between two lines
_CHUNK = 10  # steps between two looks at the clock and the loss
_STANDSTILL = 1e-4  # relative gain of a chunk below which the fit is over
# Of losses, squares of relative distances:
_CLOSE = 1e-4  # here the last steps begin
_ENOUGH = 1e-13  # the rounding of float32
_PRODUCTS = 100  # of conjugate gradients, for one step
_WORTH = 0.1  # of the loss; after a step that gains less, λ grows
_MOST_CAUTION = 1e6


class Progress:
    """One line on stderr, rewritten as it goes, for work that takes more than two seconds."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total = label, total
        self.start, self.last, self.shown = time.monotonic(), 0.0, False

    def update(self, done: int, distance: float) -> None:
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
        if self.shown:
            print(file=sys.stderr)


def minimize(
    residual: Callable[..., Tensor],  # of the parameters; its norm is a relative distance
    start: Sequence[Tensor],
    steps: int,
    label: str,
) -> tuple[Tensor, ...]:
    """Parameters (float64) that make the residual small: Notes [Fit], [Last steps]."""
    x = torch.cat([t.detach().double().flatten() for t in start]).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [x], max_iter=_CHUNK, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=0, tolerance_change=0
    )

    def unpack(x: Tensor) -> tuple[Tensor, ...]:
        parts = x.split([t.numel() for t in start])
        return tuple(part.view(t.shape) for part, t in zip(parts, start, strict=True))

    def residual_at(x: Tensor) -> Tensor:
        return residual(*unpack(x))

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = residual_at(x).square().sum()
        value.backward()
        return value.detach()

    progress, done, gains, caution = Progress(label, steps), 0, True, 1.0
    with torch.enable_grad():
        value = float(closure())
        while value > _CLOSE and gains and done < steps:
            optimizer.step(closure)
            before, value = value, _squared(residual_at, x)
            done, gains = done + _CHUNK, value < before * (1 - _STANDSTILL)
            progress.update(done, value**0.5)
        while _ENOUGH < value <= _CLOSE and caution < _MOST_CAUTION and done < steps:
            moved = _gauss_newton(residual_at, x, caution * value)
            before, after = value, _squared(residual_at, moved)
            if after < before:
                x, value = moved, after
            caution = max(caution / 4, 1.0) if after < before * (1 - _WORTH) else 4 * caution
            done += 1
            progress.update(done, value**0.5)
    progress.close()
    return unpack(x.detach())


@torch.no_grad()
def _squared(residual: Callable[[Tensor], Tensor], x: Tensor) -> float:
    return float(residual(x).square().sum())


def _gauss_newton(residual: Callable[[Tensor], Tensor], start: Tensor, damping: float) -> Tensor:
    """The parameters after one step. Note [Last steps]."""
    x = start.detach().requires_grad_()
    r = residual(x)
    # Differentiating Jᵀu with respect to u multiplies by J using only backward derivatives.
    u = torch.zeros_like(r, requires_grad=True)
    (adjoint,) = torch.autograd.grad(r, x, u, create_graph=True)
    left = -torch.autograd.grad(r, x, r.detach(), retain_graph=True)[0]
    step, direction, norm = torch.zeros_like(left), left, left.square().sum()
    wanted = damping * norm  # the relative error of a step is that of the next residual
    for _ in range(_PRODUCTS):
        (forward,) = torch.autograd.grad(adjoint, u, direction, retain_graph=True)
        (back,) = torch.autograd.grad(r, x, forward, retain_graph=True)
        image = back + damping * direction
        length = norm / direction.dot(image)
        step = step + length * direction
        left = left - length * image
        before, norm = norm, left.square().sum()
        if norm <= wanted:
            break
        direction = left + norm / before * direction
    return (x + step).detach().requires_grad_()


def fit_kernel(
    build: Callable[..., Tensor], weight: Tensor, start: Sequence[Tensor], steps: int, label: str
) -> tuple[Tensor, ...]:
    """Raw parameters whose kernel points in the direction of `weight`. Note [Fit]."""
    target = weight.detach().double()
    target = target / target.norm().clamp_min(torch.finfo(torch.float64).tiny)

    def residual(*raw: Tensor) -> Tensor:
        kernel = build(*raw)
        return kernel / kernel.norm() - target

    return minimize(residual, start, steps, label)
