"""Proof that a kernel of the form `K Kᵀ` stays below a level at all frequencies, refined where it comes close.

Note [Cells]
For a unit vector v the function `f(ω) = v*G(ω)v` of frequency lies in [0, U] and on a line through direction δ has
exponential type `σ = Σ_a n_a |δ_a|`, n_a being the largest lag on axis a. So `|f″| ≤ σ² U/2` (Bernstein), and

    λ_max(G(ω + δ)) ≤ λ_max(G(ω) + Σ_a δ_a ∂_a G(ω)) + σ² U/4.

The right-hand side is convex in δ: on a cell of half-widths h its corners decide. Cells that are not below the level
are halved on each axis. Around a peak the number of open cells stays the same from one halving to the next, so the cost
for a level within ε of the peak grows like log 1/ε, whereas that of a grid grows like a power.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from orthogonium.spectral.rounding import gamma
from orthogonium.spectral.symbol import mass

_HALVINGS = 16  # leaves 3e-11 of U
_FIRST = 8  # cells for each lag and axis
_OVERHEAD = 2e5  # number of operations a cell is as slow as, however small its matrix
_CHUNK = 2**20  # complex numbers held at a time


def stays_below(gram: Tensor, level: float, upper: float, error: float, budget: float) -> bool:
    """Whether `G(ω) ⪯ level` is proved for all ω; Note [Cells].

    Args:
        gram: `(n, n, *lags)`, centred.
        level: the level to prove.
        upper: the known bound U.
        error: what rounding can hide in `gram`.
        budget: floating point operations to spend.
    """
    n, sizes = len(gram), gram.shape[2:]
    lags = torch.cartesian_prod(*(torch.arange(k).double() - k // 2 for k in sizes)).reshape(-1, len(sizes))
    taps = gram.flatten(2).movedim(2, 0).flatten(1).to(torch.complex128)  # (lags, n²)
    reach = lags.amax(0)
    # Rounding of waves, of their products with the lags, and of the sums.
    error += (
        gamma(64 * len(lags) + 64 * int(reach.sum()) + 64)
        * (1 + math.pi * float(reach.sum()))
        * float(mass(gram[None]).square().sum().sqrt())
    )
    # A Cholesky factorization misses −c·tr of an eigenvalue (`spectral/eigenvalue.py`); tr is at most 2n·level here.
    error += 2 * n * level * gamma(8 * (n + 2))
    corners = torch.tensor(list(itertools.product(*((-1.0, 1.0) if k > 1 else (0.0,) for k in sizes)))).double()
    cost = len(corners) * (8 * len(lags) * n**2 + 4 / 3 * n**3)
    cells, half = _first_cells(sizes)
    if bool(_is_open(cells, corners[:1] * 0, lags, taps, level + error).any()):
        return False  # some centre is already above
    for _ in range(_HALVINGS):
        curvature = float((reach * half).sum()) ** 2 * upper / 4 * (1 + 1e-9)
        limit = level - curvature - error
        budget -= max(cost, _OVERHEAD) * len(cells)
        if budget < 0:
            return False
        if limit <= 0:
            open_ = cells
        else:
            each = max(1, _CHUNK // (len(corners) * n**2))
            open_ = cells[torch.cat([_is_open(part, corners * half, lags, taps, limit) for part in cells.split(each)])]
        if not len(open_):
            return True
        half = half / 2
        cells = (open_[:, None] + (corners * half)[None]).flatten(0, 1)
    return False


def _first_cells(sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Centres and half-widths of cells covering all frequencies, only one of each pair ω and −ω (on the last axis)."""
    points = [_FIRST * (k // 2) + 1 if k > 1 else 1 for k in sizes]
    last = max((a for a, k in enumerate(sizes) if k > 1), default=-1)
    kept = [p // 2 + 1 if a == last else p for a, p in enumerate(points)]
    axes = [torch.arange(m).double() * (2 * math.pi / p) for m, p in zip(kept, points, strict=True)]
    half = torch.tensor([math.pi / p * (1 + 1e-9) if p > 1 else 0.0 for p in points]).double()
    return torch.cartesian_prod(*axes).reshape(-1, len(sizes)), half


def _is_open(cells: Tensor, steps: Tensor, lags: Tensor, taps: Tensor, limit: float) -> Tensor:  # (cells,)
    """Whether some corner of the linear part of a cell is not proved to be below the limit."""
    n = math.isqrt(taps.shape[1])
    angles = cells @ lags.T  # (cells, lags)
    waves = torch.polar(torch.ones_like(angles), angles)
    slopes = torch.complex(torch.ones_like(angles[:1]), steps @ lags.T)  # (corners, lags)
    matrices = ((waves[:, None] * slopes[None]).flatten(0, 1) @ taps).reshape(-1, n, n)
    shifted = torch.eye(n, dtype=torch.float64) * limit - matrices
    return (torch.linalg.cholesky_ex(shifted).info > 0).reshape(len(cells), -1).any(1)
