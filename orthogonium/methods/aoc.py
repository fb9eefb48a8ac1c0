"""Adaptive orthogonal convolution: the orthogonal kernel of any geometry that has one.

Boissin, Mamalet, Fel, Picard, Massena, Serrurier (2025), "An adaptive orthogonal convolution scheme for efficient and
flexible CNN architectures". `K = RKO ⊛ BCOP` (Note [Construction] of `kernels/geometry.py`). The factors of BCOP are
applied to the thinner side: to the RKO kernel itself where its rows are orthonormal, to the first columns of a
rotation otherwise.

Note [In turn]
A layer may apply the factors of BCOP and the dense kernel (the rotation, or the RKO kernel, which strides) to its images
one after the other: the same function, but for rounding. For a square 3×3 kernel that takes 10 c² flops for each pixel
instead of 18 c², and no kernel is built, which saves about 65 c³ flops of a training step. The images in between take
memory, though: it is worth it while there are not many more pixels than channels. A weight that is kept (in eval) is
better: one convolution has less overhead than many thin products.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orthogonium.kernels import ConvGeometry, block_conv, select_method
from orthogonium.linalg import OrthoParams, check_ortho_params, random_orthogonal
from orthogonium.linalg.precision import full_precision
from orthogonium.methods.bcop.images import apply_factors, convolve_tiles, lead_axis, lead_batch
from orthogonium.methods.bcop.kernel import compose, count_bases
from orthogonium.methods.constraint import Constraint

_PIXELS = 32  # most pixels for each channel, over all images in between: a limit to the memory they take
_CHANNELS = 48  # least number of channels: with fewer, operators cost more than their arithmetic


class OrthogonalKernel(Constraint):
    """AOC kernel of a geometry. Raw parameters: the bases of BCOP `(g, N, ⌊c/2⌋, c)`, the RKO matrix, or both.

    The bases only matter through their span: any orthonormal basis of it gives the same kernel.
    """

    def __init__(self, geometry: ConvGeometry, ortho_params: OrthoParams) -> None:
        super().__init__()
        self.geometry = geometry
        self.plan = plan = select_method(geometry)
        check_ortho_params(ortho_params)
        g, ci, co = geometry.groups, geometry.group_in, geometry.group_out
        self.rows = plan.orthonormal == "rows"
        self.has_rko = plan.method != "bcop"
        # BCOP starts from a rotation unless it multiplies the RKO kernel directly, or there is none.
        self.rotate = plan.method == "bcop" or (plan.method == "rko ⊛ bcop" and not self.rows)
        # Side of the projectors, and the other side of the kernel they are applied to.
        self.channels, self.columns = (max(ci, co), min(ci, co)) if not self.has_rko else (plan.inner_channels, ci)
        bases = count_bases(plan.bcop_size, self.rotate)
        self.shapes: list[tuple[int, ...]] = []
        if bases:
            shape: tuple[int, ...] = (g, bases, self.channels // 2, self.channels)
            self.shapes.append(shape)
            self.orthonormalize = ortho_params.build(shape)
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
        """Whether applying the factors in turn to a batch of so many pixels is cheaper; Note [In turn]."""
        geometry, tile = self.geometry, self.plan.rko_size
        one_dense = not (self.has_rko and self.rotate)
        if not one_dense or tile != geometry.stride or (self.has_rko and set(geometry.dilation) != {1}):
            return False
        count = sum(k - 1 for k in self.plan.bcop_size)
        dense = geometry.group_in * geometry.group_out
        apart = (dense + count * self.channels**2) * math.prod(tile)  # for each pixel of the output
        together = dense * math.prod(geometry.kernel_size)
        return apart < together and self.channels >= _CHANNELS and 0 < count * pixels <= _PIXELS * self.channels

    def convolve(self, x: Tensor, pad: Callable[[Tensor, int], Tensor], *raw: Tensor) -> Tensor:
        """Apply the factors in turn; Note [In turn]."""
        dense, *bases = full_precision(self._factors)(*raw)
        axes = range(self.geometry.dims)
        if self._dense_first:
            x = convolve_tiles(x, dense)
            axes, bases = axes[::-1], bases[::-1]
        for axis in axes:
            count = self.plan.bcop_size[axis] - 1
            own, bases = bases[:count], bases[count:]
            x = pad(lead_axis(x, axis), axis)
            x = lead_batch(apply_factors(own, x, self.geometry.dilation[axis]) if own else x, axis)
        return x if self._dense_first else convolve_tiles(x, dense)

    @property
    def _dense_first(self) -> bool:
        """Whether a rotation comes first, to at least as many channels; then the order of all factors is reversed."""
        return not self.has_rko and self.geometry.group_out >= self.geometry.group_in

    def _factors(self, *raw: Tensor) -> tuple[Tensor, ...]:
        """The dense kernel `(g, out, in, *tile)`, then the bases `(g, r, c)` from the first axis on."""
        bases = self.orthonormalize(raw[0])
        if self.has_rko:
            return self._rko(raw[-1]), *bases.unbind(1)
        rotation, bases = bases.split((2, bases.shape[1] - 2), 1)
        dense = compose(rotation, (1,) * self.geometry.dims, columns=self.columns)
        return dense if self._dense_first else dense.transpose(1, 2), *bases.unbind(1)

    def _rko(self, raw: Tensor) -> Tensor:  # → (g, out, inner, *e)
        shape = (self.geometry.groups, self.geometry.group_out, self.plan.inner_channels, *self.plan.rko_size)
        return self.orthogonalize(raw).reshape(shape)

    def build(self, *raw: Tensor) -> Tensor:
        """The kernel `(out, in/g, *k)`."""
        g, co, ci = self.geometry.groups, self.geometry.group_out, self.geometry.group_in
        start = None
        if self.has_rko:
            rko = self._rko(raw[-1])
            if self.plan.method == "rko":
                return rko.reshape(self.geometry.weight_shape)
            if self.rows:  # (g, co, ci, *e) → (g, ci, co, *e)
                start = rko.transpose(1, 2)
        x = compose(self.orthonormalize(raw[0]), self.plan.bcop_size, start, self.columns)
        # x is (g, c, m, *taps); its columns are orthonormal at each frequency.
        if self.rows if self.has_rko else co < ci:
            return x.transpose(1, 2).reshape(self.geometry.weight_shape)  # from (g, ci, co, *taps)
        if self.has_rko:  # x is (g, inner, ci, *taps)
            return block_conv(x.flatten(0, 1), rko.flatten(0, 1), groups=g)
        return x.reshape(self.geometry.weight_shape)
