"""Adaptive orthogonal convolution: the orthogonal kernel of any geometry that has one.

Boissin, Mamalet, Fel, Picard, Massena, Serrurier (2025), "An adaptive orthogonal convolution scheme for efficient and
flexible CNN architectures". `K = RKO ⊛ BCOP` (Note [Construction] of `kernels/geometry.py`). The factors of BCOP are
applied to the thinner side: to the RKO kernel itself where its rows are orthonormal, to the first columns of a
rotation otherwise.

Note [Axis by axis]
At stride 1 the kernel is a product of one kernel for each axis, and convolving with them in turn gives the same result as
convolving with their product. For a square 3×3 kernel that is 12 c² flops for each pixel instead of 18 c², and the
product need not be built, which saves 36 of 91 c³ flops of a training step. The results in between take memory, though, as
much as the images: they are worth it while there are not many more pixels than channels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from orthogonium.kernels import ConvGeometry, block_conv, select_method
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams, check_ortho_params, random_orthogonal, span_basis
from orthogonium.methods.bcop import compose, compose_axes, count_bases
from orthogonium.methods.constraint import Constraint

_PIXELS = 16  # for each channel: up to here, a kernel and its gradient take more memory than the results in between


class OrthogonalKernel(Constraint):
    """AOC kernel of a geometry. Raw parameters: the bases of BCOP `(g, N, ⌊c/2⌋, c)`, the RKO matrix, or both.

    The bases only matter through their span, for which the default `ortho_params` has a cheaper gradient; other ones
    are used as they are.
    """

    def __init__(self, geometry: ConvGeometry, ortho_params: OrthoParams) -> None:
        super().__init__()
        self.geometry = geometry
        self.plan = plan = select_method(geometry)
        check_ortho_params(ortho_params)
        g, ci, co = geometry.groups, geometry.group_in, geometry.group_out
        self.rows = plan.orthonormal == "rows"
        self.has_rko = plan.method != "bcop"
        # BCOP starts from a rotation unless it multiplies the RKO kernel directly.
        self.rotate = not (self.has_rko and self.rows)
        # Side of the projectors, and the other side of the kernel they are applied to.
        self.channels, self.columns = (max(ci, co), min(ci, co)) if not self.has_rko else (plan.inner_channels, ci)
        bases = count_bases(plan.bcop_size, self.rotate)
        self.shapes: list[tuple[int, ...]] = []
        if bases:
            shape: tuple[int, ...] = (g, bases, self.channels // 2, self.channels)
            self.shapes.append(shape)
            exact = ortho_params == DEFAULT_ORTHO_PARAMS or shape[-2] == 0
            self.span: nn.Module | None = None if exact else ortho_params.build(shape)
        if self.has_rko:
            shape = (g, co, plan.inner_channels * math.prod(plan.rko_size))
            self.shapes.append(shape)
            self.orthogonalize = ortho_params.build(shape)

    @property
    def trainable(self) -> bool:
        """Whether any parameter is left to train: with one channel per group, there may be none."""
        return any(math.prod(shape) for shape in self.shapes)

    def initial(
        self, device: torch.device | str | None, dtype: torch.dtype, generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        """Random orthonormal bases and a random orthogonal matrix."""
        return tuple(random_orthogonal(shape, device, dtype, generator) for shape in self.shapes)

    def separates(self, pixels: int) -> bool:
        """Whether convolving a batch of so many pixels axis by axis is cheaper; Note [Axis by axis]."""
        if set(self.geometry.stride) != {1}:
            return False
        sizes = [k for k in self.geometry.kernel_size if k > 1]
        apart = sum(sizes[:-1]) * self.channels + sum(sizes[-1:]) * self.columns
        together = math.prod(sizes) * self.columns
        return len(sizes) > 1 and apart < together and pixels <= _PIXELS * self.channels

    def build_factors(self, *raw: Tensor) -> tuple[Tensor, ...]:
        """Kernels to apply one after the other, each along one axis: their product is that of `build`."""
        kernels = compose_axes(self._bases(raw[0]), self.plan.bcop_size, self.columns)
        if self.geometry.group_out < self.geometry.group_in:
            return tuple(kernel.transpose(1, 2).flatten(0, 1) for kernel in kernels)
        return tuple(kernel.flatten(0, 1) for kernel in reversed(kernels))

    def _bases(self, raw: Tensor) -> Tensor:
        return span_basis(raw) if self.span is None else self.span(raw)

    def build(self, *raw: Tensor) -> Tensor:
        """The kernel `(out, in/g, *k)`."""
        g, co, ci = self.geometry.groups, self.geometry.group_out, self.geometry.group_in
        start = None
        if self.has_rko:
            rko = self.orthogonalize(raw[-1]).reshape(g, co, self.plan.inner_channels, *self.plan.rko_size)
            if self.rows:  # (g, co, ci, *e) → (g, ci, co, *e)
                start = rko.transpose(1, 2)
        if len(raw) > self.has_rko:
            x = compose(self._bases(raw[0]), self.plan.bcop_size, start, self.columns)
        else:
            assert start is not None
            x = start
        # x is (g, c, m, *taps); its columns are orthonormal at each frequency.
        if self.rows if self.has_rko else co < ci:
            return x.transpose(1, 2).reshape(self.geometry.weight_shape)  # from (g, ci, co, *taps)
        if self.has_rko:  # x is (g, inner, ci, *taps)
            return block_conv(x.flatten(0, 1), rko.flatten(0, 1), groups=g)
        return x.reshape(self.geometry.weight_shape)
