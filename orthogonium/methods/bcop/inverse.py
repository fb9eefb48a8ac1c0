"""From a kernel back to what it is made of, if it is such a kernel: its projectors, or its two stages.

Note [Peeling]
The taps of `X = A(z₁)B(z₂) ⋯ S` along the first axis, with all other axes as columns, are the factors of A times the
rest: the factors are found (Note [Cuts]) and removed, then those of the next axis. This is done in float64, and the
result must be checked by building it: float32 kernels of sizes 3, 5 and 7 are rebuilt to 3e-6. With fewer columns
than channels there is less information, and some kernels of size 5 and more cannot be recovered.

Note [Two reflections]
A rotation R turns planes: for an eigenvector v of R + Rᵀ with `vᵀRv = cos θ`, v and Rv span one, turned by θ. There R
is a product of two reflections, at the angles θ/2 and 0. Eigenvectors of R itself (±1) are taken in pairs.

Note [Cuts]
Along one axis, with c channels, m columns and projectors of rank r, X has t taps and is `F₁ ⋯ F_n S` with
`F = P + (I − P)z`, where S has t − n taps. `X = GY` where G consists of the first j factors. Vectors h of j taps (c
each) that are orthogonal to all `Gf`, f of j taps, form a space K of dimension j(c − r), and
- the first j taps of X, shifted by 0 to j − 1 places, are orthogonal to K;
- the last j taps of X, shifted down by 0 to j − 1 places, lie in K.
So the complement of K is spanned by the leading eigenvectors of the difference of the Gram matrices of these two, which
is positive there and negative on K: a direction is as certain as the larger of the two makes it, and if neither says
anything, any will do (j = 1). K determines G: `(I − G(z)G(1)ᵀ)/(1 − z)` is the projection onto K of
`(1 + z + … + z^(j−1)) I`, and G(1) = I.

One factor is a projector; otherwise G is cut again. Whether a cut is well conditioned is a matter of chance: float32
noise may grow by 1e3 and more. The quality of a cut is known, since all steps are orthogonal: the error of the product
is what is removed beyond its ends. So other cuts are tried until one is as good as the noise, and the best is taken.

Note [Two stages]
The taps of `K = Q ⊛ B` are `K[t] = Σ_a Q_a B[t − a]` over the places a of a tile. The columns of Q are orthonormal, so
`K[s]ᵀK[t] = Σ_a C[s − a, t − a]` with the Gram matrix `C[s, t] = B[s]ᵀB[t]`. This can be solved for C one tap after
another: along each axis `C[s, t] = S[s, t] − S[s − 1, t − 1] + C[s − e, t − e]`. C determines B up to a rotation, which
Q absorbs. Then Q is the orthogonal matrix that overlaps most with what K requires.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.methods.rko import polar_factor

_STILL = 1e-7  # sine of an angle below which a plane is taken to be turned by 0 or π
_MANY = 6  # factors beyond which only the middle cut is tried: trying all takes about 3ⁿ
_FOREIGN = 0.1  # fraction of the energy that only kernels of another kind lose


# ── one axis ──


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


# ── all axes, and the rotation ──


def nearest_rotation(columns: Tensor) -> Tensor:  # (c, m) → (c, c)
    """The rotation (determinant 1) whose first columns are closest to these; for m < c the others are not unique."""
    m = columns.shape[1]
    u, _, vh = torch.linalg.svd(columns)
    rotation = torch.cat((u[:, :m] @ vh, u[:, m:]), 1)
    # The direction whose sign is least certain, or free.
    weakest = u[:, -1:]
    return rotation if torch.linalg.det(rotation) > 0 else rotation - 2 * weakest @ (weakest.mT @ rotation)


def reflections(rotation: Tensor) -> Tensor:  # (c, c) → (2, ⌊c/2⌋, c)
    """Orthonormal bases M, N with `(I − 2MᵀM)(I − 2NᵀN) = R`, for R of determinant 1. Note [Two reflections]."""
    first: list[Tensor] = []
    second: list[Tensor] = []
    still: dict[bool, list[Tensor]] = {True: [], False: []}  # eigenvectors of +1 and of −1
    taken = rotation.new_zeros(0, len(rotation))
    for v in torch.linalg.eigh(rotation + rotation.mT).eigenvectors.mT:
        for _ in range(2):  # twice is enough
            v = v - taken.mT @ (taken @ v)
        if v.norm() < 0.5:  # its plane has been taken already
            continue
        v = v / v.norm()
        turned = rotation @ v
        cosine = torch.dot(v, turned)
        w = turned - cosine * v
        w = w - taken.mT @ (taken @ w)
        sine = w.norm()
        if sine < _STILL:
            still[bool(cosine > 0)].append(v)
            taken = torch.cat((taken, v[None]))
            continue
        half = torch.atan2(sine, cosine) / 2
        first.append(half.cos() * v + half.sin() * w / sine)
        second.append(v)
        taken = torch.cat((taken, v[None], w[None] / sine))
    for positive, vectors in still.items():
        for a, b in zip(vectors[::2], vectors[1::2], strict=False):
            first.append(a if positive else b)
            second.append(a)
    count = len(rotation) // 2
    bases = torch.stack((torch.stack(first), torch.stack(second))) if first else rotation.new_zeros(2, 0, len(rotation))
    return bases[:, :count]


def peel(
    x: Tensor,  # (c, m, *taps)
    sizes: tuple[int, ...],  # of the product of the factors
    eps: float,  # precision of the taps
    ranks: Sequence[int],
) -> tuple[list[list[Tensor]], Tensor]:  # bases (rank, c) of each axis, and (c, m, *(taps − sizes + 1))
    """Remove the factors of each axis from a kernel. Note [Peeling]."""
    bases: list[list[Tensor]] = []
    for axis, (size, rank) in enumerate(zip(sizes, ranks, strict=True), 2):
        taps = x.movedim(axis, 0)
        found = factorize(taps.flatten(2), size - 1, noise=(eps / 2) ** 2 * x.numel(), rank=rank)
        bases.append(found.bases)
        x = found.rest.view(-1, *taps.shape[1:]).movedim(0, axis)
    return bases, x


def decompose(
    kernel: Tensor,  # (g, c, m, *taps)
    sizes: tuple[int, ...],  # of the stride-1 kernel
    rotate: bool,
) -> tuple[Tensor, Tensor]:  # (g, N, ⌊c/2⌋, c), (g, c, m, *(taps − sizes + 1))
    """The bases from which `compose` builds a kernel, and the remaining kernel: the inverse of `compose`."""
    bases, rest = [], []
    for x in kernel.double():
        axes, start = peel(x, sizes, torch.finfo(kernel.dtype).eps, [len(x) // 2] * len(sizes))
        own = [basis for axis in axes for basis in axis]
        if rotate:
            own = [*reflections(nearest_rotation(start.flatten(1))), *own]
        bases.append(torch.stack(own))
        rest.append(start)
    return torch.stack(bases), torch.stack(rest)


# ── two stages ──


def inner_kernels(kernels: Tensor, channels: int, tile: tuple[int, ...]) -> Tensor:  # (g, out, in, *k)
    """B of each group `(g, channels, in, *b)`, up to a rotation of its outputs. Note [Two stages]."""
    ci = kernels.shape[2]
    sizes = tuple(k - e + 1 for k, e in zip(kernels.shape[3:], tile, strict=True))
    first = _window(kernels, (0,) * len(sizes), sizes).flatten(2)  # all that is needed
    gram = (first.mT @ first).view(-1, ci, *sizes, ci, *sizes)
    for axis, (size, e) in enumerate(zip(sizes, tile, strict=True)):
        sums = gram.movedim((2 + axis, 3 + len(sizes) + axis), (0, 1))
        solved = sums.clone()
        for s, t in itertools.product(range(1, size), repeat=2):
            solved[s, t] -= sums[s - 1, t - 1]
            if min(s, t) >= e:
                solved[s, t] += solved[s - e, t - e]
        gram = solved.movedim((0, 1), (2 + axis, 3 + len(sizes) + axis))
    side = first.shape[2]
    values, vectors = torch.linalg.eigh(gram.reshape(-1, side, side))
    rows = (vectors * values.clamp_min(0).sqrt()[:, None]).mT.flip(1)[:, :channels]
    return F.pad(rows, (0, 0, 0, channels - rows.shape[1])).view(-1, channels, ci, *sizes)


def outer_matrices(kernels: Tensor, stages: Tensor, tile: tuple[int, ...]) -> Tensor:  # → (g, out, channels·∏e)
    """Q of each group, given B: the orthogonal matrix closest to `Σ_t K[t] B[t − a]ᵀ` for the places a of a tile."""
    places = itertools.product(*(range(e) for e in tile))
    windows = (_window(kernels, place, stages.shape[3:]).flatten(2) for place in places)
    return polar_factor(torch.stack([window @ stages.flatten(2).mT for window in windows], -1).flatten(2))


def _window(kernels: Tensor, place: Sequence[int], sizes: Sequence[int]) -> Tensor:
    for axis, (start, length) in enumerate(zip(place, sizes, strict=True), 3):
        kernels = kernels.narrow(axis, start, length)
    return kernels
