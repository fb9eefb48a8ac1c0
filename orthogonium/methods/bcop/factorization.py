"""The projectors of a product of factors along one axis, from its taps.

Shapes: c channels, r the rank of the projectors, m columns; t taps of `X = F₁ ⋯ F_n S` with `F = P + (I − P)z`, where
S has t − n of them.

Note [Cuts]
`X = GY` where G consists of the first j factors. Vectors h of j taps (c each) that are orthogonal to all `Gf`, f of j
taps, form a space K of dimension j(c − r), and
- the first j taps of X, shifted by 0 to j − 1 places, are orthogonal to K;
- the last j taps of X, shifted down by 0 to j − 1 places, lie in K.
So the complement of K is spanned by the leading eigenvectors of the difference of the Gram matrices of these two, which
is positive there and negative on K: a direction is as certain as the larger of the two makes it, and if neither says
anything, any will do (j = 1). K determines G: `(I − G(z)G(1)ᵀ)/(1 − z)` is the projection onto K of
`(1 + z + … + z^(j−1)) I`, and G(1) = I.

One factor is a projector; otherwise G is cut again. Whether a cut is well conditioned is a matter of chance: float32
noise may grow by 1e3 and more. The quality of a cut is known, since all steps are orthogonal: the error of the product
is what is removed beyond its ends. So other cuts are tried until one is as good as the noise, and the best is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_MANY = 6  # factors beyond which only the middle cut is tried: trying all takes about 3ⁿ
_FOREIGN = 0.1  # fraction of the energy that only kernels of another kind lose


class Factorization(NamedTuple):
    """Bases of the projectors, first factor first; the remaining kernel; the square of what was lost."""

    bases: list[Tensor]  # (r, c) each
    rest: Tensor  # (t − n, c, m)
    lost: float


def factorize(x: Tensor, n: int, noise: float, rank: int) -> Factorization:  # (t, c, m)
    """The n factors along an axis. Cuts are tried until the square of their loss is below `noise`. Note [Cuts]."""
    if n == 0:
        return Factorization([], x, 0.0)
    sizes = sorted(range(1, max(n, 2)), key=lambda j: abs(2 * j - n))  # the middle first
    if x.shape[2] < rank:
        sizes = [1]
    elif n > _MANY:
        sizes = sizes[:1]
    best = None
    for j in sizes:
        found = _cut(x, n, j, noise, rank)
        if best is None or found.lost < best.lost:
            best = found
        if best.lost <= noise or best.lost > _FOREIGN * x.square().sum().item():
            break
    assert best is not None
    return best


def _cut(x: Tensor, n: int, j: int, noise: float, rank: int) -> Factorization:
    """The factorization whose first j factors come from one cut."""
    complement = _complement(x, j, rank)
    bases = [complement.mT] if j == 1 else factorize(_product(complement, j), j, noise, rank).bases
    total = 0.0
    for basis in bases:
        x, lost = _take_off(basis, x)
        total += lost
    right = factorize(x, n - j, noise, rank)
    return Factorization(bases + right.bases, right.rest, total + right.lost)


def _complement(x: Tensor, j: int, rank: int) -> Tensor:  # → (j·c, j·r), orthonormal columns
    """What is orthogonal to K."""
    t, c, _ = x.shape
    zero = torch.zeros_like(x[0])
    first = torch.cat([torch.cat([x[i - s] if i >= s else zero for s in range(j)], 1) for i in range(j)])
    last = torch.cat([torch.cat([x[t - j + i + s] if i + s < j else zero for s in range(j)], 1) for i in range(j)])
    return torch.linalg.eigh(first @ first.mT - last @ last.mT).eigenvectors[:, j * (c - rank) :]


def _product(complement: Tensor, j: int) -> Tensor:  # (j·c, j·r) → (j + 1, c, c)
    """The product G of j factors, from the space that determines it."""
    c = len(complement) // j
    identity = torch.eye(c, dtype=complement.dtype, device=complement.device)
    all_ones = identity.repeat(j, 1)
    k = (all_ones - complement @ (complement.mT @ all_ones)).view(j, c, c)
    return torch.cat((identity[None] - k[:1], k[:-1] - k[1:], k[-1:]))


def _take_off(basis: Tensor, x: Tensor) -> tuple[Tensor, float]:
    """The adjoint of the first factor times x, and the square of the taps before and after, which should vanish."""
    kept = basis.mT @ (basis @ (x[:-1] - x[1:]))
    before = x[0] - basis.mT @ (basis @ x[0])
    behind = basis @ x[-1]
    return x[1:] + kept, (before.square().sum() + behind.square().sum()).item()
