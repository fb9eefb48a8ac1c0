"""From a finite image to the infinite lattice: how much padding can increase the norm.

Write T for the layer on images of one size and T_s for the convolution of stride s on the infinite lattice or on a
circle. Each `Reduction` states a proved inequality ‖T‖ ≤ factor · ‖T_s‖.

- Zeros: T is a block of T_s, factor 1. Only the padded length P matters, so a circle of at least P pixels will do.
- Circular on a circle of N pixels, s | N: the m windows wrap around ⌈m·s/N⌉ times, and each round is a set of rows of
  the circular convolution: factor √⌈m·s/N⌉ per axis. If s ∤ N the windows are among those of stride gcd(s, N).
- Any mode: T is T_s after a copy of pixels into the pads, whose norm is √(most copies of one pixel) per axis.

A transposed layer is the adjoint of a convolution (or of a block of it, with output padding): the same norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from orthogonium.spectral.definition import check_size, circle_size, fill, sides
from orthogonium.spectral.geometry import Convolution


@dataclass(frozen=True)
class Reduction:
    """‖layer‖ ≤ factor · ‖convolution of this stride on these circles‖; all spectra are equal if `same_spectrum`.

    Attributes:
        stride: per axis; may be smaller than the layer's.
        factor: product of the factors of all axes.
        circle: pixels of the circle per axis, a multiple of the stride; None for the infinite line.
        same_spectrum: the layer is this circular convolution up to a permutation of pixels.
    """

    stride: tuple[int, ...]
    factor: float
    circle: tuple[int | None, ...]
    same_spectrum: bool = False


def reductions(conv: Convolution, size: Sequence[int] | None = None) -> list[Reduction]:
    """The inequalities that hold for inputs of this spatial size (of every size if None); use the best.

    >>> from orthogonium.spectral import convolution
    >>> from orthogonium.spectral.reductions import reductions
    >>> reductions(convolution(torch.ones(1, 1, 3), padding=1, padding_mode="replicate"))[0].factor == 3**0.5
    True
    """
    if size is None:
        return [_of_any_size(conv)]
    image, windows = sides(conv, check_size(conv, size))
    axes = range(len(image))
    if conv.padding_mode != "circular":
        padded = [image[a] + sum(conv.padding[a]) for a in axes]
        circle = tuple(-(-p // s) * s for p, s in zip(padded, conv.stride, strict=True))
        same = all(_windows_tile(conv, a, image[a], windows[a]) for a in axes)
        return [Reduction(conv.stride, _copies_factor(conv, image), circle, same)]
    length = [circle_size(conv, image[a], conv.stride[a]) for a in axes]
    stride = tuple(math.gcd(conv.stride[a], length[a]) for a in axes)
    rounds = [-(-((windows[a] - 1) * conv.stride[a] + stride[a]) // length[a]) for a in axes]
    same = all(length[a] == image[a] == windows[a] * conv.stride[a] for a in axes)
    wrapped = Reduction(stride, math.sqrt(math.prod(rounds)), tuple(length), same)
    if stride == conv.stride:
        return [wrapped]
    return [wrapped, Reduction(conv.stride, _copies_factor(conv, image), (None,) * len(image))]


def _windows_tile(conv: Convolution, axis: int, n: int, m: int) -> bool:
    """No window leaves the image and the windows advance once through it: then padding plays no role."""
    s = conv.stride[axis]
    return conv.padding[axis] == (0, 0) and conv.reach[axis] <= s and m * s == n


def _copies_factor(conv: Convolution, image: Sequence[int]) -> float:
    product = 1
    for a, (n, (left, right)) in enumerate(zip(image, conv.padding, strict=True)):
        length = circle_size(conv, n, conv.stride[a])
        pixel = fill(conv, a, torch.arange(-left, length + right), n)
        product *= int(torch.bincount(pixel[pixel >= 0]).max())
    return math.sqrt(product)


def _of_any_size(conv: Convolution) -> Reduction:
    """What holds for every size, given that circular pads longer than the reach are at most n (`check_size`)."""
    stride, product = [], 1
    for s, reach, (left, right) in zip(conv.stride, conv.reach, conv.padding, strict=True):
        shortest, total = s if conv.extend else max(left, right, 1), left + right  # the smallest circle possible
        if conv.padding_mode == "circular":
            excess = total + 1 - reach  # pixels by which the starts of windows pass one round
            stride.append(s if conv.extend or total == 0 else 1)
            product *= 1 + max(-(-excess // shortest), 0)
        else:
            stride.append(s)
            product *= {"zeros": 1, "reflect": 1 + (left > 0) + (right > 0), "replicate": total + 1}[conv.padding_mode]
    return Reduction(tuple(stride), math.sqrt(product), (None,) * len(stride))
