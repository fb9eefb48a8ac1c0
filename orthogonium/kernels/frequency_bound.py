"""Bounds on the norm of a convolution at the points of a grid of frequencies.

Note [Frequencies]
The norm of a convolution is at most `sup ‖K(ω)‖` over all frequencies, for every image size, zero or circular padding.
For fixed unit vectors u, v the function `uᴴK(ω)v` has, after a shift, exponential type (k − 1)/2 on each axis. Near its
maximum M at ω₀ such a function is at least `M cos((ω − ω₀)(k − 1)/2)`, and a point of a grid of N frequencies is within
π/N of ω₀. So the largest norm on the grid, divided by `∏ cos(π(k − 1)/2N)`, is an upper bound. The point with the
largest norm is found first (Note [Loudest frequency] of `loudest.py`), without gradients: small changes of the kernel
do not move it. There the norm is bounded by Gram iteration (Delattre et al., 2023), which is differentiable.
With N = 8(k − 1) + 1 (`oversampling` 8) the factor is below 1.02 for each axis, with N = 12(k − 1) + 1 below 1.008.
Gram iteration on kernels, whose taps multiply in number, needs grids of twice the size to come as close.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.kernels.algebra import adjoint
from orthogonium.kernels.fourier import symbol_at
from orthogonium.kernels.loudest import gram_iteration, loudest_frequency, rounding_of_proof

_OVERSAMPLING = 8


def squared_norm_bound(
    kernel: Tensor,  # (out, in/g, *k)
    niter: int = 4,
    groups: int = 1,
    oversampling: int = _OVERSAMPLING,
) -> Tensor:  # (groups,)
    """Certified bounds on `‖K‖²` for the stride-1 convolution of each group: any image size, zero or circular padding.

    The gradient is that of the frequency with the largest norm. Rounding is included. Entries should lie
    within 1e±9 in float32; zero kernels get a tiny bound.

    >>> squared_norm_bound(torch.ones(1, 1, 3)) >= 9
    tensor([True])
    """
    smaller = kernel if kernel.shape[0] <= kernel.shape[1] * groups else adjoint(kernel, groups)
    smaller = smaller.unflatten(0, (groups, -1))
    sizes = kernel.shape[2:]
    grid = [oversampling * (k - 1) + 1 for k in sizes]
    chosen = symbol_at(smaller, grid, loudest_frequency(smaller, grid))
    between = math.prod([math.cos(math.pi * (k - 1) / (2 * n)) for k, n in zip(sizes, grid, strict=True)])
    # Sums of n products are exact to a relative n·eps/2; complex ones have twice as many terms.
    terms = smaller.shape[2] * (1 if chosen[1] is None else 2) + math.prod(sizes)
    rounding = 1 + (terms + 64) * torch.finfo(kernel.dtype).eps + rounding_of_proof(smaller)
    return gram_iteration(chosen, niter)[0].exp() * (rounding / between**2)
