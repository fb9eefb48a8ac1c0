"""Kernels that are made orthogonal at each frequency of the image: what Cayley, LOT, BRO and ECO share.

Note [Image sizes]
Their kernel has as many taps as the image has pixels (Note [Circles] of `kernels/circle.py`), and a different value for
each image size: the raw parameters are a few taps, whose symbol `V(ω)` is known for every frequency ω, and the symbol
of the kernel is a function of it, `S(ω) = f(V(ω))`, at the frequencies that images of this size have. The frequencies
of a size that divides another are among those of the larger: on its circle, the larger kernel wraps to the smaller.

So images of any size are convolved with a kernel that is orthogonal for them. `grid` is the number of pixels on each
axis, after the stride, for which `build` builds unless it is given another; `at` gives the same kernel for another.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

from torch import Tensor

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.circle import from_frequencies, to_frequencies, wrap_taps
from orthogonium.kernels.phases import stack_phases, unstack_phases
from orthogonium.linalg.evaluation import float64_is_cheap
from orthogonium.methods.kernel import ConvKernel

Grid = tuple[int, ...]


def left_of(sizes: Grid, strides: Grid) -> Grid:
    """Pixels that "same" padding adds in front of the image for a kernel of this size."""
    return tuple(max(k - s, 0) // 2 for k, s in zip(sizes, strides, strict=True))


def coarse(sizes: Grid, strides: Grid) -> Grid:
    """Number of pixels after the stride, of an image or of what holds all taps of a kernel: `⌈n/s⌉`."""
    return tuple(-(-n // s) for n, s in zip(sizes, strides, strict=True))


def symbol(kernel: Tensor, grid: Grid, strides: Grid) -> Tensor:  # (g, out, in, *k) → (*half of grid, g, out, in·∏s)
    """The symbol of taps that lie where "same" padding places them."""
    sizes = tuple(m * s for m, s in zip(grid, strides, strict=True))
    taps = wrap_taps(kernel, left_of(tuple(kernel.shape[3:]), strides), sizes)
    return to_frequencies(stack_phases(taps, strides), len(grid))


class CircleKernel(ConvKernel):
    """Base class: the kernel with the symbol that `unitary` makes of raw parameters. Note [Image sizes].

    Channels are counted per group; a strided kernel has `in·∏s` columns, one for each phase of a channel. The windows
    begin `ahead` pixels further to the left than with "same" padding.
    """

    smallest = 1.0

    def __init__(self, geometry: ConvGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        self.taps_grid = self.grid = coarse(geometry.kernel_size, geometry.stride)
        self.ahead = (0,) * geometry.dims
        self.columns = geometry.group_in * math.prod(geometry.stride)
        self.channels = max(geometry.group_out, self.columns)

    @property
    def weight_geometry(self) -> ConvGeometry:
        """The geometry with a kernel as large as the image."""
        sizes = tuple(m * s for m, s in zip(self.grid, self.geometry.stride, strict=True))
        return replace(self.geometry, kernel_size=sizes)

    def at(self, grid: Grid) -> CircleKernel:
        """The same kernel for images of another size."""
        other = copy.copy(self)
        other.grid = grid
        return other

    def unitary(self, grid: Grid, *raw: Tensor) -> Tensor:  # → (*half of grid, g, out, columns), complex
        """The symbol of the kernel: matrices with all singular values 1."""
        raise NotImplementedError

    def build(self, *raw: Tensor, grid: Grid | None = None) -> Tensor:
        # Transforms round symbols, which may be ill-conditioned, and ω apart from −ω.
        precise = [t.double() for t in raw] if float64_is_cheap(raw[0]) else raw
        strides = self.geometry.stride
        taps = unstack_phases(self.taps(grid or self.grid, *precise), strides)
        first = [n - m for n, m in zip(left_of(tuple(taps.shape[3:]), strides), self.ahead, strict=True)]
        return taps.roll(first, tuple(range(3, taps.dim()))).flatten(0, 1).to(raw[0].dtype)

    def taps(self, grid: Grid, *raw: Tensor) -> Tensor:  # (g, out, columns, *grid)
        """The stride-1 kernel of all phases, from pixel 0 on."""
        return from_frequencies(self.unitary(grid, *raw), grid)
