"""Blocks `y = Sx + Cσ(Ax + b)` bounded from the kernels they actually apply, not from those they should apply.

For slopes of σ in [lo, hi] the constant is at most the largest norm of `S + CDA`, D diagonal with entries in [lo, hi].
Zero padding cuts images, which means more zeros in D or fewer rows and columns; a circle is the periodic part of the
lattice. So 0 counts among the slopes, and everything is bounded on the infinite lattice (`lattice.py`).

Note [Residual bound]
For every positive w let `B = wA` and `E = Cw⁻¹ + 2SBᵀ`. Then `S + CDA = S(I − 2BᵀDB) + EDB`, and the eigenvalues of
`BᵀDB` lie between `−l‖B‖²` and `h‖B‖²`, l = max(−lo, 0), h = max(hi, 0). So the norm is at most

    ‖S‖ · max(1, 2h‖B‖² − 1, 1 + 2l‖B‖²) + max(l, h) ‖E‖ ‖B‖.

SLL, CPL and orthogonal residual blocks have E = 0 and ‖B‖ ≤ 1 for `w = T^(-1/2)`. Here w is the best fit of `−2SAᵀw²`
to C, one number for each inner channel, and E is what is left.

Note [Wider middle]
Between K_pre and K_post of a fused block there may be more channels than before them. Then `SAᵀ` is not `K_post Wᵀ`,
and the fit fails. For any kernels R, S′ and A′, `S + CDA` is `(S′ + CDA′)R` plus `(S − S′R) + CD(A − A′R)`. R, S′ and
A′ are taken from the parametrization, if there is one: the bound holds for any choice, and is sharp for K_pre, K_post
and W.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from orthogonium.certification.block_kernels import BlockKernels, NoBoundError, read_block
from orthogonium.certification.lattice import (
    adjoint,
    correlate,
    modulus_norm,
    norm,
    row_norms,
    scale_columns,
    scale_rows,
    small_norm,
    widen,
)
from orthogonium.certification.sandwich_scales import sandwich_scales
from orthogonium.layers.block import LipschitzBlock
from orthogonium.methods.sll_aoc import FusedKernels
from orthogonium.spectral.rounding import UNIT, gamma

_NEAR = 1.001  # a bound below this multiple of the intended constant is accepted without trying others
_LOST = 1e-100  # more than numbers too small to be squared can contribute


@dataclass(frozen=True)
class BlockConstant:
    """An upper bound of a block's Lipschitz constant, including rounding of the bound itself, and how it was found."""

    value: float
    method: str


@torch.no_grad()
def block_constant(block: LipschitzBlock, input_shape: Sequence[int], slopes: tuple[float, float]) -> BlockConstant:
    """Certified upper bound of the Lipschitz constant of a block, from the kernels in its `weight`.

    Frozen, edited, rounded or pruned blocks are bounded as they are; a block that was left as built has its intended
    constant, up to the rounding of its kernels.

    Args:
        block: a block whose `forward` is that of its class.
        input_shape: shape of one sample, without the batch dimension. The bound does not depend on the image size.
        slopes: the smallest and the largest slope of the activation inside.

    Raises:
        NoBoundError: if a number is NaN or infinite, or if the convolutions do not fit together.

    >>> from orthogonium.layers.conv.sll import SDPBasedLipschitzResBlock
    >>> block = SDPBasedLipschitzResBlock(4, inner_dim_factor=2)
    >>> round(block_constant(block, (4, 8, 8), (0.0, 1.0)).value, 4)
    1.0
    """
    low, high = max(-slopes[0], 0.0), max(slopes[1], 0.0)
    if not (slopes[0] <= slopes[1] and math.isfinite(low + high)):
        raise NoBoundError(f"Slopes are an interval of finite numbers, got {slopes}. Name the steepest ones.")
    kernels = read_block(block, tuple(input_shape))
    bounds: dict[str, Tensor] = {}
    if kernels.aligned and kernels.skip is None:
        bounds["sandwich"] = _sandwich_bound(kernels, low, high)
    elif kernels.aligned:
        bounds["residual"] = _residual_bound(kernels, low, high)
        if not _as_meant(bounds, kernels) and (factors := _factors(block, kernels)):
            bounds["fused residual"] = _fused_bound(kernels, *factors, low, high)
    if not _as_meant(bounds, kernels):
        bounds["product of norms"] = _product_bound(kernels, low, high)
    values = torch.stack(list(bounds.values())).nan_to_num(nan=math.inf, posinf=math.inf)
    # Groups of channels do not mix: each takes the best of its own bounds.
    least, which = values.min(0)
    value = float(least.amax()) * (1 + gamma(64)) + _LOST
    if not math.isfinite(value):
        raise NoBoundError(f"The norms of the kernels of {type(block).__name__} overflow. Look for diverged training.")
    return BlockConstant(value, list(bounds)[int(which[least.argmax()])])


def _as_meant(bounds: dict[str, Tensor], kernels: BlockKernels) -> bool:
    return bool(bounds) and bool((torch.stack(list(bounds.values())).amin(0) <= _NEAR * kernels.meant).all())


def _never(kernels: BlockKernels) -> Tensor:
    """The bound where a structure does not apply: infinite for every group."""
    return torch.full((len(kernels.exponents),), math.inf, dtype=torch.float64)


def _residual_bound(kernels: BlockKernels, low: float, high: float) -> Tensor:
    """Note [Residual bound]; infinite where strides or offsets do not fit."""
    inner, outer, skip = kernels.inner, kernels.outer, kernels.skip
    assert skip is not None
    a, c, s = inner.taps, outer.taps, skip.taps
    axes = zip(inner.dilation, a.shape[3:], skip.left, inner.left, outer.left, strict=True)
    begins = [divmod(d * (k - 1) + ls - la - lc, d) for d, k, ls, la, lc in axes]  # where C begins in S Aᵀ
    if set(inner.stride) != {1} or any(rest for _, rest in begins):
        return _never(kernels)
    product = correlate(s, a)  # (g, out, inner, *n)
    sizes = [(t, k, n) for (t, _), k, n in zip(begins, c.shape[3:], product.shape[3:], strict=True)]
    product = widen(product, [max(-t, 0) for t, _, _ in sizes], [max(t + k - n, 0) for t, k, n in sizes])
    c = widen(c, [max(t, 0) for t, _, _ in sizes], [max(n - t - k, 0) for t, k, n in sizes])
    w = _fit(product, c, a)
    b, outside = scale_rows(a, w), scale_columns(c, 1 / w)
    rest = outside + 2 * scale_columns(product, w)  # E
    e = small_norm(rest)
    if bool((e > (_NEAR - 1) * kernels.meant).any()):
        e = torch.minimum(e, norm(rest))
    # Each entry of E is a sum of this many products.
    e += gamma(a[0, 0].numel() + 16) * (modulus_norm(outside) + 2 * modulus_norm(s) * modulus_norm(b))
    size = norm(b, enough=1.0) + 2 * UNIT * modulus_norm(b)
    turned = torch.maximum(2 * high * size**2 - 1, 1 + 2 * low * size**2).clamp_min(1)
    return norm(skip.phases) * turned + max(low, high) * e * size


def _fit(product: Tensor, c: Tensor, a: Tensor) -> Tensor:  # → (g, inner)
    """Positive w with `C ≈ −2SAᵀw²`; where no fit exists, the value that the lengths of A and C suggest."""
    axes = (1, *range(3, c.dim()))
    square = -(c * product).sum(axes) / (2 * product.square().sum(axes))
    typical = row_norms(c.transpose(1, 2)) / (2 * row_norms(a))
    square = torch.where(square > 1e-3 * typical, square, typical)
    return torch.where(square > 0, square, torch.ones_like(square)).sqrt()  # 1 for silent channels, 0/0


def _factors(block: LipschitzBlock, kernels: BlockKernels) -> tuple[Tensor, Tensor, Tensor] | None:
    """R, A′ and S′ of Note [Wider middle], if the block still has a parametrization."""
    if not parametrize.is_parametrized(block, "weight"):
        return None
    chain = block.parametrizations.weight  # type: ignore[union-attr]
    kernel = getattr(chain[0], "kernel", None)  # type: ignore[index]
    if not isinstance(kernel, FusedKernels):
        return None
    pre, w, _, post = kernel.unfused(*(p.detach().to("cpu", torch.float64) for p in chain.parameters()))  # type: ignore[union-attr]
    if pre is None:
        return None
    groups = len(kernels.exponents)
    silent = row_norms(kernels.inner.taps) == 0
    factors = torch.ldexp((~silent).double(), -kernels.exponents)
    first, inner, skip = (kernel.unflatten(0, (groups, -1)) for kernel in (pre, w, post))
    return first, scale_rows(inner, factors), kernels.meant * skip


def _fused_bound(kernels: BlockKernels, first: Tensor, inner: Tensor, skip: Tensor, low: float, high: float) -> Tensor:
    """Note [Wider middle]."""
    assert kernels.skip is not None
    v = _even(kernels)
    inside = replace(kernels, inner=replace(kernels.inner, taps=inner), skip=replace(kernels.skip, taps=skip))
    aside = _difference(kernels.skip.taps, skip, first)
    astray = _difference(scale_rows(kernels.inner.taps, v), scale_rows(inner, v), first)
    outer = modulus_norm(scale_columns(kernels.outer.taps, 1 / v))
    return _residual_bound(inside, low, high) * norm(first) + aside + max(low, high) * outer * astray


def _difference(kernel: Tensor, last: Tensor, first: Tensor) -> Tensor:  # (g,)
    """A bound of `‖K − LF‖`."""
    rounding = gamma(first.shape[1] * first[0, 0, 0].numel() + 16)
    moduli = modulus_norm(kernel) + modulus_norm(last) * modulus_norm(first)
    return small_norm(kernel - correlate(last, adjoint(first))) + rounding * moduli


def _sandwich_bound(kernels: BlockKernels, low: float, high: float) -> Tensor:
    """Note [Sandwich bound] of `sandwich_scales.py`; infinite where A and C have no common lattice."""
    inner, outer = kernels.inner, kernels.outer
    apart = any(math.gcd(s, d) > 1 for s, d in zip(inner.stride, inner.dilation, strict=True))
    if apart or set(outer.stride) != {1}:
        return _never(kernels)
    a, c = inner.phases, adjoint(outer.taps)
    # How the scales are found makes no difference to the validity of the bound, which holds for all of them.
    psi = sandwich_scales(a, c / kernels.meant) * math.sqrt(kernels.meant)
    most = [max(k, m) for k, m in zip(a.shape[3:], c.shape[3:], strict=True)]
    scaled = (scale_rows(c, 1 / psi), scale_rows(a, psi))
    zeros = [0] * len(most)
    both = torch.cat([widen(x, zeros, [m - k for k, m in zip(x.shape[3:], most, strict=True)]) for x in scaled], 2)
    size = norm(both, enough=math.sqrt(2 * kernels.meant)) + 2 * UNIT * modulus_norm(both)
    return (low + high) / 2 * size**2


def _even(kernels: BlockKernels) -> Tensor:  # (g, inner)
    """Factors v that make the row of vA as long as the column of `Cv⁻¹` for each inner channel."""
    v = (row_norms(kernels.outer.taps.transpose(1, 2)) / row_norms(kernels.inner.taps)).sqrt()
    return torch.where((v > 0) & (v < math.inf), v, torch.ones_like(v))


def _product_bound(kernels: BlockKernels, low: float, high: float) -> Tensor:
    """`‖S‖ + max(l, h) ‖Cv⁻¹‖ ‖vA‖`."""
    v = _even(kernels)
    inner = replace(kernels.inner, taps=scale_rows(kernels.inner.taps, v))
    outer = replace(kernels.outer, taps=scale_columns(kernels.outer.taps, 1 / v))
    a, c = (norm(k.phases) + 2 * UNIT * modulus_norm(k.taps) for k in (inner, outer))
    branch = max(low, high) * a * c
    return branch if kernels.skip is None else norm(kernels.skip.phases) + branch
