"""From a strided kernel back to its two stages, a convolution of stride 1 and a strided orthogonal matrix.

Note [Two stages]
The taps of `K = Q ⊛ B` are `K[t] = Σ_a Q_a B[t − a]` over the places a of a tile. The columns of Q are orthonormal, so
`K[s]ᵀK[t] = Σ_a C[s − a, t − a]` with the Gram matrix `C[s, t] = B[s]ᵀB[t]`. This can be solved for C one tap after
another: along each axis `C[s, t] = S[s, t] − S[s − 1, t − 1] + C[s − e, t − e]`. C determines B up to a rotation, which
Q absorbs. Then Q is the orthogonal matrix that overlaps most with what K requires.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor


def inner_kernel(kernel: Tensor, channels: int, tile: tuple[int, ...]) -> Tensor:  # (out, in, *k) → (channels, in, *b)
    """B, up to a rotation of its outputs. Note [Two stages]."""
    sizes = tuple(k - e + 1 for k, e in zip(kernel.shape[2:], tile, strict=True))
    first = _window(kernel, (0,) * len(sizes), sizes).flatten(1)  # all that is needed
    gram = (first.mT @ first).view(kernel.shape[1], *sizes, kernel.shape[1], *sizes)
    for axis, (size, e) in enumerate(zip(sizes, tile, strict=True)):
        sums = gram.movedim((1 + axis, 2 + len(sizes) + axis), (0, 1))
        solved = sums.clone()
        for s, t in itertools.product(range(1, size), repeat=2):
            solved[s, t] -= sums[s - 1, t - 1]
            if min(s, t) >= e:
                solved[s, t] += solved[s - e, t - e]
        gram = solved.movedim((0, 1), (1 + axis, 2 + len(sizes) + axis))
    side = kernel.shape[1] * math.prod(sizes)
    values, vectors = torch.linalg.eigh(gram.reshape(side, side))
    rows = (vectors * values.clamp_min(0).sqrt()).mT.flip(0)[:channels]
    missing = kernel.new_zeros(channels - len(rows), side)
    return torch.cat((rows, missing)).view(channels, kernel.shape[1], *sizes)


def outer_matrix(kernel: Tensor, stage: Tensor, tile: tuple[int, ...]) -> Tensor:  # → (out, channels·∏e)
    """What the taps of K require Q to be, given B: `Σ_t K[t] B[t − a]ᵀ` for each place a of a tile."""
    sizes = stage.shape[2:]
    parts = []
    for place in itertools.product(*(range(e) for e in tile)):
        parts.append(_window(kernel, place, sizes).flatten(1) @ stage.flatten(1).mT)
    return torch.stack(parts, -1).flatten(1)


def _window(kernel: Tensor, place: Sequence[int], sizes: Sequence[int]) -> Tensor:
    for axis, (start, length) in enumerate(zip(place, sizes, strict=True), 2):
        kernel = kernel.narrow(axis, start, length)
    return kernel
