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

from orthogonium.linalg.precision import full_precision_backward, has_values


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


class _Factors(torch.autograd.Function):
    """`_apply`, with a derivative that copies the images once for each factor."""

    @staticmethod
    def forward(ctx: Any, shift: int, x: Tensor, *bases: Tensor) -> Tensor:
        saved: list[Tensor] = []
        y = _apply(bases, x, shift, saved if any(ctx.needs_input_grad[2:]) else None)
        ctx.shift = shift
        ctx.save_for_backward(x, *bases, *saved)
        return y

    @staticmethod
    @full_precision_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _, wants_x, *wants_bases = ctx.needs_input_grad
        x, *saved = ctx.saved_tensors  # unpacked once: activation checkpoints allow no more
        bases, saved = saved[: len(wants_bases)], saved[len(wants_bases) :]
        if torch.is_grad_enabled():  # the derivative is to be derived itself: take that of the plain operators
            inputs = [t.view_as(t) for t in (x, *bases)]  # what they are computed from is not asked for here
            y = _apply(inputs[1:], inputs[0], ctx.shift)
            wanted = [t for t, wants in zip(inputs, ctx.needs_input_grad[1:], strict=True) if wants]
            found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
            return None, *(next(found) if wants else None for wants in ctx.needs_input_grad[1:])
        grads: list[Tensor | None] = [None] * len(bases)
        for i in reversed(range(len(bases))):
            inner = torch.bmm(bases[i], grad)
            zeros = grad.new_zeros(()).expand(*grad.shape[:2], ctx.shift)
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
    x = x.flatten(2)
    shift = dilation * math.prod(others)
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *bases))
    # Compilers, function transforms and forward derivatives take the plain operators.
    if recorded and has_values(x, *bases):
        y = _Factors.apply(shift, x, *bases)
    else:
        y = _apply(bases, x, shift)
    return y.unflatten(2, (-1, *others))


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
