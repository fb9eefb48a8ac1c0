"""Almost-orthogonal layers: a kernel rescaled by channel until its norm is at most 1, in several steps.

Prach, Lampert (2022), "Almost-orthogonal layers for efficient general-purpose Lipschitz networks"; the steps after the
first follow Delattre et al. (2023), "Efficient bound of Lipschitz constant for convolutional layers by Gram iteration".

Note [Dominating diagonal]
For a Hermitian kernel H and any weights w > 0 let `s_i = Σ_{j, lag} |H_ij[lag]| w_j / w_i`. Then `diag(s) ± H` is
diagonally dominant in the weights w, so `±H ⪯ diag(s)` on the infinite lattice, and on every image with zero or circular
padding. With `N = s^(-1/2) H s^(-1/2)` the same rule applied to N², in the weights w√s, gives `N² ⪯ diag(r)`. Roots are
operator monotone, so `±N ⪯ diag(r)^(1/2)`, hence `±H ⪯ diag(s·√r)`; and so on: t = s₀ · s₁^(1/2) · s₂^(1/4) ⋯.
In its new weights N has row sums 1, thus those of N² are at most 1: **each step lowers every entry of t** (or leaves
it). All kernels in the recursion have norm at most 1, so nothing overflows.

Note [Stride]
A convolution of stride s and dilation d applies, up to a permutation of pixels, one of stride 1 and dilation 1 to the
phases of its taps: taps with the same index mod `e = s / gcd(s, d)` meet the same phase of the image. Both sides of
that kernel can be scaled: its rows are output channels, its columns are input channels times phases.

Note [Kinks]
Layers start next to orthogonal kernels, whose Gram kernel is zero but for its diagonal: next to the kinks of |G|. There the
gradient is made of signs of sums that cancel to 1e-5 of their terms, where float32 gets one sign of a thousand wrong, and
the gradient by 1e-2. So processors compute the diagonal in float64. Accelerators do not, where that may take 64 times as
long: what they get is a subgradient of a kernel that is as close as rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.fourier import gram, hermitian_taps, symbol, symmetric_symbol
from orthogonium.linalg import random_orthogonal
from orthogonium.methods.kernel import ConvKernel, Device

_WIDEST_RATIO = 30.0  # of two weights, as a logarithm: e³⁰ ≈ 1e13 leaves float32 room for everything else


def positive_weights(logarithms: Tensor) -> Tensor:
    """`exp`, scaled so that the largest is 1 (only ratios matter), without overflow for any argument."""
    return (logarithms - logarithms.detach().amax(-1, keepdim=True)).clamp_min(-_WIDEST_RATIO).exp()


def rounding(channels: int, dtype: torch.dtype) -> float:
    """By how much a bound made of sums over `channels` is inflated to hold in floating point, too.

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
        magnitude = half.abs()
        later = magnitude[1:].sum(0)
        sums = magnitude[0] + later + later.mT
        s = (sums @ w[..., None])[..., 0] / w
        s = torch.where(s > tiny, s, torch.ones_like(s))
        t = t * s**power
        if step == squarings:
            break
        power, root, w = power / 2, s.rsqrt(), w * s.sqrt()
        half = half * root[..., None] * root[..., None, :]
        grid = [2 * n - 1 for n in sizes]
        half, sizes, sign = hermitian_taps(gram(symmetric_symbol(half, sizes, grid, sign)), grid), grid, 1
    return t


def gram_diagonal(
    kernel: Tensor,  # (out, in/g, *k); a matrix (out, in) has no k
    q: Tensor | None = None,  # (out,), logarithms of weights
    niter: int = 1,
    groups: int = 1,
) -> Tensor:  # (out,)
    """Diagonal t with `K Kᵀ ⪯ diag(t)` for the convolution of stride 1: certified for every image, zero or circular padding.

    `t_i = Σ_{j, lag} |G_ij[lag]| e^(q_j − q_i)` with the autocorrelation `G = K Kᵀ`, tightened by `niter − 1` further steps
    of Note [Dominating diagonal]. Includes rounding: it holds for the kernel `diag(t)^(-1/2) K` in its own precision. For
    `Kᵀ K` pass the adjoint. Entries should lie within 1e±15 in float32.

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
    return _gram_diagonal(x, weights, niter, x.dtype).flatten()


def _gram_diagonal(
    x: Tensor,  # (g, m, n, *k)
    weights: Tensor | None,  # (g, m)
    niter: int,
    precision: torch.dtype,  # of the kernel that is scaled: maybe less than that of x
) -> Tensor:  # (g, m)
    sizes = [2 * n - 1 for n in x.shape[3:]]
    half = hermitian_taps(gram(symbol(x, sizes)), sizes)
    terms = max(x.shape[1], math.prod(x.shape[2:]))
    return dominating_diagonal(half, sizes, weights, niter - 1) * rounding(terms, precision)


def check_steps(niter: int, name: str) -> None:
    """Reject a number of steps below 1."""
    if not isinstance(niter, int) or niter < 1:
        raise ParameterError(
            f"{name}: niter, the number of AOL steps, must be an integer of at least 1, got {niter!r}."
        )


def stack_phases(kernel: Tensor, strides: Sequence[int]) -> Tensor:  # (g, m, n, *k) → (g, m, n·∏e, *⌈k/e⌉)
    """The stride-1 kernel of Note [Stride], filled up by zeros."""
    dims = len(strides)
    missing = [-n % e for n, e in zip(kernel.shape[3:], strides, strict=True)]
    x = F.pad(kernel, [p for n in reversed(missing) for p in (0, n)])
    for axis, e in enumerate(strides):
        x = x.unflatten(3 + 2 * axis, (-1, e))
    order = [*range(3), *(4 + 2 * a for a in range(dims)), *(3 + 2 * a for a in range(dims))]
    return x.permute(order).flatten(2, 2 + dims)


class AlmostOrthogonalKernel(ConvKernel):
    """AOL kernel of a geometry. Raw parameters: a kernel of the weight's shape, and the logarithms q of the weights.

    Scales the side with fewer channels, where the Gram matrix is smaller and its rows are closer to orthogonal: output
    channels if `out ≤ in·∏e`, otherwise input channels by phase (e as in Note [Stride]). Each group of one channel has
    nothing to weigh, and no q.
    """

    def __init__(self, geometry: ConvGeometry, niter: int) -> None:
        super().__init__()
        check_steps(niter, "AOL")
        self.geometry, self.niter = geometry, niter
        columns = geometry.group_in * math.prod(geometry.effective_stride)
        self.rows = geometry.group_out <= columns
        self.channels = min(geometry.group_out, columns)

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """An orthogonal tap in the middle and a little noise, which gives each gradient a direction; q = 0."""
        g = self.geometry
        e = g.effective_stride
        wide = torch.promote_types(dtype, torch.float32)
        tap = random_orthogonal((g.groups, g.group_out, g.group_in * math.prod(e)), device, wide)
        kernel = torch.randn(g.groups, g.group_out, g.group_in, *g.kernel_size, device=device, dtype=wide)
        # Small in the sum over channels and taps, which is what the bound sees.
        kernel *= 0.02 / (max(g.group_out, g.group_in) * math.prod(g.kernel_size))
        middle = kernel
        for axis, (k, f) in enumerate(zip(g.kernel_size, e, strict=True)):
            middle = middle.narrow(3 + axis, (k - f + 1) // 2, f)
        middle += tap.view_as(middle)
        raw = kernel.flatten(0, 1).to(dtype)
        if self.channels == 1:
            return (raw,)
        return raw, torch.zeros(g.groups, self.channels, device=device, dtype=dtype)

    def build(self, *raw: Tensor) -> Tensor:
        """Rescale the kernel `(out, in/g, *k)`."""
        g = self.geometry
        e = g.effective_stride
        largest = raw[0].detach().abs().flatten().amax(0)
        # The result does not depend on the scale: a constant for the gradient that keeps squares in range.
        unit = torch.where(largest > 0, largest, torch.ones_like(largest))
        dtype = raw[0].dtype
        wide = torch.float64 if raw[0].device.type == "cpu" else dtype  # Note [Kinks]
        precise = (raw[0].to(wide) / unit).unflatten(0, (g.groups, -1))
        weights = positive_weights(raw[1].to(wide)) if len(raw) > 1 else None
        stacked = stack_phases(precise, e) if max(e, default=1) > 1 else precise
        t = _gram_diagonal(stacked if self.rows else stacked.transpose(1, 2), weights, self.niter, dtype)
        kernel, scale = precise.to(dtype), t.rsqrt().to(dtype)
        if self.rows:
            factor = scale.view(*scale.shape, 1, *[1] * g.dims)
        else:
            factor = scale.view(g.groups, 1, g.group_in, *e)
            factor = factor.repeat(1, 1, 1, *(-(-k // f) for k, f in zip(g.kernel_size, e, strict=True)))
            inside: tuple[Any, ...] = (..., *(slice(k) for k in g.kernel_size))
            factor = factor[inside]
        return (kernel * factor).flatten(0, 1)
