"""Kernels of few channels: the taps of all pairs of factors in one batch.

Note [Few channels]
Up to 128 channels, operators cost more than their arithmetic. Where factors come in pairs on every axis (odd kernel sizes)
the taps `A_0 = PQ` and `A_1 = P + Q − 2PQ` of all pairs are computed at once; the rotation is that of a pair, too:
`(I − 2P)(I − 2Q) = I − 2A_1`. That is half the products of `bcop.py`, with 7% more flops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.linalg.derivatives import HandWritten, evaluate
from orthogonium.methods.bcop.factors import (
    apply_taps,
    apply_taps_adjoint,
    assemble,
    assemble_adjoint,
    multiply,
    multiply_adjoint,
    pair_taps,
    pair_taps_adjoint,
    shrink,
)


class _ComposePairs(HandWritten):
    """(bases, factors along each axis, columns) → kernel."""

    @staticmethod
    def compute(
        bases: Tensor,  # (g, n, r, c)
        counts: tuple[int, ...],
        columns: int,  # m
    ) -> tuple[Tensor, list[Tensor]]:
        g, n, r, c = bases.shape
        taps, kept = pair_taps(bases.reshape(g * n // 2, 2 * r, c))
        rotation, *axes = taps.unflatten(0, (g, n // 2)).split((1, *(count // 2 for count in counts)), 1)
        identity = torch.eye(c, columns, dtype=bases.dtype, device=bases.device)
        x = torch.sub(identity, rotation[:, 0, 1, :, :columns], alpha=2).reshape(g, c, columns, *(1,) * len(counts))
        saved: list[Tensor] = []
        for axis in reversed(range(len(counts))):
            if counts[axis]:
                parts = list(axes[axis].unbind(1))
                product, kernels = multiply(parts)
                flat = x.flatten(2)
                saved += [flat, *([*kernels, product] if kernels else [])]
                x = assemble(apply_taps(product, flat), x, axis + 3)
        return x, [taps, *kept, *saved]

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor, None, None]:
        bases, counts, _ = inputs
        taps, overlap, image, *saved = saved
        g, n, r, c = bases.shape
        _, *axes = taps.unflatten(0, (g, n // 2)).split((1, *(count // 2 for count in counts)), 1)
        grads: list[Tensor] = []  # of the taps of each pair
        for axis, count in enumerate(counts):
            if not count:
                continue
            *parts, product = axes[axis].unbind(1)
            kernels: list[Tensor] = []
            if parts:
                product = saved.pop()
                kernels = [saved.pop() for _ in parts][::-1]
            shape = shrink(grad, axis + 3, count)
            terms, last = assemble_adjoint(grad, count, axis + 3)
            grad_product, grad = apply_taps_adjoint(product, saved.pop(), terms, last)
            grads += multiply_adjoint(parts, kernels, grad_product)
            grad = grad.reshape(shape)
        rotation = F.pad(grad.flatten(2).mul_(-2)[:, None], (0, c - grad.shape[2], 0, 0, 1, 0))  # zeros for A_0
        grad_taps = torch.stack((rotation, *grads), 1).flatten(0, 1)
        grad_u = pair_taps_adjoint(bases.reshape(g * n // 2, 2 * r, c), overlap, image, grad_taps)
        return torch.cat(grad_u, 1).reshape(bases.shape), None, None


def compose_pairs(bases: Tensor, counts: tuple[int, ...], columns: int) -> Tensor:  # (g, n, r, c) → (g, c, m, *taps)
    """The first columns of a rotation, times the factors of the last axis, and so on; an even number on each."""
    return evaluate(_ComposePairs, bases, counts, columns)
