"""Steepness of any function from below, to refute claims about it: secants, which need no derivative to be true."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_STEP = 0.02  # length of a secant relative to the point it starts from


def steepest_secant(
    fn: Callable[[Tensor], Tensor],
    input_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    *,
    points: int = 2,
    steps: int = 10,
    seed: int = 0,
) -> float:
    """The largest ‖f(x + v) − f(x)‖/‖v‖ found: a lower bound of the Lipschitz constant, up to the rounding of `fn`.

    From random points, with directions improved by power steps Jᵀ(Δf) where `fn` can be differentiated.
    """
    generator = torch.Generator().manual_seed(seed)
    x, v = (torch.randn(points, *input_shape, generator=generator).to(device, dtype) for _ in range(2))
    length = _STEP * _norm(x).clamp_min(1e-3)
    best = 0.0
    for _ in range(steps):
        step = v * (length / _norm(v).clamp_min(torch.finfo(dtype).tiny))
        with torch.no_grad():
            moved = x + step
            change = fn(moved) - fn(x.clone())
        best = max(best, float((_norm(change).flatten() / _norm(moved - x).flatten()).max()))
        pulled = _pulled_back(fn, x, change)
        if pulled is None or not bool(pulled.abs().amax() > 0):
            return best
        v = pulled
    return best


def _pulled_back(fn: Callable[[Tensor], Tensor], x: Tensor, change: Tensor) -> Tensor | None:
    """Jᵀ·change at x, or None where the function has no derivative that torch can compute."""
    with torch.enable_grad():
        point = x.clone().requires_grad_()
        try:
            out = fn(point * 1)  # a copy, which in-place functions may change
            return torch.autograd.grad(out, point, change)[0] if out.requires_grad else None
        except RuntimeError:
            return None


def _norm(x: Tensor) -> Tensor:
    """Per sample, shaped to broadcast."""
    return torch.linalg.vector_norm(x.flatten(1) if x.dim() > 1 else x[:, None], dim=1).reshape(
        -1, *[1] * (x.dim() - 1)
    )
