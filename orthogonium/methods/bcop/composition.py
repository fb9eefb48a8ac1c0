"""Block convolution orthogonal parametrization, built axis by axis from projectors.

Li, Haque, Anil, Lucas, Grosse, Jacobsen (2019), "Preventing gradient attenuation in Lipschitz constrained convolutional
networks". For a projector P of rank ⌊c/2⌋, `P + (I − P) z` is orthogonal at every frequency z of its axis; a kernel of
size k is a product of k − 1 of them along each axis and of an orthogonal matrix. The latter is `(I − 2P)(I − 2Q)`,
which reaches every rotation. A square 3×3 kernel of c channels takes 25 c³ flops (28 c³ with Note [Three taps]), and
50 c³ backward.

The kernel is `(g, c, m, *taps)` from the start, the layout of a weight: each factor multiplies it from the left. A
projector is given by a basis M with orthonormal rows, `P = MᵀM`; pairs of bases are stacked in `U = [M; N]`. Shapes: g
groups, c channels, r rows of a basis, m columns of the kernel, *t its taps so far, T = m·∏t.

Note [Terms]
A product `A(z) = Σ_i A_i zⁱ` of n factors has `A(1) = I`, so the last tap is I minus the others: n terms `Z_i = A_i X`
give `Y = Σ_{i<n} zⁱ Z_i + zⁿ (X − Σ Z_i)`. Two factors with projectors P, Q have `A_0 = PQ`, `A_1 = P + Q − 2PQ`.

Note [Thin or dense]
The terms of a pair come from the coordinates `UX`, in 6 c²T flops (12 backward), or from the taps `A_0`, `A_1`
themselves, in 4 c³ + 4 c²T (8 c³ + 8 c²T backward): thin products are cheaper for T ≤ 2c. Dense, one product applies
any number of factors.

Note [Three taps]
For the kernels that most layers have, one pair of factors on each axis, a hand-written derivative takes the taps of all
pairs at once, each axis in one product: half as many operators in a training step (measured by `benchmarks.ablation`).
Up to 192 channels, and on accelerators, operators cost more than their arithmetic. With more channels, processors
multiply one large matrix after the other, each by all threads; in a batch, each thread would take a whole matrix, which
leaves one of two threads idle while the other takes the last of three.

With the taps `A_0 = PQ`, `A_1 = P + Q − 2PQ` of a pair (`P = MᵀM`, `Q = NᵀN`, `PQ = MᵀKₙ`, `Kₙ = (MNᵀ)N`) an axis maps
X to `(A_0X, A_1X, X − A_0X − A_1X)`. Its adjoint takes `(G_0, G_1, G_2)` to `G_2 + A_0ᵀH_0 + A_1ᵀH_1`,
`H_i = G_i − G_2`. The rotation is that of a pair, too: `(I − 2P)(I − 2Q) = I − 2A_1`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.linalg.evaluation import HandWritten, evaluate, waits
from orthogonium.linalg.multiply import add_product, multiply

_FEW = 192  # channels up to which operators cost more than their arithmetic


def count_bases(sizes: tuple[int, ...], rotate: bool) -> int:
    """Number of projectors of a kernel with these sizes: k − 1 for each axis, and two for the orthogonal matrix."""
    return sum(k - 1 for k in sizes) + 2 * rotate


def rotation(bases: Tensor, columns: int) -> Tensor:  # (g, 2, r, c) → (g, c, m)
    """The first columns of `(I − 2P)(I − 2Q)`."""
    m, n = bases.unbind(1)
    identity = torch.eye(m.shape[2], columns, dtype=m.dtype, device=m.device)
    x = add_product(identity, n.mT, n[..., :columns], alpha=-2)
    return add_product(x, m.mT, multiply(m, x), alpha=-2)


def compose(
    bases: Tensor,  # (g, N, r, c), orthonormal rows
    sizes: tuple[int, ...],  # of the stride-1 kernel
    start: Tensor | None = None,  # (g, c, m, *t)
    columns: int | None = None,  # m, when the rotation is the start
) -> Tensor:  # (g, c, m, *(t + sizes - 1))
    """Kernel of `∏_axes ∏_i (P_i + (I − P_i) z_axis)`, applied to `start` or to the first columns of a rotation.

    All singular values are 1 at every frequency if those of `start` are. `N = count_bases(sizes, start is None)`: first
    the bases of the rotation, then those of each axis.
    """
    counts = tuple(k - 1 for k in sizes)
    columns = bases.shape[-1] if columns is None else columns
    if start is None and _has_three_taps(bases, counts):
        return evaluate(_ThreeTaps, evaluate(_Taps, bases.contiguous()), columns, counts)
    first, *axes = bases.split((bases.shape[1] - sum(counts), *counts), 1)
    if start is None:
        x = rotation(first, columns)
        x = x.reshape(*x.shape, *(1,) * len(counts))
    else:
        x = start.contiguous()
    for axis in reversed(range(len(counts))):
        if counts[axis]:
            x = apply_to_kernel(axes[axis], x, axis + 3)
    return x


def along_axes(bases: Tensor, sizes: tuple[int, ...], columns: int) -> list[Tensor]:  # (g, N, r, c) → (g, c, m, k) each
    """One kernel for each axis with several taps; applied to an image from the last to the first, they do as `compose`.

    The last of them contains the rotation.
    """
    counts = tuple(k - 1 for k in sizes)
    if _has_three_taps(bases, counts):
        first, *others, last = evaluate(_Taps, bases.contiguous()).unbind(1)
        x = _rotation_of(first, columns)
        return [*(all_taps(pair.chunk(2, 1)) for pair in others), all_taps(multiply(last, x).chunk(2, 1), x)]
    first, *axes = bases.split((2, *counts), 1)
    taps = [multiply_taps(axis) for axis in axes if axis.shape[1]]
    return [*map(all_taps, taps[:-1]), apply_taps(taps[-1], rotation(first, columns).unsqueeze(-1), 3)]


def _has_three_taps(bases: Tensor, counts: tuple[int, ...]) -> bool:
    """Whether each axis has one pair of factors, or none, of few channels. One channel has projectors of rank 0."""
    few = 1 < bases.shape[-1] and (bases.shape[-1] <= _FEW or waits(bases))
    return few and {2} <= set(counts) <= {0, 2}  # Note [Three taps]


# ── factors along one axis ──


def apply_to_kernel(bases: Tensor, x: Tensor, dim: int) -> Tensor:  # (g, n, r, c), (g, c, m, *t)
    """The product of n factors along an axis of the kernel, times the kernel. Note [Thin or dense]."""
    if bases.shape[1] > 1 and math.prod(x.shape[2:]) > 2 * bases.shape[3]:
        return apply_taps(multiply_taps(bases), x, dim)
    for pair in reversed(bases.split(2, 1)):  # the last factor is applied first
        x = _assemble(_project(pair, x), x, dim)
    return x


def _assemble(terms: list[Tensor], x: Tensor, dim: int) -> Tensor:  # n of (g, c, T), (g, c, m, *t) → (g, c, m, *t')
    """`Σ_{i<n} zⁱ Z_i + zⁿ (X − Σ Z_i)` along an axis."""
    n, size = len(terms), x.shape[dim]
    terms = [z.reshape(x.shape) for z in terms]
    last = x - reduce(torch.add, terms)
    if size == 1:
        return torch.cat((*terms, last), dim)
    y = F.pad(last, (0, 0) * (x.dim() - 1 - dim) + (n, 0))
    for i, z in enumerate(terms):
        y.narrow(dim, i, size).add_(z)
    return y


def _project(bases: Tensor, x: Tensor) -> list[Tensor]:  # (g, 1 or 2, r, c)
    """The term `PX`; or `PQX = Mᵀ(MNᵀ)NX` and `(P + Q − 2PQ)X = Uᵀ[MX − 2(MNᵀ)NX; NX]`."""
    u, flat = bases.flatten(1, 2), x.flatten(2)
    if bases.shape[1] == 1:
        return [multiply(u.mT, multiply(u, flat))]
    m, n = bases.unbind(1)
    above, below = multiply(u, flat).chunk(2, 1)
    inner = multiply(multiply(m, n.mT), below)
    coordinates = torch.cat((torch.add(above, inner, alpha=-2), below), 1)
    return [multiply(m.mT, inner), multiply(u.mT, coordinates)]


def taps_of(bases: Tensor) -> tuple[Tensor, ...]:  # (g, n, r, c) → n of (g, c, c)
    """`P`; or `PQ` and `P + Q − 2PQ`: all taps but the last, of one factor or two."""
    u = bases.flatten(1, 2)
    total = multiply(u.mT, u)
    if bases.shape[1] == 1:
        return (total,)
    m, n = bases.unbind(1)
    product = multiply(m.mT, multiply(multiply(m, n.mT), n))
    return product, torch.add(total, product, alpha=-2)


def apply_taps(taps: Sequence[Tensor], x: Tensor, dim: int) -> Tensor:  # n of (g, c, c), (g, c, m, *t)
    """The product with these taps (all but the last) along an axis of the kernel, times the kernel."""
    flat = x.flatten(2)
    return _assemble([multiply(tap, flat) for tap in taps], x, dim)


def multiply_taps(bases: Tensor) -> Sequence[Tensor]:  # (g, n, r, c) → n of (g, c, c)
    """All taps but the last of the product of n factors."""
    *others, taps = [taps_of(pair) for pair in bases.split(2, 1)]
    for part in reversed(others):
        taps = apply_taps(part, all_taps(taps), 3).unbind(-1)[:-1]
    return taps


def all_taps(taps: Sequence[Tensor], total: Tensor | None = None) -> Tensor:  # n of (g, c, m) → (g, c, m, n + 1)
    """The kernel with these taps and the last one; all of them add up to `total`, by default the identity."""
    if total is None:
        total = torch.eye(taps[0].shape[-1], dtype=taps[0].dtype, device=taps[0].device)
    return torch.stack((*taps, reduce(torch.sub, taps, total)), -1)


# ── one pair of factors along each axis: Note [Three taps] ──


def _rotation_of(pair: Tensor, columns: int) -> Tensor:  # (g, 2c, c) → (g, c, m)
    """The first columns of `I − 2A_1`."""
    channels = pair.shape[2]
    identity = torch.eye(channels, columns, dtype=pair.dtype, device=pair.device)
    return identity.sub(pair[:, channels:, :columns], alpha=2)


class _Taps(HandWritten):
    """Bases → `A_0` above `A_1`, for each pair of them. Note [Three taps]."""

    @staticmethod
    def compute(bases: Tensor) -> tuple[Tensor, list[Tensor]]:  # (g, 2n, r, c) → (g, n, 2c, c)
        """The taps; MNᵀ and the coordinates Kₙ."""
        g, n, r, c = bases.shape
        first, second = bases.view(-1, 2, r, c).unbind(1)
        u = bases.view(-1, 2 * r, c)
        overlap = multiply(first, second.mT)
        inner = multiply(overlap, second)
        product = multiply(first.mT, inner)
        taps = torch.cat((product, multiply(u.mT, u).sub_(product, alpha=2)), 1)
        return taps.view(g, n // 2, 2 * c, c), [overlap, inner]

    @staticmethod
    def adjoint(inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor) -> tuple[Tensor]:
        """From the gradients of `A_0` and `A_1`: that of PQ is the first minus twice the second."""
        (bases,), (overlap, inner) = inputs, saved
        r, c = bases.shape[2:]
        of_product, of_sum = grad.reshape(-1, 2, c, c).unbind(1)
        of_product = of_product.sub(of_sum, alpha=2)
        first, second = bases.view(-1, 2, r, c).unbind(1)
        of_inner = multiply(first, of_product)
        of_overlap = multiply(of_inner, second.mT)
        result = multiply(bases.view(-1, 2 * r, c), of_sum + of_sum.mT).view(-1, 2, r, c)
        result[:, 0] += multiply(inner, of_product.mT).add_(multiply(of_overlap, second))
        result[:, 1] += multiply(overlap.mT, of_inner).add_(multiply(of_overlap.mT, first))
        return (result.view(bases.shape),)

    @classmethod
    def plain(cls, bases: Tensor) -> Tensor:
        g, n, r, c = bases.shape
        return torch.cat(taps_of(bases.reshape(-1, 2, r, c)), 1).view(g, n // 2, 2 * c, c)


class _ThreeTaps(HandWritten):
    """(taps, columns, factors of each axis) → kernel. Note [Three taps]."""

    @staticmethod
    def compute(
        taps: Tensor, columns: int, counts: tuple[int, ...]
    ) -> tuple[Tensor, list[Tensor]]:  # (g, n, 2c, c) → (g, c, m, *k)
        """The kernel, and what each axis was applied to."""
        g, n, _, c = taps.shape
        x = _rotation_of(taps[:, 0], columns)
        steps = []
        for pair in reversed(range(1, n)):  # the last axis is applied first; its taps come last
            steps.append(x)
            first, second = multiply(taps[:, pair], x).chunk(2, 1)
            x = torch.stack((first, second, (x - first).sub_(second)), 2).view(g, c, -1)
        kernel = x.new_empty(g, c, columns, *(k + 1 for k in counts))
        kernel.view(g, c, columns, -1).copy_(x.view(g, c, -1, columns).mT)  # the taps go behind the columns
        return kernel, steps

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor, None, None]:
        """From the outermost axis to the rotation."""
        taps, columns = inputs[:2]
        g, n, _, c = taps.shape
        grad_taps = taps.new_empty(n, g, 2 * c, c)
        grad = grad.reshape(g, c, columns, -1).mT.contiguous()
        for pair in range(1, n):
            x = saved.pop()
            parts = grad.view(g, c, 3, -1, columns).transpose(1, 2)
            last = parts[:, 2:].contiguous()
            above = torch.sub(parts[:, :2], last, out=grad.new_empty(g, 2, *last.shape[2:])).view(g, 2 * c, -1)
            grad_taps[pair] = multiply(above, x.mT)
            grad = add_product(last.view(g, c, -1), taps[:, pair].mT, above)
        grad_taps[0].zero_()[:, c:, :columns] = grad.reshape(g, c, columns).mul(-2)
        return grad_taps.transpose(0, 1), None, None

    @classmethod
    def plain(cls, taps: Tensor, columns: int, counts: tuple[int, ...]) -> Tensor:
        first, *pairs = taps.unbind(1)
        x = _rotation_of(first, columns).reshape(len(taps), -1, columns, *(1 for _ in counts))
        axes = [axis for axis, count in enumerate(counts, 3) if count]
        for pair, axis in zip(reversed(pairs), reversed(axes), strict=True):
            x = apply_taps(pair.chunk(2, 1), x, axis)
        return x
