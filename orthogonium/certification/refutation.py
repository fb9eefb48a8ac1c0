"""Attempts to refute certificates before they are handed out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_STEPS = 10
_FRACTION = 0.99
_FAR = 1e6  # largest distance at which certificates are tried, relative to the size of the input


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    return model(x.clone())


def _smallest_margin(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.double()
    own = logits.gather(1, labels[:, None])
    return (own - logits).scatter(1, labels[:, None], math.inf).amin(1)


def broken_certificates(
    model: nn.Module,
    x: Tensor,  # (n, …)
    labels: Tensor,  # (n,)
    radii: Tensor,  # (n,), positive
) -> tuple[Tensor, Tensor]:  # (n,), (n,)
    """Which inputs were moved to another class within their radius, and how far; misclassified inputs count too."""
    labels = labels.to(x.device)
    size = torch.linalg.vector_norm(x.flatten(1).double(), dim=1).cpu()
    reach = (_FRACTION * radii).minimum(_FAR * (1 + size)).to(x.device)
    broken = torch.zeros(len(x), dtype=torch.bool)
    distances = torch.zeros(len(x), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    delta = torch.zeros_like(x)
    for step in range(_STEPS + 1):
        moved = x + delta
        gradient, margin = _gradient(model, moved, labels)
        lost = ~(margin > 0).cpu() & ~broken
        steps = torch.linalg.vector_norm((moved - x).flatten(1).double(), dim=1).cpu()
        inside = steps <= radii  # adding may round
        broken |= lost & inside
        distances = torch.where(lost & inside, steps, distances)
        if step == _STEPS:
            break
        noise = torch.randn(x.shape, generator=generator).to(x)
        flat = gradient.flatten(1)
        usable = flat.isfinite().all(1) & (flat.abs().amax(1) > 0)
        direction = torch.where(usable.reshape(-1, *[1] * (x.dim() - 1)), gradient, noise)
        length = (reach * (1.0 if step == 0 else 2.0 / _STEPS)).to(x.dtype)
        delta = delta - _scaled_to(direction, length)
        norm = torch.linalg.vector_norm(delta.flatten(1).double(), dim=1)
        shrink = (reach / norm.clamp_min(1e-300)).clamp(max=1).to(x.dtype)
        delta = delta * shrink.reshape(-1, *[1] * (x.dim() - 1))
    return broken, distances


def _scaled_to(direction: Tensor, length: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(direction.flatten(1).double(), dim=1).clamp_min(1e-300)
    return direction * (length.double() / norm).to(direction.dtype).reshape(-1, *[1] * (direction.dim() - 1))


def _gradient(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of margins with respect to the inputs, zero where torch knows none; and the margins."""
    with torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        try:
            margin = _smallest_margin(model(point * 1), labels)
            if margin.requires_grad:
                return torch.autograd.grad(margin.sum(), point)[0], margin.detach()
        except RuntimeError:  # code that autograd cannot follow
            pass
    with torch.no_grad():
        return torch.zeros_like(x), _smallest_margin(_outputs(model, x), labels)
