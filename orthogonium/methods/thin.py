"""Orthogonal kernels with many more inputs than outputs, with as many raw numbers as they have entries.

Note [Thin kernels]
Along an axis the adjoint of such a kernel is `X = F₁ ⋯ F_n Y` with factors `F = P + (I − P)z` on c channels and Y of
few columns: d of them, outputs times taps along the axes that are built before. The first tap of X lies in the range of
P₁, the last one is orthogonal to it, and both have at most d dimensions. So every projector P′ with this property
removes a tap from X, and they exist for each rank from d to c − d. What is left, `F′* X`, has the Gram matrix of Y at
each z, so its first and last taps are orthogonal again, and so on; in the end Y itself is left, since all factors are I
at z = 1. Hence projectors of rank d give the same kernels as those of rank ⌊c/2⌋. With an orthogonal c × m matrix in
place of a rotation, there are as many raw numbers as weights, instead of `c/km` times as many for k × k kernels.

If Y has taps along the axis itself (strides), a factor is only replaced by one that acts identically on all its inputs:
d counts the taps along this axis, too.

Note [Thin beginnings]
A random projector of small rank keeps next to nothing of its input, and the kernel would be a shift. So the initial raw
parameters live in random subspaces of twice the rank, each in that of the next axis: there they have half the rank.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from orthogonium.kernels import ConvGeometry, select_method
from orthogonium.linalg import OrthoParams, random_orthogonal
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.bcop.composition import apply_to_kernel
from orthogonium.methods.bcop.inverse import peel
from orthogonium.methods.kernel import Device, Raw

_MOST = 2  # raw numbers for each weight


def is_thin(geometry: ConvGeometry) -> bool:
    """Whether projectors of rank ⌊c/2⌋ would take more than twice as many numbers as there are weights."""
    ci, co, plan = geometry.group_in, geometry.group_out, select_method(geometry)
    if co >= ci:
        return False
    rotation = ci * ci if plan.method == "bcop" else co * ci * math.prod(plan.rko_size)
    bases = sum(k - 1 for k in plan.bcop_size) * (ci // 2) * ci
    return bases > 0 and bases + rotation > _MOST * co * ci * math.prod(geometry.kernel_size)


class ThinKernel(OrthogonalKernel):
    """AOC kernel of a thin geometry. Raw parameters: bases `(g, k − 1, rank, c)` of each axis, and the matrix."""

    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, ortho_params: OrthoParams) -> None:
        plan = replace(select_method(geometry), method="rko ⊛ bcop")  # a matrix of one tap, where there is no stride
        super().__init__(geometry, ortho_params, plan)
        for i, shape in enumerate(self.raw_shapes[1:-1], 1):
            self.add_module(f"orthonormalize_{i}", ortho_params.build(shape))

    @property
    def axes(self) -> list[int]:
        """The axes along which there are factors."""
        return [axis for axis, k in enumerate(self.plan.bcop_size) if k > 1]

    def rank(self, axis: int) -> int:
        """Rank of the projectors along an axis: d of Note [Thin kernels]. The last axis is built first."""
        sizes, steps = self.geometry.kernel_size, self.plan.rko_size
        columns = self.geometry.group_out * math.prod(steps[:axis]) * math.prod(sizes[axis + 1 :])
        return min(columns * (1 if steps[axis] == 1 else sizes[axis] - 1), self.channels // 2)

    @property
    def raw_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the bases of each axis and of the matrix."""
        g, c, e = self.geometry, self.channels, math.prod(self.plan.rko_size)
        bases = [(g.groups, self.plan.bcop_size[axis] - 1, self.rank(axis), c) for axis in self.axes]
        return [*bases, (g.groups, g.group_out, c * e)]

    def initial(self, device: Device, dtype: torch.dtype, generator: torch.Generator | None = None) -> Raw:
        """Random bases and a random matrix, in random subspaces. Note [Thin beginnings]."""
        *bases, (g, m, width) = self.raw_shapes
        c, volume = self.channels, width // self.channels
        wide = torch.promote_types(dtype, torch.float32)
        space = random_orthogonal((g, 2 * max(r for _, _, r, _ in bases), c), device, wide, generator)
        raw = []
        for groups, count, r, _ in bases:
            own = random_orthogonal((groups, count, r, 2 * r), device, wide, generator)
            raw.append(own @ space[:, None, : 2 * r])
        inner = 2 * bases[-1][2]
        matrix = random_orthogonal((g, m, inner * volume), device, wide, generator).view(g, m, inner, volume)
        raw.append(torch.einsum("gmiv,gic->gmcv", matrix, space[:, :inner]).reshape(g, m, width))
        return tuple(t.to(dtype).contiguous() for t in raw)

    def _bases(self, raw: Raw) -> list[Tensor]:  # (g, k − 1, r, c) for each axis with factors
        maps = [self.orthonormalize, *(getattr(self, f"orthonormalize_{i}") for i in range(1, len(self.axes)))]
        return [orthonormalize(t) for orthonormalize, t in zip(maps, raw[:-1], strict=True)]

    def build(self, *raw: Tensor) -> Tensor:
        x = self._rko(raw[-1]).transpose(1, 2).contiguous()
        for axis, bases in reversed(list(zip(self.axes, self._bases(raw), strict=True))):
            x = apply_to_kernel(bases, x, axis + 3)
        return x.transpose(1, 2).reshape(self.geometry.weight_shape)

    def invert(self, weight: Tensor) -> tuple[Tensor, ...]:
        """The factors and the remaining kernel: Note [Peeling]."""
        g, eps = self.geometry, torch.finfo(weight.dtype).eps
        ranks = tuple(self.rank(axis) for axis in range(g.dims))
        kernels = weight.double().reshape(g.groups, g.group_out, *weight.shape[1:]).transpose(1, 2)
        peeled = [peel(x, self.plan.bcop_size, eps, ranks) for x in kernels]
        bases = [torch.stack([torch.stack(own[a]) for own, _ in peeled]) for a in self.axes]
        matrix = torch.stack([rest for _, rest in peeled]).transpose(1, 2).reshape(self.raw_shapes[-1])
        return tuple(raw.to(weight.dtype).contiguous() for raw in (*bases, matrix))

    def _count_factors(self) -> tuple[int, bool]:
        """Always 0: applying the factors in turn takes more than the kernel, two products of the rank for each."""
        return 0, False
