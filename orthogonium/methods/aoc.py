"""Adaptive orthogonal convolution: an orthogonal kernel for every geometry that has one.

Boissin, Mamalet, Fel, Picard, Massena, Serrurier (2025), "An adaptive orthogonal convolution scheme for efficient and
flexible CNN architectures". `K = RKO ⊛ BCOP` (Note [Construction] of `kernels/geometry.py`). The factors of BCOP are
applied to the thinner side: to the RKO kernel itself if its rows are orthonormal, to the first columns of a
rotation otherwise.

Note [In turn]
A layer may apply the factors of BCOP and the dense kernel (the rotation, or the RKO kernel, which has the stride) to
its images one after another: the same function, up to rounding. For a square 3×3 kernel this takes 10 c² flops per
pixel instead of 18 c², and no kernel is built, which saves about 65 c³ flops of a training step. But the intermediate
images take memory: it only pays while there are not many more pixels than channels. With twice as many channels on one
side as on the other, a 3×3 kernel takes as many flops per pixel as its factors, and only its build is saved, which pays
for fewer pixels. A weight that is kept (in eval) is better: one convolution has less overhead than many thin products.

If there are no more pixels than channels, not even orthonormal bases and the rotation are formed: each projector is
applied by its raw basis (Note [Projections] of `linalg/in_turn.py`), and the rotation by two reflections. Then a 1×1
rotation, too, is better applied in turn than built: a step takes 14 c² flops per pixel instead of 6 c², and 2 c³
instead of 13 c³. That pays from 128 channels on. The matrix of a stride meets one column for each tile: with few tiles,
its rows are not formed, either (Note [Without W] of `linalg/in_turn.py`).

Note [Along axes]
BCOP is a product `A_1(z_1) … A_d(z_d) R`, so that convolving along one axis after the other, with R in the innermost
kernel, is the same function, up to rounding: 3×1 and 1×3 take 6 c² products per pixel instead of the 9 c² of 3×3, in
training and in eval, and these kernels are cheaper to build. Training keeps one more image for each axis but the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce

import torch
from torch import Tensor

from orthogonium.kernels import Construction, ConvGeometry, block_conv, select_method
from orthogonium.linalg import OrthoParams, check_ortho_params, random_orthogonal
from orthogonium.methods.bcop.composition import along_axes, compose, count_bases, rotation
from orthogonium.methods.bcop.inverse import decompose, inner_kernels, outer_matrices
from orthogonium.methods.kernel import ConvKernel, Device, Raw
from orthogonium.methods.rko import polar_raw


class OrthogonalKernel(ConvKernel):
    """AOC kernel of a geometry. Raw parameters: the bases of BCOP `(g, N, ⌊c/2⌋, c)`, the RKO matrix, or both.

    Only the spans of the bases matter: any orthonormal basis of a span gives the same kernel.
    """

    smallest = 1.0
    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, ortho_params: OrthoParams, plan: Construction | None = None) -> None:
        super().__init__()
        self.geometry = geometry
        self.plan = plan = plan or select_method(geometry)
        check_ortho_params(ortho_params)
        ci, co = geometry.group_in, geometry.group_out
        self.rows = plan.orthonormal == "rows"
        self.has_rko = plan.method != "bcop"
        # BCOP starts from a rotation unless it multiplies the RKO kernel directly, or there is no BCOP.
        self.rotate = plan.method == "bcop" or (plan.method == "rko ⊛ bcop" and not self.rows)
        # BCOP multiplies the kernel from the left; it multiplies the adjoint if rows are to be orthonormal or there are
        # fewer of them.
        self.on_adjoint = self.rows if self.has_rko else co < ci
        # Side of the projectors, and the other side of the kernel they are applied to.
        self.channels, self.columns = (max(ci, co), min(ci, co)) if not self.has_rko else (plan.inner_channels, ci)
        self.base_count = count_bases(plan.bcop_size, self.rotate)
        self.has_bcop = self.base_count > 0
        if self.has_bcop:
            self.orthonormalize = ortho_params.build(self.raw_shapes[0])
        if self.has_rko:
            self.orthogonalize = ortho_params.build(self.raw_shapes[-1])
        self.trainable = any(math.prod(shape) for shape in self.raw_shapes)  # one channel per group may leave none
        # Note [In turn]. A rotation to at least as many channels is applied first; then the order of all factors is
        # reversed.
        self.dense_first = not self.has_rko and co >= ci
        self.factor_count, self.factors_save = self._count_factors()
        self.axis_shapes = self._shapes_along_axes()
        self.axis_savings = math.prod(geometry.weight_shape) - sum(map(math.prod, self.axis_shapes))  # per pixel

    @property
    def raw_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the bases and of the RKO matrix, if there are any."""
        g, plan = self.geometry, self.plan
        bases = (g.groups, self.base_count, self.channels // 2, self.channels)
        matrix = (g.groups, g.group_out, plan.inner_channels * math.prod(plan.rko_size))
        return [bases] * self.has_bcop + [matrix] * self.has_rko

    def initial(self, device: Device, dtype: torch.dtype, generator: torch.Generator | None = None) -> Raw:
        return tuple(random_orthogonal(shape, device, dtype, generator) for shape in self.raw_shapes)

    @property
    def projects(self) -> bool:  # type: ignore[override]
        """Whether the kernel is a single orthogonal matrix, onto which any weight can be projected."""
        return set(self.plan.bcop_size) <= {1}

    @property
    def is_rotation(self) -> bool:
        """Whether the layer applies a rotation to each pixel."""
        return self.projects and not self.has_rko and not self.geometry.is_strided

    def invert(self, weight: Tensor) -> tuple[Tensor, ...]:
        """The RKO matrix, the rotation closest to a matrix, or the factors: Note [Peeling], Note [Two stages]."""
        g, plan = self.geometry, self.plan
        if plan.method == "rko":
            return (weight.reshape(self.raw_shapes[-1]),)
        if plan.method == "rko ⊛ bcop" and not self.rows:
            return tuple(raw.to(weight.dtype) for raw in self._two_stages(weight.double()))
        kernel = weight.reshape(g.groups, g.group_out, *weight.shape[1:])
        if self.on_adjoint:
            kernel = kernel.transpose(1, 2)
        bases, rest = decompose(kernel, plan.bcop_size, self.rotate)
        matrix = (rest.transpose(1, 2).reshape(self.raw_shapes[-1]),) if self.has_rko else ()
        return tuple(raw.to(weight.dtype) for raw in (bases, *matrix))

    def nearest(self, weight: Tensor) -> tuple[Tensor, ...] | None:
        """For a single matrix, the polar factor or the closest rotation."""
        if not self.projects:
            return None
        if self.plan.method == "rko":
            return polar_raw(weight.reshape(self.raw_shapes[-1]), self.orthogonalize)
        bases = self.invert(weight.double())
        kept = self.orthonormalize(bases[0])
        return bases if torch.allclose(kept.mT @ kept, bases[0].mT @ bases[0], rtol=0, atol=1e-5) else None

    def guess(self, weight: Tensor) -> tuple[Tensor, ...]:
        """What peeling gives for the kernel: exact for kernels of the set, and roughly right for others."""
        return self.invert(weight.double())

    def _two_stages(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The bases and the matrix of a kernel with both: Note [Two stages] of `bcop/inverse.py`."""
        plan, groups = self.plan, weight.unflatten(0, (self.geometry.groups, -1))
        inner = inner_kernels(groups, plan.inner_channels, plan.rko_size)
        bases, _ = decompose(inner, plan.bcop_size, self.rotate)
        stages = compose(bases, plan.bcop_size, None, self.columns)
        return bases, outer_matrices(groups, stages, plan.rko_size)

    def build(self, *raw: Tensor) -> Tensor:
        shape = self.geometry.weight_shape
        rko = self._rko(raw[-1]) if self.has_rko else None
        if rko is not None and not self.has_bcop:
            return rko.reshape(shape)
        start = None if rko is None or self.rotate else rko.transpose(1, 2)
        # (g, c, m, *taps), with orthonormal columns at each frequency
        x = compose(self.orthonormalize(raw[0]), self.plan.bcop_size, start, self.columns)
        if rko is not None and self.rotate:
            return block_conv(x.flatten(0, 1), rko.flatten(0, 1), groups=self.geometry.groups)
        return (x.transpose(1, 2) if self.on_adjoint else x).reshape(shape)

    def _rko(self, raw: Tensor) -> Tensor:  # → (g, out, inner, *e)
        shape = (self.geometry.groups, self.geometry.group_out, self.plan.inner_channels, *self.plan.rko_size)
        return self.orthogonalize(raw).reshape(shape)

    def _count_factors(self) -> tuple[int, bool]:
        """Number of factors of BCOP, 0 if in turn they take more products than the kernel; whether they take fewer."""
        geometry, tile = self.geometry, self.plan.rko_size
        one_dense = not (self.has_rko and self.rotate)
        if not one_dense or tile != geometry.stride or (self.has_rko and set(geometry.dilation) != {1}):
            return 0, False
        count = sum(k - 1 for k in self.plan.bcop_size)
        dense = geometry.group_in * geometry.group_out
        apart = (dense + count * self.channels**2) * math.prod(tile)  # for each pixel of the output
        at_once = dense * math.prod(geometry.kernel_size)
        return (count if apart <= at_once else 0), apart < at_once

    def _shapes_along_axes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the weights along axes, in the order they are applied; none if they do not save products."""
        g, sizes = self.geometry, self.plan.bcop_size
        used = [axis for axis, k in enumerate(sizes) if k > 1]
        if self.has_rko or len(used) < 2 or g.is_strided:
            return ()
        widths = [g.group_in, *[self.channels] * (len(used) - 1), g.group_out]
        order = used[::-1] if self.dense_first else used
        shapes = tuple(
            (g.groups * out, wide, *(k if axis == own else 1 for axis, k in enumerate(sizes)))
            for own, wide, out in zip(order, widths, widths[1:], strict=False)
        )
        return shapes if sum(map(math.prod, shapes)) < math.prod(g.weight_shape) else ()

    def along_axes(self, *raw: Tensor) -> tuple[Tensor, ...]:
        """The weights of `axis_shapes`."""
        found = along_axes(self.orthonormalize(raw[0]), self.plan.bcop_size, self.columns)
        kernels = found[::-1] if self.dense_first else [kernel.transpose(1, 2) for kernel in found]
        return tuple(x.reshape(-1, *shape[1:]) for x, shape in zip(kernels, self.axis_shapes, strict=True))

    def from_axes(self, kernels: Sequence[Tensor]) -> Tensor:
        """The kernel that applying these one after the other amounts to."""
        return reduce(partial(block_conv, groups=self.geometry.groups), kernels)

    def factors(self, *raw: Tensor, reflects: bool, orthonormal: tuple[bool, bool]) -> tuple[Tensor, ...]:
        """The bases `(g, N, r, c)`, then the dense matrix `(g, out, in·∏tile)`: orthonormal, or as they are.

        A rotation that `reflects` is left to its two bases, which come first.
        """
        bases = self.orthonormalize(raw[0]) if orthonormal[0] else raw[0]
        if self.has_rko:
            return bases, self.orthogonalize(raw[-1]) if orthonormal[1] else raw[-1]
        if reflects:
            return (bases,)
        dense = rotation(bases[:, :2], self.columns)
        return bases[:, 2:], dense if self.dense_first else dense.mT
