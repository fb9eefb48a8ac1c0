"""Blocks on images, `y = S⋆x + C⋆σ(A⋆x + b)`: where each of the convolutions finds its pixels.

Note [Alignment]
Each convolution has its own left padding; in a block they are chosen so that both paths from x to y shift by the same
number of pixels. On a circle of `N = s⌈n/s⌉` pixels (or N pixels amid zeros) a convolution of stride s and left
padding ℓ has `N/s` outputs and needs `extent − s − ℓ` pixels on the right. See Note [Circular padding and stride] of
`padding.py` for images whose size n the stride does not divide.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from orthogonium.annotations import as_int
from orthogonium.errors import GeometryError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size
from orthogonium.layers.block import LipschitzBlock
from orthogonium.layers.conv.execution import convolve
from orthogonium.layers.conv.padding import Border, ahead_of_same, check_image, tile
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.whole import as_a_whole

Sizes = tuple[int, ...]


class ConvBlock(LipschitzBlock):
    """Base of the blocks on images."""

    dims: int = 2
    in_channels: int
    out_channels: int
    groups: int
    dilation: Sizes
    padding_mode: str
    stride: Sizes  # of the whole block
    borders: tuple[Border, ...]  # of A, C and S: Note [Alignment]

    def __init_subclass__(cls, dims: int | None = None) -> None:
        super().__init_subclass__()
        cls.dims = dims or cls.dims

    def set_geometry(self, geometry: ConvGeometry, borders: tuple[Border, ...]) -> None:
        """Set what the forward pass needs; `geometry` has the stride, dilation and groups of the block."""
        self.borders, self.padding_mode = borders, borders[0].mode
        self.stride, self.dilation, self.groups = geometry.stride, geometry.dilation, geometry.groups
        self.in_channels, self.out_channels = geometry.in_channels, geometry.out_channels
        self.kernel_size = geometry.kernel_size

    def set_residual(self, core: ConvGeometry, padding_mode: str, padding: Size | str) -> None:
        """The same for `x + C⋆σ(A⋆x + b)`, where A has the geometry `core` (stride 1) and C that of the adjoint."""
        ahead_of_same(core, padding, type(self).__name__)
        inner = Border.of(core, "same", padding_mode)
        self.set_geometry(replace(core, out_channels=core.in_channels), (inner, inner.adjoint()))

    @property
    def guarantee(self) -> Guarantee:
        """`lipschitz`-Lipschitz under both padding modes."""
        return Guarantee("lipschitz", self.lipschitz, image_sizes=(1,) * self.dims)

    @as_a_whole
    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to an image or a batch of images: `⌈size / stride⌉` outputs on each axis."""
        check_image(x, self.dims, self.in_channels, type(self).__name__)
        x = tile(x, self.stride)
        inner, outer, *skip = self.packing.unpack(self.weight)
        y = convolve(x, inner, self.bias, self.borders[0], self.dilation, self.groups)
        y = convolve(self.activation(y), outer, None, self.borders[1], self.dilation, self.groups)
        if skip:
            return y + convolve(x, skip[0], None, self.borders[2], self.dilation, self.groups)
        return y + self.skip(x) if self.residual else y

    def size_repr(self) -> str:
        """Sizes, for printing."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        for name in ("stride", "dilation"):
            if set(getattr(self, name)) != {1}:
                text += f", {name}={getattr(self, name)}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        text += f", inner={self.packing.shapes[0][0]}, bias={self.bias is not None}"
        return f"{text}, padding_mode={self.padding_mode}"


def inner_channels(name: str, channels: int, factor: float, groups: int) -> int:
    """Number of inner channels, `⌊factor · channels⌋` up to the rounding of the product."""
    inner = math.floor(as_int(channels) * float(factor) + 1e-9) if 0 < factor < math.inf else 0
    if inner < 1 or inner % groups:
        raise GeometryError(
            f"{name}: inner_dim_factor={factor} gives {inner} inner channels for {channels} channels; needs a positive "
            f"multiple of groups={groups}."
        )
    return inner
