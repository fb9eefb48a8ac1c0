"""Certified bound from a grid of frequencies.

A matrix polynomial K(ω) with k taps per axis that is at most b on a grid of M > k − 1 frequencies per axis is
everywhere at most b·∏ min((1 − (k−1)/M)^(−1/2), 1/cos(π(k−1)/(2M))): the first from Parseval, the second from Ehlich
and Zeller (1964). The norms on the grid are certified by Cholesky factorizations of the kernel of K Kᵀ
(`eigenvalue.py`). The cost does not depend on the image; where a small circular image has fewer frequencies than the
grid, those are used instead, without a factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.spectral.eigenvalue import follow, largest_eigenvalue
from orthogonium.spectral.geometry import Convolution, require_geometry
from orthogonium.spectral.reductions import Reduction, reductions
from orthogonium.spectral.rounding import gamma, root, upward
from orthogonium.spectral.symbol import Frequencies, autocorrelation, covering_frequencies, mass, symbol, unit_kernel


def grid_bound(
    layer: nn.Module | Convolution,
    size: Sequence[int] | None = None,
    *,
    rtol: float = 0.01,
    budget: float = math.inf,
    per_group: bool = False,
) -> Tensor:
    """Certified upper bound of a layer's spectral norm, at most 1 + rtol times the norm on the infinite lattice.

    Padding can make the layer's own norm smaller than on the lattice (zeros), or the factor that covers the padding
    loose (reflect, replicate). The bound holds for all paddings, strides, dilations and groups, and is differentiable.

    Args:
        layer: a layer of known geometry (`geometry_of`).
        size: spatial size of the input; None for a bound that holds at every size.
        rtol: relative excess that the grid may cause; 0 takes every frequency of the circle of `size`.
        budget: floating point operations to spend on factorizations; a thinner grid stays valid but gets looser.
        per_group: return the bounds of all groups, (groups,), instead of their maximum.

    Returns:
        A float64 scalar on the device of the weight.

    >>> from orthogonium.spectral import grid_bound
    >>> identity = torch.nn.Conv2d(4, 4, 3, padding=1)
    >>> _ = torch.nn.init.dirac_(identity.weight)
    >>> 1 <= grid_bound(identity).item() <= 1.01
    True
    """
    conv = require_geometry(layer)
    bounds = torch.stack([_bound(conv, r, rtol, budget) for r in reductions(conv, size)]).amin(0)
    return bounds if per_group else bounds.amax()


def _bound(conv: Convolution, reduction: Reduction, rtol: float, budget: float) -> Tensor:
    kernel, scale = unit_kernel(conv, reduction)
    return largest_on_grid(conv, reduction, kernel, rtol, budget)[0] * scale * (1 + gamma(4))


def largest_on_grid(
    conv: Convolution, reduction: Reduction, kernel: Tensor, rtol: float, budget: float, gram: Tensor | None = None
) -> tuple[Tensor, Frequencies]:
    """(groups,) bounds of the layer for its `unit_kernel`, and the frequencies used; `gram`: its autocorrelation."""
    taps = kernel.shape[3:]
    cost, by_lags = _cost(kernel)
    frequencies, factor = covering_frequencies(conv, reduction, taps, rtol, budget / cost)
    with torch.no_grad():
        if by_lags:
            gram = autocorrelation(kernel) if gram is None else gram
            pieces = (
                symbol(gram, frequencies.waves(gram.shape[3:], index, centred=True))
                for index in frequencies.chunks(gram)
            )
        else:
            pieces = (_product(symbol(kernel, frequencies.waves(taps, i))) for i in frequencies.chunks(kernel))
        top, where = largest_eigenvalue(pieces)
        bound = upward(root(top + gram_error(kernel)) * (factor * reduction.factor), 16)
    if kernel.requires_grad:
        bound = follow(bound, symbol(kernel, frequencies.waves(taps, where)[:, None])[:, 0])
    return bound, frequencies


def _product(matrices: Tensor) -> Tensor:
    return matrices @ matrices.mH


def _cost(kernel: Tensor) -> tuple[float, bool]:
    """Operations at each frequency, and whether K(ω)K(ω)* comes cheaper from the kernel of K Kᵀ than from K(ω)."""
    groups, rows, columns = kernel.shape[:3]
    lags = 4 * rows**2 * math.prod(2 * k - 1 for k in kernel.shape[3:])
    direct = 4 * rows * columns * kernel.shape[3:].numel() + 8 * rows**2 * columns
    return groups * (4 / 3 * rows**3 + min(lags, direct)), lags <= direct


def gram_error(kernel: Tensor) -> Tensor:
    """(groups,) what rounding can hide in any K(ω)K(ω)*, either way: γ·S Sᵀ by entries, S = Σ_t |K_t|."""
    terms = 2 * kernel[0, 0].numel() + 4 * math.prod(2 * k - 1 for k in kernel.shape[3:]) + 128
    return gamma(terms) * mass(kernel).square().sum((1, 2))
