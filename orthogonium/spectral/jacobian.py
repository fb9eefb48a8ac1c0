"""Spectra of non-linear modules: the Jacobian at points, and the ascent to where it is largest.

The largest singular value of the Jacobian at any one point bounds the Lipschitz constant from below. So everything here
is an estimate that can refute the claim "1-Lipschitz", never prove it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError

_CHUNK = 2**22  # numbers of a Jacobian computed at a time


def jacobian(fn: Callable[[Tensor], Tensor] | nn.Module, x: Tensor) -> Tensor:
    """(batch, outputs, inputs) Jacobians of `fn` at each sample of x, by reverse mode on copies of the sample.

    Args:
        fn: differentiable, treating the samples of a batch independently.
        x: (batch, …) points.

    >>> from orthogonium.spectral import jacobian
    >>> jacobian(torch.square, torch.tensor([[1.0, 2.0]]))
    tensor([[[2., 0.],
             [0., 4.]]])
    """
    samples = []
    for sample in x.detach():
        with torch.no_grad():
            outputs = fn(sample[None]).numel()
        rows = []
        for index in torch.arange(outputs, device=x.device).split(max(1, _CHUNK // max(sample.numel(), outputs))):
            with torch.enable_grad():
                copies = sample.expand(len(index), *sample.shape).clone().requires_grad_()
                out = fn(copies).flatten(1)
                picked = out[torch.arange(len(index), device=x.device), index].sum()
                rows.append(torch.autograd.grad(picked, copies)[0].flatten(1))
        samples.append(torch.cat(rows))
    return torch.stack(samples)


def jacobian_singular_values(fn: Callable[[Tensor], Tensor] | nn.Module, x: Tensor) -> Tensor:
    """(batch, min(inputs, outputs)) singular values of the Jacobians at the samples of x, by float64 SVD.

    >>> from orthogonium.spectral import jacobian_singular_values
    >>> jacobian_singular_values(torch.relu, torch.tensor([[1.0, -1.0]]))
    tensor([[1., 0.]], dtype=torch.float64)
    """
    return torch.linalg.svdvals(jacobian(fn, x).double())


def steepest_point(
    fn: Callable[[Tensor], Tensor] | nn.Module,
    x: Tensor,
    *,
    steps: int = 50,
    step_size: float = 0.1,
    power_steps: int = 3,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradient ascent on the largest singular value of the Jacobian, from each sample of x.

    The singular pair (u, v) is updated by power steps Jᵀ(J v), both products by automatic differentiation, and x moves
    along the gradient of uᵀJ(x)v. Where that vanishes (piecewise linear functions), x moves at random to find other
    pieces.

    Args:
        fn: differentiable (twice, for the ascent to have a direction), treating samples independently.
        x: (batch, …) starting points; use many.
        steps: number of ascent steps.
        step_size: length of a step relative to the norm of x.
        power_steps: power steps on the singular pair in each step.
        generator: generator of the random directions; one with a fixed seed by default.

    Returns:
        The largest ‖J(x)v‖ seen from each start, each a lower bound of the Lipschitz constant, and the points.

    >>> from orthogonium.spectral import steepest_point
    >>> steepness, _ = steepest_point(torch.sin, torch.full((1, 1), 1.0))  # |cos| is largest at 0
    >>> round(steepness.item(), 2)
    1.0
    """
    if steps < 1 or power_steps < 1 or step_size <= 0:
        raise ParameterError(
            f"steps, power_steps and step_size must be positive, got {steps}, {power_steps}, {step_size}."
        )
    generator = generator or torch.Generator().manual_seed(0)
    x = x.detach().clone()
    v = _unit(_noise(x, generator))
    best, where, here, uphill = x.new_full((len(x),), -1.0), x, x, torch.zeros_like(x)
    length = step_size * torch.linalg.vector_norm(x.flatten(1), dim=1).clamp_min(1.0)
    pace = length.clone()
    for step in range(steps):
        with torch.enable_grad():
            steepness, v, gradient = _steepness(fn, x, v, power_steps * (10 if step == 0 else 1))
        better, good = steepness > best, steepness >= best * (1 - 1e-6)  # as good is enough to wander on a plateau
        best, where = torch.where(better, steepness, best), torch.where(_like(better, x), x, where)
        here, uphill = torch.where(_like(good, x), x, here), torch.where(_like(good, x), gradient, uphill)
        flat = torch.linalg.vector_norm(uphill.flatten(1), dim=1) <= 1e-12 * best
        pace = torch.where(flat, length, pace * torch.where(better, 1.5, 0.5))
        x = here + _like(pace, x) * _unit(torch.where(_like(flat, x), _noise(x, generator), uphill))
    return best, where


def _steepness(
    fn: Callable[[Tensor], Tensor] | nn.Module, x: Tensor, v: Tensor, power_steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(‖J v‖ per sample, v, gradient of uᵀJ(x)v in x) after some power steps."""
    x = x.detach().requires_grad_()
    out = fn(x)
    dual = torch.zeros_like(out, requires_grad=True)
    (pulled,) = torch.autograd.grad(out, x, dual, create_graph=True)  # Jᵀ·dual, linear in dual
    push = torch.zeros_like(out)
    for _ in range(power_steps):
        (push,) = torch.autograd.grad(pulled, dual, v, retain_graph=True)  # J v
        (back,) = torch.autograd.grad(out, x, _unit(push), retain_graph=True)
        v = _unit(back)
    (push,) = torch.autograd.grad(pulled, dual, v, retain_graph=True)
    steepness = torch.linalg.vector_norm(push.flatten(1), dim=1)
    (pulled,) = torch.autograd.grad(out, x, _unit(push), create_graph=True)
    if not pulled.requires_grad:
        return steepness, v, torch.zeros_like(x)
    (gradient,) = torch.autograd.grad((pulled * v).sum(), x, allow_unused=True)
    return steepness, v, torch.zeros_like(x) if gradient is None else gradient


def _like(per_sample: Tensor, x: Tensor) -> Tensor:
    return per_sample.reshape(-1, *(1,) * (x.ndim - 1))


def _unit(x: Tensor) -> Tensor:
    return x / _like(torch.linalg.vector_norm(x.flatten(1), dim=1).clamp_min(torch.finfo(x.dtype).tiny), x)


def _noise(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
