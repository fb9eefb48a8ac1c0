"""The bound by unfoldings (Singla and Feizi, "Fantastic Four", 2021), in any dimension.

For a kernel with taps of k₁ × k₂, K(ω) is an unfolding of K between two vectors of waves of norm √k₁ and √k₂, or both
on one side; so ‖K(ω)‖ ≤ √(k₁k₂)·‖unfolding‖ for each of the four ways (2^d in d dimensions) to send the spatial axes
to the rows or to the columns. The paper itself omits the root; without it this is not a bound. The norms of the
unfoldings are certified.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.spectral.eigenvalue import certified_norm
from orthogonium.spectral.geometry import Convolution, require_geometry
from orthogonium.spectral.reductions import Reduction, reductions
from orthogonium.spectral.rounding import upward
from orthogonium.spectral.symbol import phases


def unfolding_bound(
    layer: nn.Module | Convolution, size: Sequence[int] | None = None, *, per_group: bool = False
) -> Tensor:
    """Certified upper bound √∏k · min over unfoldings of their spectral norm; at most √∏k times too large.

    Args:
        layer: a layer of known geometry (`geometry_of`).
        size: spatial size of the input; None for a bound that holds at every size.
        per_group: return the bounds of all groups, (groups,), instead of their maximum.

    Returns:
        A differentiable float64 scalar on the device of the weight.

    >>> from orthogonium.spectral import unfolding_bound
    >>> conv = torch.nn.Conv2d(1, 1, 3, padding=1, bias=False)
    >>> _ = torch.nn.init.ones_(conv.weight)  # constant kernel: all unfoldings have rank one and the bound is attained
    >>> round(unfolding_bound(conv).item(), 4)
    9.0
    """
    conv = require_geometry(layer)
    bounds = torch.stack([_bound(conv, r) for r in reductions(conv, size)]).amin(0)
    return bounds if per_group else bounds.amax()


def _bound(conv: Convolution, reduction: Reduction) -> Tensor:
    kernel = phases(conv, reduction.stride)
    axes = range(3, kernel.ndim)
    norms = []
    for count in range(len(axes) + 1):
        for up in itertools.combinations(axes, count):
            down = [a for a in axes if a not in up]
            rows = kernel.shape[1] * math.prod(kernel.shape[a] for a in up)
            norms.append(certified_norm(kernel.permute(0, 1, *up, 2, *down).reshape(len(kernel), rows, -1)))
    factor = math.sqrt(math.prod(kernel.shape[3:])) * reduction.factor
    return upward(torch.stack(norms).amin(0) * factor)
