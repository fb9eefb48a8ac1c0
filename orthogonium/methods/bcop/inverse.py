"""From a kernel back to the projectors that it is made of, where it is such a kernel.

Note [Peeling]
Of `X = F₁F₂ ⋯ F_n S` with `F = P + (I − P)z` along an axis, the first taps are `P₁ ⋯ P_n S₀`, which lie in the range of P₁,
and the last ones, L, lie in that of I − P₁. So P₁ projects on the leading eigenvectors of `X₀X₀ᵀ − LLᵀ`, which is positive
there and negative on the complement: a direction is as sure as the larger of the two makes it, and where neither says
anything, any will do. The adjoint `X[i] ← P₁X[i] + (I − P₁)X[i + 1]` takes the factor off, and so on for each factor and
axis. Errors grow from factor to factor (float32 kernels of sizes 3 and 5 are built again to 2e-6, of size 7 not always): all
of it runs in float64, and what comes out is to be checked by building it.

Note [Two reflections]
A rotation R turns planes: for an eigenvector v of R + Rᵀ with `vᵀRv = cos θ` the span of v and Rv is one, turned by θ.
There R is a product of two reflections, at the angles θ/2 and 0. Eigenvectors of R itself (±1) are taken in pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

_STILL = 1e-7  # sine of an angle below which a plane is taken to be turned by 0 or π


def nearest_rotation(columns: Tensor) -> Tensor:  # (c, m) → (c, c)
    """The rotation (determinant 1) whose first columns are closest to these; m < c leaves a choice of the others."""
    m = columns.shape[1]
    u, _, vh = torch.linalg.svd(columns)
    rotation = torch.cat((u[:, :m] @ vh, u[:, m:]), 1)
    # The direction that is least sure of its sign, or free.
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
        if v.norm() < 0.5:  # its plane was there before
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
) -> tuple[list[Tensor], Tensor]:  # bases (⌊c/2⌋, c), the first axis first, and (c, m, *(taps − counts))
    """Take the factors of each axis off a kernel. Note [Peeling]."""
    bases: list[Tensor] = []
    for axis, count in enumerate(counts, 2):
        for _ in range(count):
            length = x.shape[axis] - 1
            first, last = x.select(axis, 0).flatten(1), x.select(axis, length).flatten(1)
            u = torch.linalg.eigh(first @ first.mT - last @ last.mT).eigenvectors.mT[(x.shape[0] + 1) // 2 :]
            here, there = x.narrow(axis, 0, length), x.narrow(axis, 1, length)
            difference = here - there
            x = there + (u.mT @ (u @ difference.flatten(1))).view(difference.shape)
            bases.append(u)
    return bases, x


def decompose(
    kernel: Tensor,  # (g, c, m, *taps)
    counts: tuple[int, ...],
    rotate: bool,
) -> tuple[Tensor, Tensor]:  # (g, N, ⌊c/2⌋, c), (g, c, m, *(taps − counts))
    """The bases from which `compose` builds a kernel, and what is left behind them: the inverse of `compose`."""
    bases, rest = [], []
    for x in kernel.double():
        own, start = peel(x, counts)
        if rotate:
            own = [*reflections(nearest_rotation(start.flatten(1))), *own]
        bases.append(torch.stack(own))
        rest.append(start)
    return torch.stack(bases), torch.stack(rest)
