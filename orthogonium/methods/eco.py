"""Explicitly constructed orthogonal convolutions: a unitary matrix for each of a few frequencies.

Yu, Li, Cai, Zhu, Chen (2022), "Constructing orthogonal convolutions in an explicit manner". A kernel with κ taps on
each axis is orthogonal on a circle of κ pixels if its symbol is unitary at the κ frequencies there. On an image of m
pixels, its taps are placed `d = m/κ` pixels apart (dilation), which splits the image into circles of κ pixels. So κ
must divide m. The paper has κ = k, the kernel size; here κ is the smallest divisor of m that is at least k (m itself,
if that is smaller), which serves every image: 3 on 9 pixels, 4 on 8.

With stride s, m counts the pixels after the stride, and `⌈k/s⌉` takes the place of k. The cost does not grow with the
image if its size has small divisors; the taps move apart instead. Unitary matrices are exponentials `exp(M − Mᴴ)`,
truncated to the required shape.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.circle import from_frequencies
from orthogonium.linalg.rotations import exponential
from orthogonium.methods.circle import CircleKernel, Grid, symbol
from orthogonium.methods.kernel import Device


class ExplicitKernel(CircleKernel):
    """Raw parameter: taps of M after the stride, `(g·c, c, *⌈k/s⌉)` with `c = max(out, in·∏s)` channels of a group."""

    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry) -> None:
        super().__init__(geometry)
        self.trainable = self.channels > 1 or max(self.taps_grid) > 2  # real numbers of norm 1 are ±1

    def initial(self, device: Device, dtype: torch.dtype) -> Tensor:
        """Normal taps of a size that turns by about 1 rad."""
        shape = (self.geometry.groups * self.channels, self.channels, *self.taps_grid)
        wide = torch.promote_types(dtype, torch.float32)
        return (torch.randn(shape, device=device, dtype=wide) / math.sqrt(4 * math.prod(shape[1:]))).to(dtype)

    def unitary(self, grid: Grid, *raw: Tensor) -> Tensor:
        """The symbol at the frequencies of the small circle, `grid`."""
        g = self.geometry
        m = symbol(raw[0].unflatten(0, (g.groups, -1)), grid, (1,) * g.dims)
        return exponential(m)[..., : g.group_out, : self.columns]

    def taps(self, grid: Grid, *raw: Tensor) -> Tensor:
        """The taps of the small circle, spread over the image."""
        circle = tuple(map(divisor_from, grid, self.taps_grid))
        x = from_frequencies(self.unitary(circle, *raw), circle)
        for axis, (m, n) in enumerate(zip(grid, circle, strict=True), 3):  # zeros behind each tap
            later_axes = (0, 0) * (x.dim() - 1 - axis)
            x = F.pad(x.unsqueeze(axis + 1), (*later_axes, 0, m // n - 1)).flatten(axis, axis + 1)
        return x


def divisor_from(m: int, least: int) -> int:
    """The smallest divisor of m that is at least `least`; m itself if there is none.

    >>> [divisor_from(m, 3) for m in (9, 8, 7, 2)]
    [3, 4, 7, 2]
    """
    return min([m, *(n for n in range(least, m) if m % n == 0)])
