"""From a strided kernel back to its two stages, a convolution of stride 1 and a strided orthogonal matrix.

Note [Two stages]
The taps of `K = Q ⊛ B` are `K[t] = Σ_a Q_a B[t − a]` over the places a of a tile. The columns of Q are orthonormal, so
`K[s]ᵀK[t] = Σ_a C[s − a, t − a]` with the Gram matrix `C[s, t] = B[s]ᵀB[t]`. This can be solved for C one tap after
another: along each axis `C[s, t] = S[s, t] − S[s − 1, t − 1] + C[s − e, t − e]`. C determines B up to a rotation, which
Q absorbs. Then Q is the orthogonal matrix that overlaps most with what K requires.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.methods.rko import polar_factor


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
