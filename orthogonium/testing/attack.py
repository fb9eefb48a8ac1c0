"""A small l2 attack: projected gradient steps on the margin, from random starts inside the ball."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from orthogonium.certification import margins


def find_counterexample(
    model: Callable[[Tensor], Tensor] | nn.Module,
    x: Tensor,
    radius: Tensor,
    labels: Tensor | None = None,
    *,
    steps: int = 40,
    restarts: int = 3,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Search the l2 balls around inputs for another class.

    Args:
        model: from inputs to logits (n, classes), treating samples independently.
        x: inputs (n, …).
        radius: of the ball around each input, (n,).
        labels: classes to leave; the predictions by default.
        steps: of the ascent, each a quarter of the radius at first and ever smaller.
        restarts: random starts, the first of them at the input itself.
        seed: of the starts.

    Returns:
        Which inputs were fooled, (n,), and the points found, (n, …), never outside of the balls.

    >>> from orthogonium.testing import find_counterexample
    >>> fooled, _ = find_counterexample(torch.nn.Identity(), torch.tensor([[1.0, 0.0]] * 2), torch.tensor([0.7, 0.8]))
    >>> fooled  # the distance is 1/√2
    tensor([False,  True])
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        labels = model(x).argmax(dim=1) if labels is None else labels
    radius = radius.to(x.device, x.dtype).reshape(-1, *[1] * (x.dim() - 1))
    fooled, found = torch.zeros(len(x), dtype=torch.bool, device=x.device), x.clone()
    for restart in range(restarts):
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)
        delta = torch.zeros_like(x) if restart == 0 else _clipped(noise, radius)
        for step in range(steps):
            length = radius * 0.5 * (1 - step / steps) + 0.01 * radius
            with torch.enable_grad():
                point = (x + delta).requires_grad_()
                (slope,) = torch.autograd.grad(margins(model(point), labels).sum(), point)
            delta = _clipped(delta - length * _unit(slope), radius)
            with torch.no_grad():
                success = (margins(model(x + delta), labels) < 0) & ~fooled
            found[success] = (x + delta)[success]
            fooled |= success
    return fooled, found


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1).reshape(-1, *[1] * (x.dim() - 1))


def _unit(x: Tensor) -> Tensor:
    return x / _norm(x).clamp_min(torch.finfo(x.dtype).tiny)


def _clipped(delta: Tensor, radius: Tensor) -> Tensor:
    """`delta`, at most as long as `radius`."""
    return delta * (radius / _norm(delta).clamp_min(torch.finfo(delta.dtype).tiny)).clamp(max=1)
