"""Orthogonal factors applied to images, one after another, instead of their product.

Along one axis of an image, `P + (I − P) z` is `y_p = x_{p+d} + P (x_p − x_{p+d})` for dilation d. With a basis M of the
projector (`P = MᵀM`, orthonormal rows) that takes two thin products for each pixel. Differences are taken of the
coordinates `Mx`, which are half as many as the channels (of the pixels themselves, if a basis is not orthonormal). A
rotation `(I − 2P)(I − 2Q)` is two reflections `x − 2Px`.

Note [Layout]
The axis comes first, then the batch and all other axes: a shift along the axis is a slice, and each product is one for
all images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.linalg.in_turn import project
from orthogonium.linalg.multiply import add_product, multiply

Span = tuple[Tensor, Tensor | None]  # of rows (g, r, c): orthonormal, or with their inverse Gram matrices (g, r, r)


def apply_in_turn(
    x: Tensor,  # (n, g, in, *sizes)
    dense: Callable[[Tensor], Tensor],  # (n, g, …) → (n, g, …)
    axes: Sequence[Sequence[Span]],
    dense_first: bool,
    dilation: Sequence[int],
    pad: Callable[[Tensor, int], Tensor],
) -> Tensor:  # (n, g, out, *sizes)
    """Apply the dense kernel and the factors of each axis: the dense one last, or first and the others in reverse.

    `pad(x, axis)` adds the border of an axis, which is the third axis of its input.
    """
    order = list(enumerate(axes))
    if dense_first:
        x = dense(x)
        order.reverse()
    for axis, spans in order:
        x = pad(x.movedim((1, 2, 3 + axis), (0, 1, 2)), axis)  # Note [Layout]
        x = apply_factors(spans[::-1] if dense_first else spans, x, dilation[axis])
        x = x.movedim((0, 1, 2), (1, 2, 3 + axis))
    return x if dense_first else dense(x)


def apply_factors(spans: Sequence[Span], x: Tensor, dilation: int) -> Tensor:  # (g, c, L, …)
    """Apply the factors of one axis in the given order: each removes `dilation` pixels."""
    if not spans:
        return x
    others = x.shape[3:]
    shift = dilation * math.prod(others)
    x = x.flatten(2)
    for rows, inverse in spans:
        if inverse is None:
            coordinates = multiply(rows, x)
            x = add_product(x[..., shift:], rows.mT, coordinates[..., :-shift] - coordinates[..., shift:])
        else:
            x = x[..., shift:] + project(x[..., :-shift] - x[..., shift:], rows, inverse)
    return x.unflatten(2, (-1, *others))


def reflect(x: Tensor, spans: Sequence[Span], out: int) -> Tensor:  # (n, g, in, *sizes) → (n, g, out, *sizes)
    """`x − 2Px` for one projector after the other, from and to the first channels of a space."""
    shape, channels = x.shape, spans[0][0].shape[2]
    x = x.movedim((1, 2), (0, 1)).flatten(2)
    x = F.pad(x, (0, 0, 0, channels - x.shape[1])) if x.shape[1] < channels else x
    for rows, inverse in spans:
        x = torch.sub(x, project(x, rows, inverse), alpha=2)
    return x[:, :out].unflatten(2, (shape[0], *shape[3:])).movedim((0, 1), (1, 2))


def apply_to_tiles(
    x: Tensor,  # (n, g, c, *sizes)
    tile: Sequence[int],
    matrix: Callable[[Tensor], Tensor],  # (g, c·∏tile, p) → (g, m, p)
) -> Tensor:  # (n, g, m, *(sizes / tile))
    """Apply a matrix to tiles, which divide the images: a kernel as large as its stride, in one product for all."""
    for axis, k in enumerate(tile, 3):
        x = x.unflatten(2 * axis - 3, (-1, k))
    places = range(3, x.dim(), 2)  # of the tiles; the pixels of a tile follow
    x = x.permute(1, 2, *(i + 1 for i in places), places[-1], 0, *places[:-1])  # the last axis leads
    sizes = x.shape[2 + len(tile) :]
    y = matrix(x.reshape(x.shape[0], -1, math.prod(sizes)))
    return y.unflatten(2, sizes).movedim((0, 1, 2), (1, 2, 2 + len(tile)))
