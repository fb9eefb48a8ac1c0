"""Almost-orthogonal layers: a kernel whose channels are rescaled so its norm is at most 1, in several steps.

Prach, Lampert (2022), "Almost-orthogonal layers for efficient general-purpose Lipschitz networks"; the steps after the
first follow Delattre et al. (2023), "Efficient bound of Lipschitz constant for convolutional layers by Gram iteration"
(Note [Dominating diagonal] of `kernels/dominance.py`).

Note [Kinks]
Layers start close to orthogonal kernels, whose Gram kernel vanishes off its diagonal: close to the kinks of |G|. There
the gradient consists of signs of sums that cancel to 1e-5 of their terms, where float32 gets one sign in a thousand
wrong, and the gradient by 1e-2. So CPUs compute the diagonal in float64. Accelerators, where that may take 64 times as
long, do not: their gradient is a subgradient at a nearby kernel, which differs only by rounding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.dominance import check_steps, equal_scales, group_gram_diagonal, positive_weights
from orthogonium.kernels.phases import stack_phases
from orthogonium.linalg import random_orthogonal
from orthogonium.methods.kernel import ConvKernel, Device, unit_groups


def central_tap(g: ConvGeometry, device: Device, dtype: torch.dtype) -> Tensor:  # (out, in/g, *k)
    """An orthogonal tap in the middle plus a little noise, which gives each gradient a direction."""
    e = g.effective_stride
    wide = torch.promote_types(dtype, torch.float32)
    tap = random_orthogonal((g.groups, g.group_out, g.group_in * math.prod(e)), device, wide)
    kernel = torch.randn(g.groups, g.group_out, g.group_in, *g.kernel_size, device=device, dtype=wide)
    # Small when summed over channels and taps, which is what enters the bounds.
    kernel *= 0.02 / (max(g.group_out, g.group_in) * math.prod(g.kernel_size))
    middle = kernel
    for axis, (k, f) in enumerate(zip(g.kernel_size, e, strict=True)):
        middle = middle.narrow(3 + axis, (k - f + 1) // 2, f)
    middle += tap.view_as(middle)
    return kernel.flatten(0, 1).to(dtype)


class AlmostOrthogonalKernel(ConvKernel):
    """AOL kernel of a geometry. Raw parameters: a kernel of the weight's shape, and the logarithms q of the weights.

    Scales the side with fewer channels, where the Gram matrix is smaller and its rows are closer to orthogonal: output
    channels if `out ≤ in·∏e`, otherwise input channels by phase (e as in Note [Stride] of `kernels/phases.py`). Groups
    of one channel have nothing to weight, and so no q.
    """

    projects = True
    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, niter: int) -> None:
        super().__init__()
        check_steps(niter, "AOL")
        self.geometry, self.niter = geometry, niter
        columns = geometry.group_in * math.prod(geometry.effective_stride)
        self.rows = geometry.group_out <= columns
        self.channels = min(geometry.group_out, columns)

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        raw = central_tap(self.geometry, device, dtype)
        if self.channels == 1:
            return (raw,)
        return raw, torch.zeros(self.geometry.groups, self.channels, device=device, dtype=dtype)

    def invert(self, weight: Tensor) -> tuple[Tensor, ...]:
        """The kernel itself, with weights that make all scales equal: Note [Equal scales] of `kernels/dominance.py`."""
        raw = weight.clone()
        if self.channels == 1:
            return (raw,)
        side = self._scaled_side(weight.double().unflatten(0, (self.geometry.groups, -1)))
        return raw, equal_scales(side, self.niter).to(weight.dtype)

    def _scaled_side(self, kernel: Tensor) -> Tensor:  # (g, out, in, *k) → (g, m, n, *k'), where m is scaled
        stacked = stack_phases(kernel, self.geometry.effective_stride)
        return stacked if self.rows else stacked.transpose(1, 2)

    def build(self, *raw: Tensor) -> Tensor:
        g = self.geometry
        e = g.effective_stride
        dtype = raw[0].dtype
        wide = torch.float64 if raw[0].device.type == "cpu" else dtype  # Note [Kinks]
        precise, _ = unit_groups(raw[0].to(wide), g.groups)
        weights = positive_weights(raw[1].to(wide)) if len(raw) > 1 else None
        t = group_gram_diagonal(self._scaled_side(precise), weights, self.niter, dtype)
        kernel, scale = precise.to(dtype), t.rsqrt().to(dtype)
        if self.rows:
            factor = scale.view(*scale.shape, 1, *[1] * g.dims)
        else:
            factor = scale.view(g.groups, 1, g.group_in, *e)
            factor = factor.repeat(1, 1, 1, *(-(-k // f) for k, f in zip(g.kernel_size, e, strict=True)))
            inside: tuple[Any, ...] = (..., *(slice(k) for k in g.kernel_size))
            factor = factor[inside]
        return (kernel * factor).flatten(0, 1)
