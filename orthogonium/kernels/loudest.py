"""The frequency of a grid at which the symbol of a convolution has the largest norm.

Note [Loudest frequency]
If values can be read, it is found exactly, with proof: let λ be the largest eigenvalue of `H = KKᴴ` at some
frequencies. A Cholesky factorization of `λI − H` at each of the others succeeds where no eigenvalue of H exceeds λ.
Where it fails, eigenvalues are computed at a few of the frequencies that failed, λ grows, and those that failed are
tried again, until none fails. A factorization takes `4c³/3` flops, Gram iteration at all frequencies `6c³` per step.
Compilers, transforms and accelerators, which cannot branch, use Gram iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from orthogonium.kernels.fourier import Symbol, gram, hermitian_symbols, hermitian_taps, symbol
from orthogonium.linalg.evaluation import has_values, waits

_STEPS = 9  # of Gram iteration: norms are exact up to the power 2^-11 of the number of channels
_TRIED_AT_ONCE = 4
_ENTRIES_AT_ONCE = 1 << 16


def gram_iteration(x: Symbol, steps: int) -> Tensor:  # (frequencies, g, m, n) → (frequencies, g)
    """Logarithms of upper bounds on `‖K(ω)‖²`: `‖K‖² ≤ ‖(KKᴴ)^(2ᵐ)‖_F^(2^-m)` (Delattre et al., 2023)."""
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


@torch.no_grad()
def loudest_frequency(kernel: Tensor, grid: Sequence[int]) -> Tensor:  # (g, m, n, *k), m ≤ n → (g,)
    """Index of the frequency with the largest norm for each group, in half of a grid: Note [Halves] of `fourier.py`.

    Norms at all others are at most as large, up to `rounding_of_proof`; with Gram iteration, this holds for their
    bounds of `_STEPS` steps.
    """
    if not has_values(kernel) or waits(kernel):
        return gram_iteration(symbol(kernel, grid), _STEPS).argmax(0)
    if not kernel.isfinite().all():
        return torch.zeros(len(kernel), dtype=torch.long)  # all bounds are NaN
    return _proved(kernel.double(), grid)


def _proved(kernel: Tensor, grid: Sequence[int]) -> Tensor:
    """Note [Loudest frequency]. Some frequencies at a time, so their matrices stay in the cache."""
    groups, channels = kernel.shape[:2]
    lags = [2 * k - 1 for k in kernel.shape[3:]]
    taps = hermitian_taps(gram(symbol(kernel, lags)), lags)
    slack = 1 + rounding_of_proof(kernel)
    parts = math.ceil(((math.prod(grid) + 1) // 2) * groups * channels**2 / _ENTRIES_AT_ONCE)
    largest = kernel.new_zeros(groups)
    highest, loudest = [0.0] * groups, [0] * groups
    for first, (real, imaginary) in enumerate(hermitian_symbols(taps, lags, grid, parts)):
        squares = (real if imaginary is None else torch.complex(real, imaginary)).flatten(0, 1)  # (frequencies·g, c, c)
        group = torch.arange(len(squares)) % groups
        left = _exceeding(squares, largest[group] * slack).nonzero()[:, 0]
        while len(left):
            strongest = torch.linalg.matrix_norm(squares[left]).topk(min(max(_TRIED_AT_ONCE, groups), len(left)))
            tried = left[strongest.indices]
            found = torch.linalg.eigvalsh(squares[tried])[:, -1]
            for i, value in zip(tried.tolist(), found.tolist(), strict=True):
                if value > highest[i % groups]:
                    highest[i % groups], loudest[i % groups] = value, first + parts * (i // groups)
            largest = kernel.new_tensor(highest)
            left = left.index_fill(0, strongest.indices, -1)
            left = left[left >= 0]
            left = left[_exceeding(squares[left], largest[group[left]] * slack)]
    return torch.tensor(loudest)


def _exceeding(squares: Tensor, levels: Tensor) -> Tensor:
    """Which matrices may have an eigenvalue above their level: `level·I − H` has no Cholesky factor."""
    identity = torch.eye(squares.shape[-1], dtype=levels.dtype)
    levels = levels.clamp_min(torch.finfo(levels.dtype).tiny)  # which zero does not exceed
    return torch.linalg.cholesky_ex(levels[:, None, None] * identity - squares)[1] != 0


def rounding_of_proof(kernel: Tensor) -> float:  # (g, m, n, *k)
    """What rounding in float64 can hide, relative to the largest eigenvalue λ.

    In a factorization: `2m(m + 1)·eps`. In the entries of H: a relative `(n + 9·taps)·eps` of those of `|K||K|ᴴ`, whose
    norm is at most `m·taps·λ`.
    """
    rows, columns, taps = *kernel.shape[1:3], math.prod(kernel.shape[3:])
    return 16 * rows * taps * (columns + taps) * torch.finfo(torch.float64).eps
