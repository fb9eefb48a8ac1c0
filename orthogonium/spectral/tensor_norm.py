"""The tensor norm of a kernel (Grishina et al. 2024), an estimate.

‖K‖_σ = sup |K(u, v, w₁, w₂)| over complex unit vectors, one per axis of the kernel, satisfies ‖K‖_σ ≤ σ_∞ ≤
√(k₁k₂)·‖K‖_σ with σ_∞ the norm on the infinite lattice: waves have norm √k, and Parseval gives the other half. The
paper reports √(k₁k₂)·‖K‖_σ as an upper bound, but computing ‖K‖_σ is a search: the alternating power method ends in
local maxima, and then √(k₁k₂) times the result can fall below the true norm. So the value found is returned as it is, a
number that never exceeds σ_∞. The certified bound of the same kind is `unfolding_bound`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.spectral.geometry import Convolution, require_geometry
from orthogonium.spectral.symbol import phases


def tensor_norm(
    layer: nn.Module | Convolution, *, steps: int = 50, restarts: int = 8, seed: int = 0, per_group: bool = False
) -> Tensor:
    """Estimate of ‖K‖_σ of the (phase-stacked) kernel from below, hence of the norm of the layer on large images.

    Args:
        layer: a layer of known geometry (`geometry_of`).
        steps: sweeps of the alternating power method.
        restarts: number of random starting points; the best one counts.
        seed: seed of the starting points.
        per_group: return the values of all groups, (groups,), instead of their maximum.

    Returns:
        A float64 scalar: at most the norm on the infinite lattice, and on every circle of at least k pixels.

    >>> from orthogonium.spectral import tensor_norm
    >>> conv = torch.nn.Conv2d(1, 1, 3, bias=False)
    >>> _ = torch.nn.init.ones_(conv.weight)
    >>> round(tensor_norm(conv).item(), 4)  # the true norm is 9 = √9 · 3
    3.0
    """
    if steps < 1 or restarts < 1:
        raise ParameterError(f"steps and restarts must be at least 1, got {steps} and {restarts}.")
    conv = require_geometry(layer)
    with torch.no_grad():
        kernel = phases(conv).to(torch.complex128)
        generator = torch.Generator().manual_seed(seed)
        start = (
            torch.randn(len(kernel), restarts, n, generator=generator, dtype=kernel.dtype) for n in kernel.shape[1:]
        )
        vectors = [_unit(v.to(kernel.device)) for v in start]
        value = torch.zeros(len(kernel), restarts, dtype=torch.float64, device=kernel.device)
        for _ in range(steps):
            for axis in range(len(vectors)):
                direction = _contract(kernel, vectors, axis).conj()
                value = torch.linalg.vector_norm(direction, dim=-1)
                vectors[axis] = _unit(direction)
    best = value.amax(1)
    return best if per_group else best.amax()


def _contract(kernel: Tensor, vectors: list[Tensor], leave: int) -> Tensor:
    """(groups, restarts, n) kernel times all vectors except that of one axis."""
    out = kernel.movedim(1 + leave, 1)[:, None].expand(-1, vectors[0].shape[1], *[-1] * (kernel.ndim - 1))
    for vector in reversed([v for a, v in enumerate(vectors) if a != leave]):
        out = out @ vector.reshape(*vector.shape[:2], *(1,) * (out.ndim - 4), vector.shape[2], 1)
        out = out.squeeze(-1)
    return out


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-300)
