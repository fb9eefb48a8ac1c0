"""Convolutions on the infinite lattice: products, and norms that are sharp up to rounding where a proof needs 1.

Kernels are `(groups, rows, columns, *taps)` in float64; there is one norm per group, certified from above including its
own rounding (Note [Rounding] of `spectral/rounding.py`). No image size enters: zero padding restricts the lattice, and
a circle is its periodic part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.certification.peaks import stays_below
from orthogonium.spectral import convolution, grid_bound
from orthogonium.spectral.rounding import gamma, root, scale_out
from orthogonium.spectral.symbol import autocorrelation, mass, select

_SHARP = 1e-3  # excess that a grid of frequencies would hardly reduce
_SMALL = 1e-7  # a norm that need not be known more accurately
_ROUNDING = 1e-10  # of the bounds themselves
_GRID = 0.01  # excess that a grid of frequencies may cause unless a goal asks for less
_BUDGET = 4e9  # floating point operations of one grid


def correlate(left: Tensor, right: Tensor) -> Tensor:  # (g, a, c, *k), (g, b, c, *l) → (g, a, b, *(k + l − 1))
    """The kernel of `L Rᵀ`: tap m holds `Σ_j L[j + m − (l − 1)] R[j]ᵀ`."""
    dims = left.dim() - 3
    sizes = [k + n - 1 for k, n in zip(left.shape[3:], right.shape[3:], strict=True)]
    taps = left.permute(0, *range(3, 3 + dims), 1, 2)  # (g, *k, a, c)
    rows = taps.reshape(len(left), -1, left.shape[2])
    out = left.new_zeros(len(left), *sizes, left.shape[1], right.shape[1])
    for tap in itertools.product(*map(range, right.shape[3:])):
        place = out
        for axis, (j, k, n) in enumerate(zip(tap, left.shape[3:], right.shape[3:], strict=True)):
            place = place.narrow(1 + axis, n - 1 - j, k)
        place += (rows @ select(right, tap).transpose(1, 2)).reshape(place.shape)
    return out.permute(0, -2, -1, *range(1, 1 + dims))


def adjoint(kernel: Tensor) -> Tensor:  # (g, m, n, *k) → (g, n, m, *k)
    """The kernel of the adjoint: channels swapped, taps flipped."""
    return kernel.transpose(1, 2).flip(tuple(range(3, kernel.dim())))


def widen(kernel: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """The kernel with zeros around its taps."""
    return F.pad(kernel, [p for pair in reversed(list(zip(before, after, strict=True))) for p in pair])


def scale_rows(kernel: Tensor, factors: Tensor) -> Tensor:  # (g, m, n, *k), (g, m)
    """Each row times its factor."""
    return kernel * factors.reshape(*factors.shape, *[1] * (kernel.dim() - 2))


def scale_columns(kernel: Tensor, factors: Tensor) -> Tensor:  # (g, m, n, *k), (g, n)
    """Each column times its factor."""
    return scale_rows(kernel.transpose(1, 2), factors).transpose(1, 2)


def row_norms(kernel: Tensor) -> Tensor:  # (g, m, n, *k) → (g, m)
    """Euclidean lengths of the rows, over columns and taps."""
    return torch.linalg.vector_norm(kernel.flatten(2), dim=2)


def eigenvalue_bound(matrices: Tensor) -> Tensor:  # (g, n, n) → (g,)
    """Upper bounds for the eigenvalues of symmetric matrices whose largest eigenvalue is not negative, sharp to 1e-11.

    Certified by a Cholesky factorization as in `spectral/eigenvalue.py`, whose margin is wider.
    """
    n, margin = matrices.shape[-1], 1e-11
    top = torch.linalg.eigvalsh(matrices)[:, -1].clamp_min(0)
    while True:
        level = top * (1 + margin) + 1e-290
        shifted = torch.diag_embed(level[:, None].expand(-1, n)) - matrices
        if not torch.linalg.cholesky_ex(shifted).info.any():
            trace = shifted.diagonal(dim1=1, dim2=2).sum(1)
            return (level * (1 + gamma(8)) + gamma(8 * (n + 2)) * trace) * (1 + gamma(8))
        margin *= 4


def modulus_norm(kernel: Tensor) -> Tensor:  # (g,)
    """A cheap bound for the norm of `|K|`, hence for K and every kernel with smaller entries."""
    entries = mass(kernel)
    entries, scale = scale_out(entries, entries.amax((1, 2)))
    crossed = (entries.sum(1).amax(1) * entries.sum(2).amax(1)).sqrt()
    frobenius = torch.linalg.matrix_norm(entries)
    return scale * torch.minimum(crossed, frobenius) * (1 + gamma(kernel[0].numel() + 16))


def small_norm(kernel: Tensor) -> Tensor:  # (g,)
    """A cheap bound for the norm of a kernel that should be 0: the norms of its taps, by `‖M‖⁴ ≤ ‖(MMᵀ)²‖_F`."""
    moduli = modulus_norm(kernel)
    if bool((moduli <= _SMALL).all()):
        return moduli
    taps = kernel.flatten(3).movedim(3, 1)  # (g, t, m, n)
    unit, scale = scale_out(taps if taps.shape[2] <= taps.shape[3] else taps.mT, taps.abs().amax((1, 2, 3)))
    gram = unit @ unit.mT
    norms = torch.linalg.matrix_norm(gram @ gram) ** 0.25  # relative errors of √n·γ at most
    return torch.minimum(moduli, scale * norms.sum(1) * (1 + 1e-9))


def norm(kernel: Tensor, enough: float = 0.0) -> Tensor:  # (g,)
    """Certified upper bounds for the norm; the search stops once all are at most `enough`, up to rounding.

    First the moduli of the kernel of `K Kᵀ` or `KᵀK` are tried, which is sharp for orthogonal kernels and those scaled
    by SLL; then a grid of frequencies, unless there is only one; then frequencies where the norm comes close to a goal.
    """
    if not torch.isfinite(kernel).all():
        return kernel.new_full(kernel.shape[:1], math.inf)
    near = enough * (1 + _ROUNDING)
    unit, scale = scale_out(kernel, kernel.abs().amax(dim=tuple(range(1, kernel.dim()))))
    sides = sorted((unit, unit.transpose(1, 2)), key=lambda side: side.shape[1])
    if kernel[0, 0, 0].numel() == 1:
        matrices = sides[0].flatten(2)
        top = eigenvalue_bound(matrices @ matrices.mT)
        return scale * root(top + _gram_error(sides[0])) * (1 + gamma(16))
    best = torch.full_like(scale, math.inf)
    for side in sides:
        gram = autocorrelation(side)
        centre = select(gram, [n // 2 for n in gram.shape[3:]])
        diagonal = centre.diagonal(dim1=1, dim2=2).amax(1)
        good = (scale * root(diagonal) * (1 + _SHARP)).clamp_min(near)
        top = eigenvalue_bound(mass(gram)) * (1 + gamma(gram[0, 0, 0].numel()))
        best = torch.minimum(best, scale * root(top + _gram_error(side)) * (1 + gamma(16)))
        if bool((best > near).any()):  # the rest may be noise, which moduli overestimate
            centre -= torch.diag_embed(diagonal[:, None].expand(-1, side.shape[1]))
            top = (diagonal + small_norm(gram)) * (1 + gamma(16))
            best = torch.minimum(best, scale * root(top + _gram_error(side)) * (1 + gamma(16)))
        if bool((best <= good).all()):
            return best
    conv = convolution(kernel.flatten(0, 1), groups=len(kernel))
    for rtol in _grids(kernel, enough):
        best = torch.minimum(best, grid_bound(conv, rtol=rtol, budget=_BUDGET, per_group=True))
        if bool((best <= near).all()):
            return best
    undecided = (best > near) & (best <= enough * (1 + _GRID) * (1 + 1e-5))
    for group in undecided.nonzero().flatten().tolist():
        best[group] = _at_peaks(sides[0][group], float(best[group]), enough, float(scale[group]))
    return best


def _at_peaks(side: Tensor, bound: float, enough: float, scale: float) -> float:
    """`enough` if it is also a bound of `scale` times the kernel; else `bound`, which is known to be one."""
    gram, error = autocorrelation(side[None])[0], float(_gram_error(side[None]))
    level, upper = ((b / scale) ** 2 * (1 + sign * gamma(16)) for b, sign in ((enough, -1), (bound, 1)))
    return enough if stays_below(gram, level, upper, error, _BUDGET) else bound


def _grids(kernel: Tensor, enough: float) -> Sequence[float]:
    """The excess that grids of frequencies may cause: with a goal, the first grid is the one CPL uses for its bound."""
    wide = sum(k > 1 for k in kernel.shape[3:])
    return (math.cos(math.pi / 16) ** -wide - 1, _GRID) if enough else (_GRID,)


def _gram_error(side: Tensor) -> Tensor:
    """What rounding can hide in the kernel of `K Kᵀ`, all lags together."""
    return gamma(side[0, 0].numel() + 16) * modulus_norm(side) ** 2
