"""The certified bound to use by default: a cheap one where it is sharp, a grid of frequencies elsewhere.

First the kernel of K Kᵀ and its spectral radius in moduli (one Gram step on the kernel): sharp for orthogonal layers
and for depthwise or nearly diagonal ones. Only if it exceeds an estimate from below by more than `rtol` are frequencies
factorized. Kernels that are nearly isometries are examined more closely (`isometry.py`): moduli overestimate rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orthogonium.spectral.geometry import Convolution, require_geometry
from orthogonium.spectral.gram import norm_in_moduli
from orthogonium.spectral.grid import gram_error, largest_on_grid
from orthogonium.spectral.isometry import scale_and_deviation
from orthogonium.spectral.reductions import Reduction, reductions
from orthogonium.spectral.rounding import gamma, root, upward
from orthogonium.spectral.symbol import (
    Frequencies,
    autocorrelation,
    circle_frequencies,
    mass,
    select,
    symbol,
    unit_kernel,
)

BUDGET = 1.4e10
_SMALL = 32
_NEAR = 0.05  # of the squares of singular values, within which the kernel is treated as an isometry


@dataclass(frozen=True)
class Enclosure:
    """lower ≤ every singular value ≤ upper, both (groups,); lower is 0 where nothing better is known."""

    lower: Tensor
    upper: Tensor
    method: str


def norm_bound(
    layer: nn.Module | Convolution,
    size: Sequence[int] | None = None,
    *,
    rtol: float = 0.01,
    budget: float = BUDGET,
    per_group: bool = False,
) -> Tensor:
    """Certified upper bound of a layer's spectral norm, by the cheapest method that is sharp enough.

    It holds for every padding, stride, dilation and number of groups, transposed or not, and is differentiable. With
    zero padding, neither value nor cost depends on the size of images larger than the grid.

    Args:
        layer: a layer of known geometry (`geometry_of`).
        size: spatial size of the input; None for a bound that holds at every size.
        rtol: desired sharpness, relative to the norm on the infinite lattice.
        budget: floating point operations to spend on sharpness; beyond it the bound stays valid but gets looser.
        per_group: return the bounds of all groups, (groups,), instead of their maximum.

    Returns:
        A float64 scalar on the device of the weight.

    >>> from orthogonium.spectral import norm_bound
    >>> layer = torch.nn.Linear(2, 2)
    >>> _ = torch.nn.init.eye_(layer.weight)
    >>> round(norm_bound(layer).item(), 5)
    1.0
    """
    upper = enclosure(require_geometry(layer), size, rtol=rtol, budget=budget).upper
    return upper if per_group else upper.amax()


def enclosure(
    conv: Convolution, size: Sequence[int] | None = None, *, rtol: float = 0.01, budget: float = BUDGET
) -> Enclosure:
    """Certified bounds from both sides; the lower one only for circular geometries, useful near orthogonality."""
    found = [_enclosure(conv, r, rtol, budget) for r in reductions(conv, size)]
    best = min(found, key=lambda e: float(e.upper.detach().amax()))
    return Enclosure(best.lower, torch.stack([e.upper for e in found]).amin(0), best.method)


def _enclosure(conv: Convolution, reduction: Reduction, rtol: float, budget: float) -> Enclosure:
    kernel, scale = unit_kernel(conv, reduction)
    gram = autocorrelation(kernel)
    error = gram_error(kernel)
    upper = upward(root(norm_in_moduli(gram) + error) * reduction.factor, 16)
    lower = torch.zeros_like(upper)
    two_sided = reduction.same_spectrum and kernel.shape[1] == _rank(conv, reduction)
    if two_sided:
        lower = _smallest(gram.detach(), error.detach())
    method = "Gram, 1 step"
    if _nearly_isometric(upper.detach() / reduction.factor, gram.detach()):
        square, deviation = scale_and_deviation(gram.detach(), error.detach(), budget)
        sharper = upward(root(square + deviation) * reduction.factor, 16)
        upper = upward(upper * (sharper / upper.detach()).clamp_max(1), 8)  # with the gradient of the first bound
        if two_sided:
            lower = torch.maximum(lower, root(square - deviation) * (1 - gamma(16)))
        method = "Gram, deviation"
    if upper.detach().amax() > (1 + rtol) * reduction.factor * _floor(
        kernel.detach(), circle_frequencies(conv, reduction)
    ):
        fine, frequencies = largest_on_grid(conv, reduction, kernel, rtol, budget, gram.detach())
        upper = torch.minimum(upper, fine)
        method = "frequencies " + "×".join(map(str, frequencies.points)) if frequencies.points else "Cholesky"
    return Enclosure(lower * scale, upper * scale * (1 + gamma(4)), method)


def _nearly_isometric(upper: Tensor, gram: Tensor) -> bool:
    """Whether no singular value is far above the mean: then a bound in moduli mostly measures noise."""
    mean = select(gram, [t // 2 for t in gram.shape[3:]]).diagonal(dim1=1, dim2=2).mean(1)
    return bool((upper.square() < (1 + _NEAR) * mean).all())


def _rank(conv: Convolution, reduction: Reduction) -> int:
    """Singular values per frequency and group; more than the kernel's rows if windows skip phases of pixels."""
    co, ci = conv.weight.shape[0] // conv.groups, conv.weight.shape[1]
    return min(co, ci * math.prod(reduction.stride))


def _smallest(gram: Tensor, error: Tensor) -> Tensor:
    """(groups,) lower bounds of all singular values: K Kᵀ is at least its diagonal minus all else (Gershgorin)."""
    centre = select(gram, [t // 2 for t in gram.shape[3:]]).diagonal(dim1=1, dim2=2)
    others = (mass(gram).sum(2) - centre.abs()) * (1 + gamma(gram[0, 0].numel() + 16))
    least = (centre - others - error[:, None]).amin(1) - gamma(16) * centre.abs().amax(1)
    return least.clamp_min(0).sqrt() * (1 - gamma(16))


@torch.no_grad()
def _floor(kernel: Tensor, circle: Frequencies | None, steps: int = 12) -> float:
    """An estimate of the largest norm from below: power iterations at the frequencies 0 and π, where K(ω) is real.

    A small circle may not have π.
    """
    taps = kernel.shape[3:]
    points = [2] * len(taps)
    if circle is not None:
        points = [
            1 if n < _SMALL and (n % 2 or d % 2 == 0) else 2
            for n, d in zip(circle.points, circle.multiple, strict=True)
        ]
    frequencies = Frequencies(tuple(points), (1,) * len(taps))
    matrices = symbol(kernel, frequencies.waves(taps, torch.arange(len(frequencies), device=kernel.device)))
    matrices = matrices.real.contiguous() if matrices.is_complex() else matrices
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(kernel.shape[2], 1, generator=generator, dtype=kernel.dtype).to(kernel.device)
    for _ in range(steps):
        x = matrices.transpose(-1, -2) @ (matrices @ x)
        x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_min(1e-300)
    return float(torch.linalg.vector_norm(matrices @ x, dim=(-2, -1)).amax())
