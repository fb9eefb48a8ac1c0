"""Blocks on images, `y = S⋆x + C⋆σ(A⋆x + b)`: where each of the convolutions finds its pixels.

Note [Alignment]
Each convolution has its own left padding; those of a block obey the law that both ways from x to y shift by the same
number of pixels. On a circle of `N = s⌈n/s⌉` pixels (or N pixels amid zeros) a convolution of stride s and left
padding ℓ has `N/s` outputs and needs `extent − s − ℓ` pixels on the right. See Note [Circular padding and stride] of
`padding.py` for images whose size n the stride does not divide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from orthogonium.errors import GeometryError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.algebra import CONV
from orthogonium.layers.block import LipschitzBlock
from orthogonium.layers.conv.padding import Border, check_image, tiled_size, wrap, zero_extend
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.whole import as_a_whole

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Branch:
    """One convolution of a block: its stride, and the padding that gives one output for each stride."""

    left: Sizes
    right: Sizes
    stride: Sizes

    @classmethod
    def of(cls, extent: Sizes, left: Sizes, stride: Sizes) -> Branch:
        """Padding of a kernel of this extent (Note [Alignment])."""
        axes = zip(extent, left, stride, strict=True)
        return cls(left, tuple(max(x - s - a, 0) for x, a, s in axes), stride)


def residual_branches(geometry: ConvGeometry) -> tuple[Branch, Branch]:
    """A convolution of stride 1 and its adjoint, for images of the same size."""
    ones = (1,) * geometry.dims
    left = tuple((x - 1) // 2 for x in geometry.extent)
    inner = Branch.of(geometry.extent, left, ones)
    return inner, Branch(inner.right, inner.left, ones)


class ConvBlock(LipschitzBlock):
    """Base of the blocks on images."""

    dims: int = 2
    in_channels: int
    out_channels: int
    residual: bool = True  # whether x is added where there is no S
    groups: int
    dilation: Sizes
    padding_mode: str
    stride: Sizes  # of the whole block
    branches: tuple[Branch, ...]  # of A, C and S

    def set_geometry(self, geometry: ConvGeometry, padding_mode: str, branches: tuple[Branch, ...]) -> None:
        """What the forward pass needs to know; `geometry` has the stride, dilation and groups of the block."""
        self.padding_mode = Border.of(geometry, "same", padding_mode).mode
        self.stride, self.dilation, self.groups = geometry.stride, geometry.dilation, geometry.groups
        self.in_channels, self.out_channels = geometry.in_channels, geometry.out_channels
        self.kernel_size = geometry.kernel_size
        self.branches = branches

    @property
    def guarantee(self) -> Guarantee:
        """1-Lipschitz under both padding modes."""
        return Guarantee("lipschitz", image_sizes=(1,) * self.dims)

    @as_a_whole
    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to an image or a batch of images: `⌈size / stride⌉` outputs on each axis."""
        check_image(x, self.dims, self.in_channels, type(self).__name__)
        sizes = x.shape[-self.dims :]
        surplus = [tiled_size(n, s) - n for n, s in zip(sizes, self.stride, strict=True)]
        x = zero_extend(x, [0] * self.dims, surplus)
        inner, outer, *skip = self.packing.unpack(self.weight)
        y = self._convolve(x, inner, self.branches[0], self.bias)
        y = self._convolve(self.activation(y), outer, self.branches[1])
        if skip:
            return y + self._convolve(x, skip[0], self.branches[2])
        return y + x if self.residual else y

    def _convolve(self, x: Tensor, kernel: Tensor, branch: Branch, bias: Tensor | None = None) -> Tensor:
        conv, padding = CONV[self.dims], (0,) * self.dims
        if self.padding_mode == "circular":
            x = wrap(x, branch.left, branch.right)
        elif branch.left == branch.right:
            padding = branch.left
        else:
            x = zero_extend(x, branch.left, branch.right)
        return conv(x, kernel, bias, branch.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """Sizes, for printing."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        for name in ("stride", "dilation"):
            if set(getattr(self, name)) != {1}:
                text += f", {name}={getattr(self, name)}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        return (
            text
            + f", inner={self.packing.shapes[0][0]}, bias={self.bias is not None}, padding_mode={self.padding_mode}"
        )


def inner_channels(name: str, channels: int, factor: float, groups: int) -> int:
    """Number of inner channels, `⌊factor · channels⌋` up to the rounding of the product."""
    inner = math.floor(channels * factor + 1e-9) if 0 < factor < math.inf else 0
    if inner < 1 or inner % groups:
        raise GeometryError(
            f"{name}: inner_dim_factor={factor} gives {inner} inner channels for {channels} channels; needs a positive "
            f"multiple of groups={groups}."
        )
    return inner
