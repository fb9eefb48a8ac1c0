"""Block convolution orthogonal parametrization, built axis by axis from projectors.

Li, Haque, Anil, Lucas, Grosse, Jacobsen (2019), "Preventing gradient attenuation in Lipschitz constrained convolutional
networks". For a projector P of rank ⌊c/2⌋, `P + (I − P) z` is orthogonal at every frequency z of its axis; a kernel of
size k is a product of k − 1 of them along each axis and of an orthogonal matrix. The latter is `(I − 2P)(I − 2Q)`,
which reaches every rotation. A square 3×3 kernel of c channels takes 25 c³ flops, and 48 c³ backward.

The kernel is `(g, c, m, *taps)` from the start, the layout of a weight: each factor multiplies it from the left.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from orthogonium.linalg.derivatives import evaluate
from orthogonium.methods.bcop.factors import apply_to_kernel
from orthogonium.methods.bcop.three_taps import ThreeTaps, applies


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
    if start is None and applies(bases.shape[-1], counts):
        by_factors = partial(_by_factors, counts=counts, start=None, columns=columns)
        return evaluate(ThreeTaps, bases.contiguous(), columns, counts, by_factors)
    return _by_factors(bases, counts, start, columns)


def _by_factors(bases: Tensor, counts: tuple[int, ...], start: Tensor | None, columns: int) -> Tensor:
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
