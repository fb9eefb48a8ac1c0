"""Norm and stable rank of each group of a convolution, by Gram iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from orthogonium.spectral.definition import check_size, frobenius, sides
from orthogonium.spectral.enclosure import norm_bound
from orthogonium.spectral.geometry import Convolution
from orthogonium.spectral.gram import circular_gram_bound, gram_bound

MOST_FLOPS = 2.5e10  # for one bound: about a minute


def gram_norms(conv: Convolution, size: Sequence[int] | None, n_iter: int) -> Tensor:
    """(groups,) certified norms: the smaller of both forms of Gram iteration, as far as they are affordable."""
    rows, columns = sorted((conv.weight.shape[0] // conv.groups, conv.weight.shape[1]))

    def flops(density: int, taps: float) -> float:
        """Of one step at `density` frequencies for each tap after the first, on a kernel of so many taps."""
        frequencies = math.prod(density * (k - 1) + 1 for k in conv.kernel_size)
        return frequencies * (4.0 * conv.groups * rows * columns * (rows + taps) + 100 * taps)

    grown, steps = [math.prod(2**n * (k - 1) + 1 for k in conv.kernel_size) for n in range(n_iter + 1)], 1
    while steps < n_iter and flops(2 ** (steps + 1), grown[steps + 1]) <= MOST_FLOPS:
        steps += 1
    on_kernel = gram_bound(conv, size, steps=steps, per_group=True)
    if n_iter * flops(16, grown[0]) <= MOST_FLOPS:  # sixteen frequencies for each tap: a grid within 1 %
        return torch.minimum(on_kernel, circular_gram_bound(conv, size, steps=n_iter, per_group=True))
    return torch.minimum(on_kernel, norm_bound(conv, size, per_group=True))


def full_rank_share(conv: Convolution, size: Sequence[int] | None) -> Tensor:
    """(groups,) ‖A‖_F² over the full rank: of the operator, or for one window per stride if the size is not known."""
    rows, columns = conv.weight.shape[0] // conv.groups, conv.weight.shape[1]
    if size is None:
        squares = conv.weight.double().square().reshape(conv.groups, -1).sum(1)
        return squares / min(rows, columns * math.prod(conv.stride))
    image, windows = sides(conv, check_size(conv, size))
    return frobenius(conv, size) / min(rows * math.prod(windows), columns * math.prod(image))
