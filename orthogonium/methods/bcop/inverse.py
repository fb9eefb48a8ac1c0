"""From a kernel back to the projectors it is made of, if it is such a kernel.

Note [Peeling]
The taps of `X = A(z₁)B(z₂) ⋯ S` along the first axis, with all other axes as columns, are the factors of A times the
rest: the factors are found (`factorization.py`) and removed, then those of the next axis. This is done in float64, and
the result must be checked by building it: float32 kernels of sizes 3, 5 and 7 are rebuilt to 3e-6. With fewer columns
than channels there is less information, and some kernels of size 5 and more cannot be recovered.

Note [Two reflections]
A rotation R turns planes: for an eigenvector v of R + Rᵀ with `vᵀRv = cos θ`, v and Rv span one, turned by θ. There R
is a product of two reflections, at the angles θ/2 and 0. Eigenvectors of R itself (±1) are taken in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthogonium.methods.bcop.factorization import factorize

_STILL = 1e-7  # sine of an angle below which a plane is taken to be turned by 0 or π


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
    counts: tuple[int, ...],
    eps: float,  # precision of the taps
    ranks: Sequence[int],
) -> tuple[list[list[Tensor]], Tensor]:  # bases (rank, c) of each axis, and (c, m, *(taps − counts))
    """Remove the factors of each axis from a kernel. Note [Peeling]."""
    bases: list[list[Tensor]] = []
    for axis, (count, rank) in enumerate(zip(counts, ranks, strict=True), 2):
        taps = x.movedim(axis, 0)
        found = factorize(taps.flatten(2), count, noise=(eps / 2) ** 2 * x.numel(), rank=rank)
        bases.append(found.bases)
        x = found.rest.view(-1, *taps.shape[1:]).movedim(0, axis)
    return bases, x


def decompose(
    kernel: Tensor,  # (g, c, m, *taps)
    counts: tuple[int, ...],
    rotate: bool,
) -> tuple[Tensor, Tensor]:  # (g, N, ⌊c/2⌋, c), (g, c, m, *(taps − counts))
    """The bases from which `compose` builds a kernel, and the remaining kernel: the inverse of `compose`."""
    bases, rest = [], []
    for x in kernel.double():
        axes, start = peel(x, counts, torch.finfo(kernel.dtype).eps, [len(x) // 2] * len(counts))
        own = [basis for axis in axes for basis in axis]
        if rotate:
            own = [*reflections(nearest_rotation(start.flatten(1))), *own]
        bases.append(torch.stack(own))
        rest.append(start)
    return torch.stack(bases), torch.stack(rest)
