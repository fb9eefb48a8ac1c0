"""The definition of a convolution, written with indices: which pixel each tap of each window reads.

Everything here is deliberately slow and obvious. It defines what a record *means*: the tests compare the fast code of
the other files with it, and it with torch's convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import GeometryError, ShapeError
from orthogonium.spectral.geometry import Convolution, require_geometry
from orthogonium.spectral.rounding import double


def check_size(conv: Convolution, size: Sequence[int]) -> tuple[int, ...]:
    """The spatial size of the layer's input as a tuple, if it fits the layer."""
    size = tuple(size)
    if len(size) != len(conv.stride) or any(n < 1 for n in size):
        raise ShapeError(f"The layer needs {len(conv.stride)} spatial sizes, each at least 1, got {size}.")
    image, windows = sides(conv, size)
    for n, m, reach, (left, right) in zip(image, windows, conv.reach, conv.padding, strict=True):
        if n < 1 or m < 1:
            raise ShapeError(f"No window fits: kernel reach {conv.reach}, padding {conv.padding}, input {size}.")
        limit = {"circular": n, "reflect": n - 1}.get(conv.padding_mode, left + right)
        if max(left, right) > limit and not (conv.padding_mode == "circular" and (conv.extend or left + right < reach)):
            raise ShapeError(
                f"{conv.padding_mode} padding {conv.padding} is larger than a side of {n} pixels allows ({limit}). "
                "Use a larger input or a smaller padding."
            )
    return size


def circle_size(conv: Convolution, n: int, stride: int) -> int:
    """The length of the circle on which an axis of n pixels is wrapped."""
    return -(-n // stride) * stride if conv.extend else n


def sides(conv: Convolution, size: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(pixels n, windows m) per axis of the convolution; a layer reads n and writes m, a transposed one the reverse."""
    image, windows = [], []
    for n, s, reach, (left, right), extra in zip(
        size, conv.stride, conv.reach, conv.padding, conv.output_padding or (0,) * len(size), strict=True
    ):
        if conv.transposed:
            image.append((n - 1) * s - left - right + reach + extra)
            windows.append(n)
        else:
            image.append(n)
            windows.append((n + left + right - reach) // s + 1)
    return tuple(image), tuple(windows)


def sources(conv: Convolution, axis: int, n: int, m: int) -> Tensor:
    """(m, k) index of the pixel that tap j of window i reads along an axis of n pixels; −1 where it reads a zero."""
    i = torch.arange(m)[:, None] * conv.stride[axis]
    j = torch.arange(conv.kernel_size[axis])[None, :] * conv.dilation[axis]
    return fill(conv, axis, i + j - conv.padding[axis][0], n)


def fill(conv: Convolution, axis: int, position: Tensor, n: int) -> Tensor:
    """The pixel found at a position that may lie outside 0 … n−1; −1 for a zero."""
    if conv.padding_mode == "replicate":
        return position.clamp(0, n - 1)
    if conv.padding_mode == "reflect":
        return (n - 1) - ((n - 1) - position.abs()).abs()
    if conv.padding_mode == "circular":
        position = position % circle_size(conv, n, conv.stride[axis])
    return torch.where((position >= 0) & (position < n), position, -1)


def apply(conv: Convolution, x: Tensor) -> Tensor:
    """The layer without its bias on x: (batch, in_channels, *size) → (batch, out_channels, *size′), in x's dtype."""
    image, windows = sides(conv, check_size(conv, x.shape[2:]))
    if x.shape[1] != conv.in_channels:
        raise ShapeError(f"The layer reads {conv.in_channels} channels, got {x.shape[1]}.")
    axes = range(len(image))
    index = [sources(conv, a, image[a], windows[a]).to(x.device) for a in axes]
    g, batch = conv.groups, x.shape[0]
    weight = conv.weight.to(x).reshape(
        g, -1, conv.weight.shape[1], math.prod(conv.kernel_size)
    )  # (g, co/g, ci/g, taps)
    if conv.transposed:
        y = torch.einsum("bgow,gock->bgcwk", x.reshape(batch, g, -1, math.prod(windows)), weight)
        y = y.reshape(batch, y.shape[1] * y.shape[2], *windows, *conv.kernel_size)
        for a in axes:
            y = _scatter(y, index[a], 2 + a, 2 + len(image), image[a])
        return y
    for a in axes:
        x = _gather(x, index[a], 2 + a)
    x = x.reshape(batch, g, -1, math.prod(windows), weight.shape[3])
    return torch.einsum("bgcwk,gock->bgow", x, weight).reshape(batch, -1, *windows)


def frobenius(conv: Convolution, size: Sequence[int]) -> Tensor:
    """(groups,) squared Frobenius norms of the operator on images of this size, without building it.

    Two taps j, j′ of one window meet where they read the same pixel, so ‖T‖²_F = Σ_{j,j′} ⟨W_j, W_j′⟩ ∏_axes C(j, j′)
    with C the number of windows in which they do.
    """
    image, windows = sides(conv, check_size(conv, size))
    weight = double(conv.weight).unflatten(0, (conv.groups, -1))
    met = weight
    for a, (n, m) in enumerate(zip(image, windows, strict=True)):
        index = sources(conv, a, n, m).to(weight.device)
        together = (index[:, :, None] == index[:, None, :]) & (index >= 0)[:, :, None]
        met = torch.tensordot(met, together.sum(0).to(weight), dims=([3], [0]))  # the axis moves to the end
    return (weight * met).flatten(1).sum(1)


def check_geometry(layer: nn.Module, input_shape: Sequence[int]) -> None:
    """Raise `GeometryError` unless the layer's forward pass is the convolution its record describes.

    One random image goes through both; two different convolutions agree on a random image with probability 0.

    Args:
        layer: a layer that has a record (`geometry_of`).
        input_shape: (channels, *size) of the image to try.

    >>> from orthogonium.spectral import check_geometry
    >>> check_geometry(torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), (3, 7, 8))
    """
    conv = require_geometry(layer)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, *input_shape, generator=generator, dtype=torch.float64).to(conv.weight)
    with torch.no_grad():
        stated = apply(conv.with_weight(conv.weight.detach()), x)
        actual = layer(x) - layer(torch.zeros_like(x))
    tolerance = 200 * torch.finfo(x.dtype).eps * max(conv.weight[0].numel(), 100) ** 0.5
    if actual.shape != stated.shape or not torch.allclose(
        actual, stated, rtol=tolerance, atol=tolerance * float(stated.abs().max())
    ):
        raise GeometryError(
            f"{type(layer).__name__} is not the convolution its geometry describes ({describe(conv)}): on an input of "
            f"shape {tuple(input_shape)} it returns shape {tuple(actual.shape[1:])}, the record gives "
            f"{tuple(stated.shape[1:])} and other values. Correct `spectral_geometry()`, or remove it: the layer is "
            "then measured."
        )


def describe(conv: Convolution) -> str:
    """The geometry in one line, for messages."""
    return (
        f"{conv.in_channels}→{conv.out_channels} channels, kernel {conv.kernel_size}, stride {conv.stride}, "
        f"dilation {conv.dilation}, groups {conv.groups}, {conv.padding_mode} padding {conv.padding}"
        + (", transposed" if conv.transposed else "")
    )


def _gather(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Replace an axis of pixels by windows, and append an axis of taps at the end."""
    m, k = index.shape
    read = x.index_select(axis, index.clamp_min(0).flatten()).unflatten(axis, (m, k)).movedim(axis + 1, -1)
    mask = (index >= 0).to(x).reshape([m if a == axis else 1 for a in range(read.ndim - 1)] + [k])
    return read * mask


def _scatter(y: Tensor, index: Tensor, axis: int, taps: int, n: int) -> Tensor:
    """The adjoint of `_gather`: sum windows (axis) and taps (axis `taps`) into n pixels."""
    y = y.movedim(taps, axis + 1).flatten(axis, axis + 1)
    out = y.new_zeros([n if a == axis else size for a, size in enumerate(y.shape)])
    seen = (index >= 0).flatten()
    return out.index_add(axis, index.flatten()[seen], y.index_select(axis, seen.nonzero().flatten()))
