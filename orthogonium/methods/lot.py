"""Layer-wise orthogonal training: the polar factor at each frequency of the image.

Xu, Li, Li (2022), "LOT: Layer-wise orthogonal training on improving l2 certified robustness": `(VVᴴ)^(-1/2) V`, the
unitary matrix closest to V. The published Newton iteration for the root is replaced by minimax steps with an exact
derivative (`linalg/polar.py`): ten Newton steps leave singular values of 0.05.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.kernels import ConvGeometry, select_method
from orthogonium.linalg.polar import polar
from orthogonium.methods.aol import central_tap
from orthogonium.methods.circle import CircleKernel, Grid, left_of, symbol
from orthogonium.methods.kernel import Device, unit_groups


class PolarKernel(CircleKernel):
    """Raw parameter: taps `(out, in/g, *k)` of any scale, whose symbol has full rank, as for almost all taps."""

    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry) -> None:
        select_method(geometry)  # says which symbols have full rank: Note [Existence] of `kernels/geometry.py`
        super().__init__(geometry)

    def initial(self, device: Device, dtype: torch.dtype) -> Tensor:
        return central_tap(self.geometry, device, dtype)

    def unitary(self, grid: Grid, *raw: Tensor) -> Tensor:
        g = self.geometry
        return polar(symbol(unit_groups(raw[0], g.groups)[0], grid, g.stride))

    def nearest(self, weight: Tensor) -> tuple[Tensor, ...] | None:
        """The taps themselves, if there are no others: the polar factor is the closest orthogonal kernel."""
        inside = self._window(weight)
        return None if torch.count_nonzero(weight) > torch.count_nonzero(inside) else (inside,)

    def guess(self, weight: Tensor) -> tuple[Tensor, ...]:
        """The taps in the middle, which hold most of an orthogonal kernel of this kind."""
        return (self._window(weight),)

    def _window(self, weight: Tensor) -> Tensor:  # (out, in/g, *sizes) → (out, in/g, *k)
        """The taps, of a kernel as large as the image, at the positions of the raw parameters."""
        own, strides = self.geometry.kernel_size, self.geometry.stride
        sizes = tuple(weight.shape[2:])
        lefts = zip(left_of(sizes, strides), left_of(own, strides), self.ahead, strict=True)
        for axis, (left, right, ahead) in enumerate(lefts):
            pixels = torch.arange(own[axis], device=weight.device) + left - right - ahead
            weight = weight.index_select(axis + 2, pixels % sizes[axis])
        return weight
