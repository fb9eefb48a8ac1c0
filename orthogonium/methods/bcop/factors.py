"""Orthogonal factors `P + (I − P) z` along one axis of a kernel.

A projector is given by a basis M with orthonormal rows, `P = MᵀM`; pairs of bases are stacked in
`U = [M; N]`. Shapes: g groups, c channels, r rows of a basis, m columns of the kernel, *t its taps so far, T = m·∏t.

Note [Terms]
A product `A(z) = Σ_i A_i zⁱ` of n factors has `A(1) = I`, so the last tap is I minus the others: n terms `Z_i = A_i X`
give `Y = Σ_{i<n} zⁱ Z_i + zⁿ (X − Σ Z_i)`. Two factors with projectors P, Q have `A_0 = PQ`, `A_1 = P + Q − 2PQ`.

Note [Thin or dense]
The terms of a pair come from the coordinates `UX`, in 6 c²T flops (12 backward), or from the taps `A_0`, `A_1`
themselves, in 4 c³ + 4 c²T (6 c³ + 8 c²T backward): thin products are cheaper for T ≤ 2c. Dense, one product applies
any number of factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor


def apply_to_kernel(bases: Tensor, x: Tensor, dim: int) -> Tensor:  # (g, n, r, c), (g, c, m, *t)
    """The product of n factors along an axis of the kernel, times the kernel. Note [Thin or dense]."""
    if bases.shape[1] > 1 and math.prod(x.shape[2:]) > 2 * bases.shape[3]:
        return apply_taps(multiply_taps([taps_of(pair) for pair in bases.split(2, 1)]), x, dim)
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


# ── thin ──


def _project(bases: Tensor, x: Tensor) -> list[Tensor]:  # (g, 1 or 2, r, c)
    """The term `PX`; or `PQX = Mᵀ(MNᵀ)NX` and `(P + Q − 2PQ)X = Uᵀ[MX − 2(MNᵀ)NX; NX]`."""
    u, flat = bases.flatten(1, 2), x.flatten(2)
    if bases.shape[1] == 1:
        return [torch.bmm(u.mT, torch.bmm(u, flat))]
    m, n = bases.unbind(1)
    above, below = torch.bmm(u, flat).chunk(2, 1)
    inner = torch.bmm(torch.bmm(m, n.mT), below)
    coordinates = torch.cat((torch.add(above, inner, alpha=-2), below), 1)
    return [torch.bmm(m.mT, inner), torch.bmm(u.mT, coordinates)]


# ── dense ──


def taps_of(bases: Tensor) -> tuple[Tensor, ...]:  # (g, n, r, c) → n of (g, c, c)
    """`P`; or `PQ` and `P + Q − 2PQ`: all taps but the last, of one factor or two."""
    u = bases.flatten(1, 2)
    total = torch.bmm(u.mT, u)
    if bases.shape[1] == 1:
        return (total,)
    m, n = bases.unbind(1)
    product = torch.bmm(m.mT, torch.bmm(torch.bmm(m, n.mT), n))
    return product, torch.add(total, product, alpha=-2)


def apply_taps(taps: Sequence[Tensor], x: Tensor, dim: int) -> Tensor:  # n of (g, c, c), (g, c, m, *t)
    """The product with these taps (all but the last) along an axis of the kernel, times the kernel."""
    flat = x.flatten(2)
    return _assemble([torch.bmm(tap, flat) for tap in taps], x, dim)


def multiply_taps(parts: Sequence[Sequence[Tensor]]) -> Sequence[Tensor]:
    """All taps but the last of a product, from those of its parts."""
    *others, taps = parts
    for part in reversed(others):
        taps = apply_taps(part, all_taps(taps), 3).unbind(-1)[:-1]
    return taps


def all_taps(taps: Sequence[Tensor]) -> Tensor:  # n of (g, c, c) → (g, c, c, n + 1)
    """The kernel with these taps and the last one."""
    identity = torch.eye(taps[0].shape[-1], dtype=taps[0].dtype, device=taps[0].device)
    return torch.stack((*taps, reduce(torch.sub, taps, identity)), -1)
