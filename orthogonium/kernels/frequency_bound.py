"""Bounds of the norm of a convolution at the points of a grid of frequencies.

Note [Frequencies]
The norm of a convolution is at most `sup ‖K(ω)‖` over all frequencies, for every image size, zero or circular padding. For
fixed unit vectors u, v the function `uᴴK(ω)v` has, after a shift, exponential type (k − 1)/2 on each axis. Near its
maximum M at ω₀ such a function is at least `M cos((ω − ω₀)(k − 1)/2)`, and a point of a grid of N frequencies is within
π/N of ω₀. So the largest norm on the grid, divided by `∏ cos(π(k − 1)/2N)`, is an upper bound; on each of its points the
norm of a matrix is bounded by Gram iteration (Delattre et al., 2023): `‖K‖² ≤ ‖(KKᴴ)^(2ᵐ)‖_F^(2^-m)`.
With N = 8(k − 1) + 1 (`oversampling` 8) the factor is below 1.02 for each axis, with N = 16(k − 1) + 1 below 1.005. Gram
iteration on kernels, whose taps multiply, needs grids of twice the size to come as close.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.kernels.algebra import adjoint
from orthogonium.kernels.fourier import Symbol, gram, symbol

_OVERSAMPLING = 8


def _gram_iteration(x: Symbol, steps: int) -> Tensor:  # (frequencies, g, m, n) → (frequencies, g)
    """Logarithms of bounds of `‖K(ω)‖²`."""
    real, imaginary = gram(x)
    tiny = torch.finfo(real.dtype).tiny
    logarithm, root = torch.zeros_like(real[..., 0, 0]), 1.0
    for step in range(steps + 1):
        square = real.square().sum((-2, -1))
        if imaginary is not None:
            square = square + imaginary.square().sum((-2, -1))
        norm = square.clamp_min(tiny).sqrt()
        logarithm, root = logarithm + root * norm.log(), root / 2
        if step < steps:
            scale = 1 / norm[..., None, None]
            real, imaginary = gram((real * scale, None if imaginary is None else imaginary * scale))
    return logarithm


def squared_norm_bound(
    kernel: Tensor,  # (out, in/g, *k)
    niter: int = 4,
    groups: int = 1,
    oversampling: int = _OVERSAMPLING,
) -> Tensor:  # (groups,)
    """Certified bounds of `‖K‖²` for the stride-1 convolution of each group: every image size, zero or circular padding.

    The gradient is that of the frequency with the largest norm. Includes rounding. Entries should lie
    within 1e±9 in float32; zero kernels get a tiny bound.

    >>> squared_norm_bound(torch.ones(1, 1, 3)) >= 9
    tensor([True])
    """
    smaller = kernel if kernel.shape[0] <= kernel.shape[1] * groups else adjoint(kernel, groups)
    sizes = kernel.shape[2:]
    grid = [oversampling * (k - 1) + 1 for k in sizes]
    real, imaginary = symbol(smaller.unflatten(0, (groups, -1)), grid)
    with torch.no_grad():
        loudest = _gram_iteration((real, imaginary), niter).argmax(0, keepdim=True)[..., None, None]
    chosen = torch.take_along_dim(real, loudest, 0)
    phase = None if imaginary is None else torch.take_along_dim(imaginary, loudest, 0)
    between = math.prod([math.cos(math.pi * (k - 1) / (2 * n)) for k, n in zip(sizes, grid, strict=True)])
    # Sums of n products are exact to a relative n·eps/2; those of complex ones have twice as many.
    terms = max(smaller.shape[0] // groups, smaller.shape[1]) * (1 if phase is None else 2) + math.prod(sizes)
    rounding = 1 + (terms + 64) * torch.finfo(kernel.dtype).eps
    return _gram_iteration((chosen, phase), niter)[0].exp() * (rounding / between**2)
