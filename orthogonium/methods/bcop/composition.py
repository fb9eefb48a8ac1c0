"""Block convolution orthogonal parametrization, built axis by axis from projectors.

Li, Haque, Anil, Lucas, Grosse, Jacobsen (2019), "Preventing gradient attenuation in Lipschitz constrained convolutional
networks". For a projector P of rank ⌊c/2⌋, `P + (I − P) z` is orthogonal at every frequency z of its axis; a kernel of
size k is a product of k − 1 of them along each axis and of an orthogonal matrix. The latter is `(I − 2P)(I − 2Q)`, which
reaches every rotation. A square 3×3 kernel of c channels takes 25 c³ flops, and 48 c³ backward.

The kernel is `(g, c, m, *taps)` from the start, the layout of a weight: each factor multiplies it from the left.

Note [Few channels]
Up to 128 channels, operators cost more than their arithmetic. Where factors come in pairs on every axis (odd kernel sizes)
the taps of all pairs are computed at once; the rotation is that of a pair, too: `(I − 2P)(I − 2Q) = I − 2A_1`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.methods.bcop.factors import apply_taps, apply_to_kernel, multiply_taps, taps_of

_FEW = 128  # channels: Note [Few channels]


def count_bases(sizes: tuple[int, ...], rotate: bool) -> int:
    """Number of projectors of a kernel with these sizes: k − 1 for each axis and two for the orthogonal matrix."""
    return sum(k - 1 for k in sizes) + 2 * rotate


def rotation(bases: Tensor, columns: int) -> Tensor:  # (g, 2, r, c) → (g, c, m)
    """The first columns of `(I − 2P)(I − 2Q)`."""
    m, n = bases.unbind(1)
    identity = torch.eye(m.shape[2], columns, dtype=m.dtype, device=m.device)
    x = torch.baddbmm(identity, n.mT, n[..., :columns], alpha=-2)
    return torch.baddbmm(x, m.mT, torch.bmm(m, x), alpha=-2)


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
    if start is None and bases.shape[-1] <= _FEW and not any(n % 2 for n in counts):
        return _compose_pairs(bases, counts, columns)
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


def _compose_pairs(bases: Tensor, counts: tuple[int, ...], columns: int) -> Tensor:
    """Note [Few channels]."""
    g, n, r, c = bases.shape
    taps = taps_of(bases.reshape(g * n // 2, 2, r, c))
    first, *pairs = zip(*(tap.unflatten(0, (g, -1)).unbind(1) for tap in taps), strict=True)
    identity = torch.eye(c, columns, dtype=bases.dtype, device=bases.device)
    x = torch.add(identity, first[1][..., :columns], alpha=-2).reshape(g, c, columns, *(1,) * len(counts))
    for axis in reversed(range(len(counts))):
        if counts[axis]:
            own = [pairs.pop() for _ in range(counts[axis] // 2)]
            x = apply_taps(multiply_taps(own[::-1]), x, axis + 3)
    return x
