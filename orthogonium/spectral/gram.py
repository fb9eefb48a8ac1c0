"""Gram iteration (Delattre et al. 2023 for circular, 2024 for zero padding), with its rounding.

‖G‖² = ‖G G*‖, so G ← G G* squares the norm at each step, and after N steps any crude norm b of G_N gives a sharp bound:
‖G_0‖ ≤ b^(1/2^N). Each step first divides by a constant ν, so nothing overflows, and going back through the steps,
‖G_{k−1}‖ ≤ ν·√(‖G_k‖ + e_k), where e_k is what rounding can hide in step k (Note [Rounding]).

Two forms. *Frequencies*: a matrix G(ω) for each frequency, closed by its Frobenius norm; valid on the circle it was
taken from, or everywhere with the factor of a grid. *Kernel*: G is a kernel, autocorrelated at each step and closed
by the spectral radius of Σ_t |G_t|, itself bounded by max_i (M q)_i / q_i for a positive q (Collatz–Wielandt); valid
for every size at once, and sharp already after one step for an orthogonal kernel. Its taps grow to 2^N(k−1)+1 per
axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.spectral.geometry import Convolution, require_geometry
from orthogonium.spectral.reductions import Reduction, reductions
from orthogonium.spectral.rounding import gamma, root, scale_out, upward
from orthogonium.spectral.symbol import Frequencies, covering_frequencies, mass, symbol, unit_kernel

_PERRON_STEPS = 8


def gram_bound(
    layer: nn.Module | Convolution, size: Sequence[int] | None = None, *, steps: int = 3, per_group: bool = False
) -> Tensor:
    """Certified upper bound by Gram iteration on the kernel, for any padding (zero, circular, …) and all sizes at once.

    Args:
        layer: a layer of known geometry (`geometry_of`).
        size: spatial size of the input; only used with paddings that copy pixels, for a smaller factor.
        steps: N. The excess decreases like a constant to the power 2^−N; with F = (2^N(k−1)+1)^d taps at the end, the
            cost is F·c³ + F²·c².
        per_group: return the bounds of all groups, (groups,), instead of their maximum.

    Returns:
        A differentiable float64 scalar on the device of the weight.

    >>> from orthogonium.spectral import gram_bound
    >>> conv = torch.nn.Conv2d(4, 8, 3, padding=1)
    >>> bool(gram_bound(conv, steps=3) < gram_bound(conv, steps=1))
    True
    """
    _check_steps(steps)
    conv = require_geometry(layer)
    bounds = torch.stack([_kernel_form(conv, r, steps) for r in reductions(conv, size)]).amin(0)
    return bounds if per_group else bounds.amax()


def circular_gram_bound(
    layer: nn.Module | Convolution,
    size: Sequence[int] | None = None,
    *,
    steps: int = 6,
    rtol: float = 0.01,
    per_group: bool = False,
) -> Tensor:
    """Certified upper bound by Gram iteration at each frequency: cheaper than on the kernel for many steps.

    Args:
        layer: a layer of known geometry (`geometry_of`).
        size: spatial size of the input; None for a bound that holds at every size.
        steps: N; with c channels the excess is at most c^(1/2^(N+1)), at a cost of N·c³ for each frequency.
        rtol: on axes with more frequencies than a grid of this relative excess, that grid and its factor are used
            instead; 0 takes every frequency of the circle of `size`.
        per_group: return the bounds of all groups, (groups,), instead of their maximum.

    Returns:
        A differentiable float64 scalar on the device of the weight.

    >>> from orthogonium.spectral import circular_gram_bound
    >>> conv = torch.nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", bias=False)
    >>> _ = torch.nn.init.dirac_(conv.weight)
    >>> 1 <= circular_gram_bound(conv, (6, 6), steps=10).item() <= 1.01
    True
    """
    _check_steps(steps)
    conv = require_geometry(layer)
    bounds = torch.stack([_frequency_form(conv, r, steps, rtol) for r in reductions(conv, size)]).amin(0)
    return bounds if per_group else bounds.amax()


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ParameterError(f"Gram iteration needs at least one step, got {steps}.")


def _frequency_form(conv: Convolution, reduction: Reduction, steps: int, rtol: float) -> Tensor:
    kernel, scale = unit_kernel(conv, reduction)
    taps = kernel.shape[3:]
    frequencies, factor = covering_frequencies(conv, reduction, taps, rtol)
    with torch.no_grad():  # find the worst frequency of each group; only that one needs a graph
        pieces = [
            _iterate(symbol(kernel, frequencies.waves(taps, index)), steps) for index in frequencies.chunks(kernel)
        ]
        best = torch.cat(pieces, 1)
        worst = best.argmax(1)
    if kernel.requires_grad:
        bound = _iterate(symbol(kernel, frequencies.waves(taps, worst)[:, None]), steps)[:, 0]
    else:
        bound = best.amax(1)
    hidden = gamma(2 * math.prod(taps) + 32) * torch.linalg.matrix_norm(mass(kernel))  # of K(ω) itself
    return upward((bound + hidden) * scale * (factor * reduction.factor), 16)


def _iterate(matrices: Tensor, steps: int) -> Tensor:
    """(groups, F) bounds for the norms of matrices (groups, F, rows, columns)."""
    scales, errors = [], []
    for _ in range(steps):
        matrices, scale = scale_out(matrices, torch.linalg.matrix_norm(matrices.detach()))
        size = matrices.abs().square().sum((-2, -1))
        errors.append(gamma(2 * matrices.shape[-1] + 16) * size)
        scales.append(scale)
        matrices = matrices @ matrices.mH
    square = matrices.abs().square().sum((-2, -1))
    bound = root(square) * (1 + gamma(matrices.shape[-1] ** 2 + 16))
    for scale, error in zip(reversed(scales), reversed(errors), strict=True):
        bound = scale * root(bound + error) * (1 + gamma(8))
    return bound


def _kernel_form(conv: Convolution, reduction: Reduction, steps: int) -> Tensor:
    kernel, outer = unit_kernel(conv, reduction)
    scales, errors = [], []
    for _ in range(steps):
        kernel, scale = scale_out(kernel, torch.linalg.vector_norm(kernel.detach().flatten(1), dim=1))
        columns, taps = kernel.shape[2], kernel[0, 0, 0].numel()
        kernel, entries = _autocorrelation(kernel), mass(kernel).square().sum((1, 2))
        lags = kernel[0, 0, 0].numel()
        # At each frequency the product is off by γ‖S‖²_F, S = Σ|G_t|; as a kernel, by at most √lags times that. The way
        # back to the kernel adds γ·(S Sᵀ) to each of its taps.
        product = gamma(2 * columns + 16) + 2 * gamma(2 * taps + 32)
        errors.append((math.sqrt(lags) * product + lags * gamma(2 * lags + 32)) * entries)
        scales.append(scale)
    bound = norm_in_moduli(kernel)
    for scale, error in zip(reversed(scales), reversed(errors), strict=True):
        bound = scale * root(bound + error) * (1 + gamma(8))
    return upward(bound * outer * reduction.factor, 16)


def _autocorrelation(kernel: Tensor) -> Tensor:
    """The kernel of G G*, by products at the 2k − 1 frequencies per axis that determine it."""
    g, rows = kernel.shape[:2]
    taps = kernel.shape[3:]
    lags = tuple(2 * k - 1 for k in taps)
    frequencies = Frequencies(lags, (1,) * len(lags))
    weights = frequencies.multiplicity(kernel) / math.prod(lags)
    out = kernel.new_zeros(g, math.prod(lags), rows * rows)
    for index in frequencies.chunks(kernel):
        matrices = symbol(kernel, frequencies.waves(taps, index))
        product = (matrices @ matrices.mH).flatten(2)  # (g, F, rows²)
        back = (frequencies.waves(lags, index, centred=True).conj() * weights[index, None]).T  # (lags, F)
        out = out + (back.real @ product.real - back.imag @ product.imag if product.is_complex() else product)
    return out.transpose(1, 2).reshape(g, rows, rows, *lags)


def norm_in_moduli(kernel: Tensor) -> Tensor:
    """(groups,) bounds ρ(Σ_t |G_t|) for the norms of kernels G, Hermitian up to rounding (of their Hermitian parts)."""
    entries = mass(kernel)
    return spectral_radius((entries + entries.transpose(1, 2)) / 2) * (1 + gamma(kernel[0, 0].numel() + 16))


def spectral_radius(matrix: Tensor) -> Tensor:
    """(groups,) upper bounds max_i (M q)_i / q_i for the spectral radius of non-negative M, q near Perron's vector."""
    q = torch.ones_like(matrix[..., :1])
    for _ in range(_PERRON_STEPS):
        q = matrix @ q
        q = q / q.amax(1, keepdim=True).clamp_min(1e-300) + 1e-12
    return (matrix @ q / q).amax((1, 2))
