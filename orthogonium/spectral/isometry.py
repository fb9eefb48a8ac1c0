"""Kernels that are nearly isometries, up to a scale: K Kᵀ = c + D with a small D.

All singular values then lie between √(c − ‖D‖) and √(c + ‖D‖). D is a polynomial of frequency, and what a grid can miss
of it (`grid.py`) is only a fraction of ‖D‖, so a coarse grid is enough. At each of its frequencies
`‖D‖² = ‖D²‖ ≤ ‖D²‖_F`, which is hardly larger than the norm if D is noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.spectral.rounding import gamma
from orthogonium.spectral.symbol import Frequencies, grid_factor, select, symbol

_DENSITY = 3  # frequencies of the grid for each lag of K Kᵀ but one


@torch.no_grad()
def scale_and_deviation(
    gram: Tensor,  # (groups, rows, rows, *lags), centred
    error: Tensor,  # (groups,), what rounding can hide in its symbol
    budget: float,
) -> tuple[Tensor, Tensor]:
    """The mean c of the diagonal, and a bound for the norm of K Kᵀ − c at all frequencies; both (groups,).

    Beyond the budget, the Frobenius norm of D itself is used.
    """
    lags, rows = gram.shape[3:], gram.shape[1]
    rest = gram.clone()
    diagonal = select(rest, [n // 2 for n in lags]).diagonal(dim1=1, dim2=2)
    scale = diagonal.mean(1)
    diagonal -= scale[:, None]
    points = tuple(_DENSITY * (n - 1) if n > 1 else 1 for n in lags)
    frequencies = Frequencies(points, (1,) * len(points))
    factor = math.prod(grid_factor(n, m) for n, m in zip(lags, points, strict=True))
    squared = 8.0 * len(gram) * len(frequencies) * rows**3 <= budget
    sizes = []
    for index in frequencies.chunks(rest):
        matrices = symbol(rest, frequencies.waves(lags, index, centred=True))
        size = torch.linalg.matrix_norm(matrices)
        if squared:
            product = torch.linalg.matrix_norm(matrices @ matrices.mH) + gamma(2 * rows + 16) * size.square()
            size = torch.minimum(size, product.sqrt())
        sizes.append(size.amax(1))
    largest = torch.stack(sizes).amax(0) * (1 + gamma(rows**2 + 16))
    return scale, factor * (largest + error + gamma(8) * scale.abs()) * (1 + gamma(16))
