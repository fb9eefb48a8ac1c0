"""Diagonals that dominate a kernel as an operator: bounds on its norm, channel by channel.

Prach, Lampert (2022), "Almost-orthogonal layers for efficient general-purpose Lipschitz networks"; the steps after the
first follow Delattre et al. (2023), "Efficient bound of Lipschitz constant for convolutional layers by Gram iteration".

Note [Dominating diagonal]
For a Hermitian kernel H and any weights w > 0 let `s_i = Σ_{j, lag} |H_ij[lag]| w_j / w_i`. Then `diag(s) ± H` is
diagonally dominant in the weights w, so `±H ⪯ diag(s)` on the infinite lattice, and on every image with zero or
circular padding. With `N = s^(-1/2) H s^(-1/2)` the same rule applied to N², in the weights w√s, gives `N² ⪯ diag(r)`.
Roots are operator monotone, so `±N ⪯ diag(r)^(1/2)`, hence `±H ⪯ diag(s·√r)`; and so on: t = s₀ · s₁^(1/2) · s₂^(1/4)
⋯. In its new weights N has row sums 1, so those of N² are at most 1: **no step increases any entry of t**.
All kernels in the recursion have norm at most 1, so nothing overflows.

Note [Equal scales]
For one step and the Gram kernel of K, the Perron vector of the matrix of absolute sums as weights w makes all entries
of t equal to its eigenvalue: K is scaled as a whole and stays the same function up to that factor. A kernel that was
scaled before (by any weights) has the eigenvalue 1, and does not change. For more steps,
`log w ← log w + ½ log t` continues from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orthogonium.annotations import as_int
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.kernels.fourier import gram, hermitian_taps, symbol, symmetric_symbol

_WIDEST_RATIO = 30.0  # of two weights, as a logarithm: e³⁰ ≈ 1e13 leaves float32 room for everything else


def positive_weights(logarithms: Tensor) -> Tensor:
    """`exp`, scaled so the largest is 1 (only ratios matter), without overflow for any argument."""
    return (logarithms - logarithms.detach().amax(-1, keepdim=True)).clamp_min(-_WIDEST_RATIO).exp()


def rounding(channels: int, dtype: torch.dtype) -> float:
    """The factor by which a bound made of sums over `channels` is inflated to hold in floating point, too.

    Sums of n products are exact to n·eps of the sum of their absolute values, roots and scalings to a few eps each.
    """
    return 1 + (channels + 32) * torch.finfo(dtype).eps


def dominating_diagonal(
    half: Tensor,  # (taps, g, c, c), half of the taps of a kernel with K[−t] = ± K[t]ᵀ
    sizes: Sequence[int],
    weights: Tensor | None,  # (g, c), positive
    squarings: int,
    sign: int = 1,
) -> Tensor:  # (g, c)
    """Diagonal t with `±H ⪯ diag(t)` for a Hermitian H (`sign=1`), or for H = iK with K minus its own adjoint (−1).

    Note [Dominating diagonal]. Channels that are zero get 1.
    """
    tiny = torch.finfo(half.dtype).tiny
    w = half.new_ones(half.shape[1:3]) if weights is None else weights
    t, power = torch.ones_like(w), 1.0
    for step in range(squarings + 1):
        s = (_absolute_sums(half) @ w[..., None])[..., 0] / w
        s = torch.where(s > tiny, s, torch.ones_like(s))
        t = t * s**power
        if step == squarings:
            break
        power, root, w = power / 2, s.rsqrt(), w * s.sqrt()
        half = half * root[..., None] * root[..., None, :]
        grid = [2 * n - 1 for n in sizes]
        half, sizes, sign = hermitian_taps(gram(symmetric_symbol(half, sizes, grid, sign)), grid), grid, 1
    return t


def _absolute_sums(half: Tensor) -> Tensor:  # (taps, g, c, c) → (g, c, c)
    """`Σ_lag |H_ij[lag]|` for a kernel that is given by half of its taps."""
    magnitude = half.abs()
    later = magnitude[1:].sum(0)
    return magnitude[0] + later + later.mT


def equal_scales(x: Tensor, niter: int) -> Tensor:  # (g, m, n, *k) → (g, m)
    """Logarithms of weights for which `group_gram_diagonal` is equal in a group: Note [Equal scales]."""
    sizes = [2 * n - 1 for n in x.shape[3:]]
    x = x / x.abs().amax().clamp_min(torch.finfo(x.dtype).tiny)
    sums = _absolute_sums(hermitian_taps(gram(symbol(x, sizes)), sizes))
    q = _balanced(x.new_zeros(sums.shape[:2]), lambda w: (sums @ w[..., None])[..., 0] / w, steps=300)
    if niter > 1:
        q = _balanced(q, lambda w: group_gram_diagonal(x, w, niter, x.dtype), steps=30)
    return q


def _balanced(q: Tensor, diagonal: Callable[[Tensor], Tensor], steps: int) -> Tensor:
    """`q ← q + ½ log t` until all entries of t are the same, except for channels that are zero."""
    for _ in range(steps):
        t = diagonal(positive_weights(q))
        gain = torch.where(t > 0, t, torch.ones_like(t)).log() / 2
        q = q + gain - gain.mean(-1, keepdim=True)
        if gain.amax(-1).sub(gain.amin(-1)).max() < 1e-9:
            break
    return q


def gram_diagonal(
    kernel: Tensor,  # (out, in/g, *k); a matrix (out, in) has no k
    q: Tensor | None = None,  # (out,), logarithms of weights
    niter: int = 1,
    groups: int = 1,
) -> Tensor:  # (out,)
    """Diagonal t with `K Kᵀ ⪯ diag(t)` for the convolution of stride 1, for every image and zero or circular padding.

    `t_i = Σ_{j, lag} |G_ij[lag]| e^(q_j − q_i)` with the autocorrelation `G = K Kᵀ`, tightened by `niter − 1` further
    steps of Note [Dominating diagonal]. Rounding is included: the bound holds for the kernel `diag(t)^(-1/2) K` in its
    own precision. For `Kᵀ K` pass the adjoint. Entries should lie within 1e±15 in float32.

    >>> kernel = torch.randn(4, 3, 3, 3)
    >>> one, two = gram_diagonal(kernel), gram_diagonal(kernel, niter=2)
    >>> bool((two <= one).all())
    True
    """
    if kernel.shape[0] % groups:
        raise ShapeError(f"gram_diagonal: {kernel.shape[0]} output channels do not split into {groups} groups.")
    check_steps(niter, "gram_diagonal")
    x = kernel.unflatten(0, (groups, -1))
    weights = None if q is None else positive_weights(q.view(groups, -1))
    return group_gram_diagonal(x, weights, niter, x.dtype).flatten()


def group_gram_diagonal(
    x: Tensor,  # (g, m, n, *k)
    weights: Tensor | None,  # (g, m)
    niter: int,
    precision: torch.dtype,  # of the kernel that is scaled: maybe less than that of x
) -> Tensor:  # (g, m)
    """`gram_diagonal` of each group."""
    sizes = [2 * n - 1 for n in x.shape[3:]]
    half = hermitian_taps(gram(symbol(x, sizes)), sizes)
    terms = max(x.shape[1], math.prod(x.shape[2:]))
    return dominating_diagonal(half, sizes, weights, niter - 1) * rounding(terms, precision)


def check_steps(niter: int, name: str, kind: str = "AOL steps", least: int = 1) -> None:
    """Reject a number of steps below `least`."""
    if not isinstance(as_int(niter), int) or niter < least:
        raise ParameterError(
            f"{name}: niter, the number of {kind}, must be an integer of at least {least}, got {niter!r}."
        )
