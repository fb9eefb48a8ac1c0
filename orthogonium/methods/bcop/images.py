"""Orthogonal factors applied to images, one after the other, instead of their product.

Along one axis of an image, `P + (I − P) z` is `y_p = x_{p+d} + P (x_p − x_{p+d})` for dilation d. With a basis M of the
projector (`P = MᵀM`, orthonormal rows) that takes two thin products for each pixel, and the differences are taken of the
coordinates `Mx`, half as many as channels.

Note [Layout]
The axis comes first, then the batch and all other axes: a shift along the axis is a slice, and each product is one for
all images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.linalg.derivatives import HandWritten, evaluate


def lead_axis(x: Tensor, axis: int) -> Tensor:  # (n, g, c, *sizes) → (g, c, size, n, *others)
    """Note [Layout]."""
    return x.permute(1, 2, 3 + axis, 0, *(i for i in range(3, x.dim()) if i != 3 + axis))


def lead_batch(x: Tensor, axis: int) -> Tensor:
    """The inverse of `lead_axis`."""
    sizes = list(range(4, x.dim()))
    sizes.insert(axis, 2)
    return x.permute(3, 0, 1, *sizes)


# ── the factors of one axis; x is (g, c, pixels), a basis is (g, r, c) ──


def _apply(bases: Sequence[Tensor], x: Tensor, shift: int, saved: list[Tensor] | None = None) -> Tensor:
    """The factors in the order given; saves the pixels before each and the coordinates of differences for the adjoint."""
    for u in bases:
        coordinates = torch.bmm(u, x)
        coordinates = coordinates[..., :-shift] - coordinates[..., shift:]
        if saved is not None:
            saved += [x, coordinates]
        x = torch.baddbmm(x[..., shift:], u.mT, coordinates)
    return x


class _Factors(HandWritten):
    """(shift, x, *bases) → y: `_apply`, with a derivative that copies the images once for each factor."""

    @staticmethod
    def compute(shift: int, x: Tensor, *bases: Tensor) -> tuple[Tensor, list[Tensor]]:
        saved: list[Tensor] = []
        return _apply(bases, x, shift, saved if any(u.requires_grad for u in bases) else None), saved

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        shift, _, *bases = inputs
        _, wants_x, *wants_bases = wants
        grads: list[Tensor | None] = [None] * len(bases)
        for i in reversed(range(len(bases))):
            inner = torch.bmm(bases[i], grad)
            zeros = grad.new_zeros(()).expand(*grad.shape[:2], shift)
            few = zeros[:, : inner.shape[1]]
            inner = torch.cat((inner, few), 2).sub_(torch.cat((few, inner), 2))
            if wants_bases[i]:
                pixels, coordinates = saved[2 * i : 2 * i + 2]
                grads[i] = torch.bmm(coordinates, grad.mT).baddbmm_(inner, pixels.mT)
            if i or wants_x:
                grad = torch.cat((zeros, grad), 2).baddbmm_(bases[i].mT, inner)
        return None, grad if wants_x else None, *grads


def apply_factors(bases: Sequence[Tensor], x: Tensor, dilation: int) -> Tensor:  # (g, r, c), (g, c, L, …)
    """Apply the factors of one axis in the order given: each takes `dilation` pixels off."""
    others = x.shape[3:]
    shift = dilation * math.prod(others)
    return evaluate(_Factors, shift, x.flatten(2), *bases).unflatten(2, (-1, *others))


# ── the dense one ──


def convolve_tiles(x: Tensor, kernel: Tensor) -> Tensor:  # (n, g, c, *sizes), (g, m, c, *k) → (n, g, m, *(sizes / k))
    """Convolve with a kernel as large as its stride, which divides the sizes: one product for all tiles of all images."""
    tile = kernel.shape[3:]
    for axis, k in enumerate(tile, 3):
        x = x.unflatten(2 * axis - 3, (-1, k))
    places = range(3, x.dim(), 2)  # of the tiles; the pixels of a tile follow
    x = x.permute(1, 2, *(i + 1 for i in places), places[-1], 0, *places[:-1])  # the last axis leads
    sizes = x.shape[2 + len(tile) :]
    y = torch.bmm(kernel.flatten(2), x.reshape(x.shape[0], -1, math.prod(sizes)))
    return lead_batch(y.unflatten(2, sizes), len(tile) - 1)
