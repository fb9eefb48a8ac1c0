"""Strided convolutions as convolutions of stride 1.

Note [Stride]
A convolution of stride s and dilation d applies, up to a permutation of pixels, one of stride 1 and dilation 1 to the
phases of its taps: taps with the same index mod `e = s / gcd(s, d)` meet the same phase of the image. Both sides of
that kernel can be scaled: its rows are output channels, its columns are input channels times phases.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor


def stack_phases(kernel: Tensor, strides: Sequence[int]) -> Tensor:  # (g, m, n, *k) → (g, m, n·∏e, *⌈k/e⌉)
    """The stride-1 kernel of Note [Stride], padded with zeros; images (b, g, n, *k) are split in the same way."""
    if set(strides) <= {1}:
        return kernel
    dims = len(strides)
    missing = [-n % e for n, e in zip(kernel.shape[3:], strides, strict=True)]
    x = F.pad(kernel, [p for n in reversed(missing) for p in (0, n)])
    for axis, e in enumerate(strides):
        x = x.unflatten(3 + 2 * axis, (-1, e))
    order = [*range(3), *(4 + 2 * a for a in range(dims)), *(3 + 2 * a for a in range(dims))]
    return x.permute(order).flatten(2, 2 + dims)


def unstack_phases(kernel: Tensor, strides: Sequence[int]) -> Tensor:  # (g, m, n·∏e, *k) → (g, m, n, *k·e)
    """The inverse of `stack_phases`."""
    dims = len(strides)
    x = kernel.unflatten(2, (-1, *strides))  # (g, m, n, *e, *k)
    order = [*range(3), *(axis for a in range(dims) for axis in (3 + dims + a, 3 + a))]
    x = x.permute(order)
    for axis in range(dims):
        x = x.flatten(3 + axis, 4 + axis)
    return x
