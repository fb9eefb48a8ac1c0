"""Reads a block `y = Sx + Cσ(Ax + b)`: which pixels it multiplies by which numbers.

Everything comes from what `forward` uses: the packed `weight` as it is, and the paddings, strides, dilation and groups
of the convolutions. The constraints they were meant to satisfy play no role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orthogonium.certification.lattice import scale_columns, scale_rows
from orthogonium.errors import OrthogoniumError
from orthogonium.layers.block import DenseBlock, LipschitzBlock
from orthogonium.layers.conv.block import ConvBlock
from orthogonium.layers.conv.padding import Border, tiled_size
from orthogonium.spectral import convolution
from orthogonium.spectral.symbol import phases

Sizes = tuple[int, ...]
_POINT = Border("zeros", (0,), (0,), (1,), same=True)


class NoBoundError(OrthogoniumError):
    """No finite Lipschitz constant is known for a block."""


@dataclass(frozen=True)
class Kernel:
    """A convolution on the lattice: `(Kx)[i] = Σ_j K[j] x[s·i + d·j − left]`."""

    taps: Tensor  # (g, rows, columns, *k), float64
    left: Sizes
    stride: Sizes
    dilation: Sizes

    @property
    def phases(self) -> Tensor:
        """The kernel of stride 1 with the same norm, `(g, rows, columns·∏e, *⌈k/e⌉)`."""
        groups = len(self.taps)
        return phases(convolution(self.taps.flatten(0, 1), stride=self.stride, dilation=self.dilation, groups=groups))

    def outputs(self, sizes: Sizes, right: Sizes) -> Sizes:
        """Number of windows per axis on images of this size, with this padding on the right."""
        axes = zip(sizes, self.left, right, self.taps.shape[3:], self.stride, self.dilation, strict=True)
        return tuple((n + a + b - d * (k - 1) - 1) // s + 1 for n, a, b, k, s, d in axes)


@dataclass(frozen=True)
class BlockKernels:
    """A, C and S of a block.

    Attributes:
        inner: A; its rows, the inner channels, have entries of up to 1 (see `exponents`). Rows that C does not read are
            0.
        outer: C, in the same way.
        skip: S; None for a block without skip connection.
        aligned: whether both paths from x to y are convolutions on one lattice, so their kernels may be multiplied.
        exponents: `(g, inner)`: A is divided, and C multiplied, by 2 to this power.
        meant: the intended constant of the block. It guides the search for a bound, which holds whatever its value.
    """

    inner: Kernel
    outer: Kernel
    skip: Kernel | None
    aligned: bool
    exponents: Tensor
    meant: float


def read_block(block: LipschitzBlock, input_shape: Sizes) -> BlockKernels:
    """The kernels that `block` applies to a sample of this shape; `NoBoundError` if they do not fit together."""
    name = type(block).__name__
    weights = [kernel.detach().to("cpu", torch.float64) for kernel in block.packing.unpack(block.weight)]
    if not all(torch.isfinite(kernel).all() for kernel in weights):
        raise NoBoundError(f"{name} has infinite or NaN numbers in its weight. Look for diverged training.")
    if isinstance(block, ConvBlock):
        channels, sizes, groups, dilation = input_shape[0], input_shape[1:], block.groups, block.dilation
        if len(sizes) != block.dims:
            raise NoBoundError(f"{name} takes images with {block.dims} axes, got a sample of shape {input_shape}.")
        sizes = tuple(tiled_size(n, s) for n, s in zip(sizes, block.stride, strict=True))
        borders, circular = block.borders, _are_circular(name, block.borders)
    elif isinstance(block, DenseBlock):
        channels, sizes, groups, dilation = input_shape[-1], (1,), 1, (1,)
        borders, circular = (_POINT,) * 3, False
        weights = [kernel.flatten(1)[..., None] for kernel in weights]
    else:
        raise NoBoundError(f"{name} is neither a dense nor a convolutional block: its forward is not known.")
    kernels = [
        Kernel(kernel.unflatten(0, (groups, -1)), border.left, border.stride, dilation)
        for kernel, border in zip(weights, borders, strict=False)
    ]
    inner, outer, *skips = kernels
    if not skips and block.residual:
        skips = [_identity(channels, groups, len(sizes), block.lipschitz)]
    skip = skips[0] if skips else None
    middle = inner.outputs(sizes, borders[0].right)
    result = outer.outputs(middle, borders[1].right)
    _check_channels(name, channels, inner, outer, skip)
    other = result
    if skip is not None:
        other = skip.outputs(sizes, borders[2].right) if len(kernels) > 2 else sizes
    if other != result or min(middle + result) < 1:
        raise NoBoundError(f"{name}: the two branches give images of {result} and {other} pixels. Look at its padding.")
    aligned = skip is None or _product(inner.stride, outer.stride) == skip.stride
    if circular:
        circles = [(inner, sizes, middle), (outer, middle, result)] + ([(skip, sizes, result)] if skip else [])
        if not all(_on_circle(*circle) for circle in circles):
            raise NoBoundError(f"{name}: on circles of {sizes} pixels windows repeat, or strides do not fit.")
        aligned = aligned and _product(middle, inner.stride) == sizes
    return _rescaled(inner, outer, skip, aligned, block.lipschitz)


def _are_circular(name: str, borders: Sequence[Border]) -> bool:
    """Whether images are wrapped around; if not, zeros surround them. Nothing is known of other modes."""
    modes = {border.mode for border in borders}
    if modes not in ({"circular"}, {"zeros"}):
        raise NoBoundError(f"{name} pads by {', '.join(sorted(modes))}: blocks are read with zeros or circular only.")
    return modes == {"circular"}


def _identity(channels: int, groups: int, dims: int, factor: float) -> Kernel:
    eye = (factor * torch.eye(channels // groups, dtype=torch.float64)).expand(groups, -1, -1)
    return Kernel(eye.reshape(*eye.shape, *[1] * dims), (0,) * dims, (1,) * dims, (1,) * dims)


def _check_channels(name: str, channels: int, inner: Kernel, outer: Kernel, skip: Kernel | None) -> None:
    """Check that channel counts agree: sums over different numbers of channels would broadcast."""
    groups = len(inner.taps)
    fits = inner.taps.shape[2] * groups == channels and outer.taps.shape[2] == inner.taps.shape[1]
    if skip is not None:
        fits = fits and skip.taps.shape[2] * groups == channels and skip.taps.shape[1] == outer.taps.shape[1]
    if not fits:
        raise NoBoundError(f"{name}: its kernels do not take {channels} channels, or do not fit together.")


def _product(a: Sequence[int], b: Sequence[int]) -> Sizes:
    return tuple(p * q for p, q in zip(a, b, strict=True))


def _on_circle(kernel: Kernel, circle: Sizes, outputs: Sizes) -> bool:
    """Whether the windows on a circle of pixels belong to one turn of a convolution of that stride."""
    axes = zip(circle, outputs, kernel.stride, strict=True)
    return all(n % s == 0 and m * s <= n for n, m, s in axes)


def _rescaled(inner: Kernel, outer: Kernel, skip: Kernel | None, aligned: bool, meant: float) -> BlockKernels:
    """Move powers of 2 from A to C, which rounds nothing; zero inner channels that C ignores or A does not feed."""
    size = inner.taps.flatten(2).abs().amax(2)
    heard = outer.taps.transpose(1, 2).flatten(2).abs().amax(2) > 0
    exponents = torch.frexp(size).exponent * ((size > 0) & heard)
    factors = torch.ldexp(((size > 0) & heard).double(), -exponents)
    a, c = scale_rows(inner.taps, factors), scale_columns(outer.taps, torch.ldexp((size > 0).double(), exponents))
    if not (torch.isfinite(a).all() and torch.isfinite(c).all()):
        raise NoBoundError("The numbers of a block are too far apart for float64. Look for diverged training.")
    inner = Kernel(a, inner.left, inner.stride, inner.dilation)
    return BlockKernels(inner, Kernel(c, outer.left, outer.stride, outer.dilation), skip, aligned, exponents, meant)
