"""Isometric changes of shape: invertible down- and upsampling (pixels ↔ channels), and padding."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import check_as_written

PaddingMode = Literal["zeros", "circular", "reflect", "replicate"]
_TORCH_MODE = {"zeros": "constant", "circular": "circular", "reflect": "reflect", "replicate": "replicate"}


class _Resampling(nn.Module):
    """Moves tiles of `∏factor` pixels to channels or back, in any number of dimensions."""

    guarantee = Guarantee("orthogonal")

    def __init__(self, factor: int | tuple[int, ...]) -> None:
        super().__init__()
        if min(factor if isinstance(factor, tuple) else (factor,), default=0) < 1:
            raise ParameterError(f"{type(self).__name__} needs factors ≥ 1: got {factor}.")
        self.factor = factor

    def _factors(self, x: Tensor) -> tuple[int, ...]:
        dims = x.dim() - 2
        factors = self.factor if isinstance(self.factor, tuple) else (self.factor,) * dims
        if dims < 1 or len(factors) != dims:
            raise ShapeError(
                f"{type(self).__name__} acts on inputs (n, c, …) with as many spatial axes as factor {self.factor} "
                f"names, at least one: got {tuple(x.shape)}."
            )
        return factors

    def extra_repr(self) -> str:
        """The factor."""
        return f"{self.factor}"


class InvertibleDownsampling(_Resampling):
    """Moves each tile of pixels into channels: (n, c, h, w) → (n, c·f², h/f, w/f), also for sequences and volumes.

    Output channel `c·f² + i·f + j` holds the pixels at offset (i, j) of their tile, the order of `nn.PixelUnshuffle`.

    Guarantee: a permutation of the entries; `inverse()` undoes it.

    Args:
        factor: size of a tile, one int for all axes or a tuple; it must divide the size of the input.

    >>> from orthogonium.layers.shape import InvertibleDownsampling
    >>> InvertibleDownsampling(2)(torch.arange(4).reshape(1, 1, 2, 2)).flatten().tolist()
    [0, 1, 2, 3]
    """

    def inverse(self) -> InvertibleUpsampling:
        """The layer that undoes this one."""
        check_as_written(self, "inverse")
        return InvertibleUpsampling(self.factor)

    def forward(self, x: Tensor) -> Tensor:
        """Fewer pixels, more channels."""
        factors = self._factors(x)
        if any(n % f for n, f in zip(x.shape[2:], factors, strict=True)):
            raise ShapeError(
                f"InvertibleDownsampling needs factor {factors} to divide the size {tuple(x.shape[2:])} of its input. "
                "Pad the input (IsometricPad) or change the factor."
            )
        split = [part for n, f in zip(x.shape[2:], factors, strict=True) for part in (n // f, f)]
        tiles = x.reshape(*x.shape[:2], *split)
        coarse, offset = range(2, tiles.dim(), 2), range(3, tiles.dim(), 2)
        return tiles.permute(0, 1, *offset, *coarse).flatten(1, 1 + len(factors))


class InvertibleUpsampling(_Resampling):
    """Moves channels into tiles of pixels: (n, c·f², h, w) → (n, c, h·f, w·f).

    The inverse of `InvertibleDownsampling`.

    Guarantee: a permutation of the entries; `inverse()` undoes it.

    Args:
        factor: size of a tile, one int for all axes or a tuple; the product over axes must divide the channels.

    >>> from orthogonium.layers.shape import InvertibleUpsampling
    >>> InvertibleUpsampling(2)(torch.arange(4).reshape(1, 4, 1, 1))
    tensor([[[[0, 1],
              [2, 3]]]])
    """

    def inverse(self) -> InvertibleDownsampling:
        """The layer that undoes this one."""
        check_as_written(self, "inverse")
        return InvertibleDownsampling(self.factor)

    def forward(self, x: Tensor) -> Tensor:
        """More pixels, fewer channels."""
        factors = self._factors(x)
        dims, tile = len(factors), math.prod(factors)
        if x.shape[1] % tile:
            raise ShapeError(
                f"InvertibleUpsampling with factor {factors} needs a multiple of {tile} channels: got shape "
                f"{tuple(x.shape)}."
            )
        tiles = x.reshape(x.shape[0], x.shape[1] // tile, *factors, *x.shape[2:])
        interleaved = [axis for i in range(dims) for axis in (2 + dims + i, 2 + i)]
        sizes = [n * f for n, f in zip(x.shape[2:], factors, strict=True)]
        return tiles.permute(0, 1, *interleaved).reshape(x.shape[0], x.shape[1] // tile, *sizes)


def copies(size: int, left: int, right: int, mode: PaddingMode, device: torch.device | None = None) -> Tensor:
    """How often each of the `size` pixels of an axis occurs after padding, (size,)."""
    index = torch.arange(size, device=device)
    if mode == "circular":
        return 1 + (index >= size - left).int() + (index < right).int()
    if mode == "reflect":
        before = (index >= 1) & (index <= left)
        after = (index >= size - 1 - right) & (index <= size - 2)
        return 1 + before.int() + after.int()
    if mode == "replicate":
        return 1 + left * (index == 0).int() + right * (index == size - 1).int()
    _check_mode("Padding", mode)
    return torch.ones_like(index)


def _check_mode(name: str, mode: str) -> None:
    if mode not in _TORCH_MODE:
        raise ParameterError(f"{name} knows the modes {', '.join(_TORCH_MODE)}: got {mode!r}.")


def pad_constant(padding: tuple[int, ...], size: tuple[int, ...], mode: PaddingMode = "zeros") -> float:
    """Lipschitz constant of torch's padding: the product over axes of the root of the most copies of a pixel.

    Args:
        padding: (left, right) of the **last** axis first, as in `torch.nn.functional.pad`.
        size: spatial size of the input.
        mode: zeros, circular, reflect or replicate.

    >>> from orthogonium.layers.shape import pad_constant
    >>> pad_constant((1, 1, 1, 1), (8, 8), "replicate")  # a corner has four copies
    2.0
    """
    pairs = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    if len(pairs) != len(size):
        raise ParameterError(f"padding must hold two numbers for each of the axes {size}: got {padding}.")
    largest = [int(copies(n, *pair, mode).max()) for n, pair in zip(size, pairs, strict=True)]
    return math.sqrt(math.prod(largest))


class IsometricPad(nn.Module):
    """Padding that preserves norms: each pixel is divided by the root of its number of copies, then padded.

    With zeros this is plain zero padding. Torch's circular, reflect and replicate padding copy pixels and so expand by
    `pad_constant` (up to 2 on images, more for replicate); here border pixels are dimmed, so the squares of the copies
    add up to that of the pixel.

    Guarantee: an isometry, for every mode and size.

    Args:
        padding: pixels on each side of every spatial axis, or (left, right) per axis, **last** axis first, as in
            `torch.nn.functional.pad`.
        mode: zeros, circular, reflect or replicate.

    >>> from orthogonium.layers.shape import IsometricPad
    >>> x = torch.randn(2, 3, 8, 8)
    >>> y = IsometricPad(2, mode="circular")(x)
    >>> tuple(y.shape), torch.allclose(x.norm(), y.norm())
    ((2, 3, 12, 12), True)
    """

    guarantee = Guarantee("orthogonal")

    def __init__(self, padding: int | tuple[int, ...], mode: PaddingMode = "zeros") -> None:
        super().__init__()
        _check_mode("IsometricPad", mode)
        if min(padding if isinstance(padding, tuple) else (padding,), default=-1) < 0:
            raise ParameterError(f"IsometricPad needs paddings ≥ 0: got {padding}. Cropping is 1-Lipschitz by slicing.")
        self.padding = padding
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        """Padded `x`."""
        dims = x.dim() - 2
        padding = self.padding if isinstance(self.padding, tuple) else (self.padding,) * (2 * dims)
        if dims < 1 or len(padding) != 2 * dims:
            raise ShapeError(
                f"IsometricPad acts on inputs (n, c, …) with two numbers of padding {self.padding} for each spatial "
                f"axis, at least one: got {tuple(x.shape)}."
            )
        if self.mode == "zeros":
            return F.pad(x, padding)
        return F.pad(self._dim(x, padding).to(x.dtype), padding, mode=_TORCH_MODE[self.mode])

    def _dim(self, x: Tensor, padding: tuple[int, ...]) -> Tensor:
        """Divide each pixel by the root of its copies, axis by axis from the last one, in float32 or better."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        for i in range(len(padding) // 2):
            left, right, size = padding[2 * i], padding[2 * i + 1], x.shape[-1 - i]
            available = {"circular": size, "reflect": size - 1}.get(self.mode)
            if available is not None and max(left, right) > available:
                raise ShapeError(
                    f"IsometricPad with mode {self.mode!r} can take at most {available} pixels from an axis of size "
                    f"{size}: got padding {padding} for shape {tuple(x.shape)}. Pad less, or use zeros."
                )
            weights = copies(size, left, right, self.mode, x.device).to(dtype).rsqrt()
            x = x * weights.reshape(-1, *[1] * i)
        return x

    def extra_repr(self) -> str:
        """Padding, and the mode when it is not the default."""
        return f"{self.padding}" + ("" if self.mode == "zeros" else f", mode={self.mode!r}")
