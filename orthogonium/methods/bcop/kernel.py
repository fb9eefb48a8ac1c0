"""Block convolution orthogonal parametrization, built axis by axis from projectors.

Li, Haque, Anil, Lucas, Grosse, Jacobsen (2019), "Preventing gradient attenuation in Lipschitz constrained convolutional
networks". For a projector P of rank ⌊c/2⌋, `P + (I − P) z` is orthogonal at every frequency z of its axis; a kernel of
size k is a product of k − 1 of them along each axis and of an orthogonal matrix. The latter is `(I − 2P)(I − 2Q)`, which
reaches every rotation. A square 3×3 kernel of c channels takes 25 c³ flops, and 48 c³ backward.

Note [One function]
The whole composition is one node of autograd, a function of the bases: the bookkeeping of autograd would cost more than the
arithmetic for c ≤ 128. The kernel has the layout of a weight from the start, `(g, c, m, *taps)`: factors multiply from the
left, whatever follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
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
    project,
    project_adjoint,
    project_pair,
    project_pair_adjoint,
    shrink,
)
from orthogonium.methods.bcop.pairs import compose_pairs

_FEW = 128  # channels: Note [Few channels] of `pairs.py`

# ── the orthogonal matrix ──


def _rotation(u: Tensor, columns: int) -> tuple[Tensor, list[Tensor]]:  # (g, 2r, c) → (g, c, m)
    """The first columns of `(I − 2P)(I − 2Q)`."""
    m, n = u.chunk(2, 1)
    identity = torch.eye(u.shape[2], columns, dtype=u.dtype, device=u.device)
    x = torch.baddbmm(identity, n.mT, n[..., :columns], alpha=-2)
    coordinates = torch.bmm(m, x)
    return torch.baddbmm(x, m.mT, coordinates, alpha=-2), [x, coordinates]


def _rotation_adjoint(u: Tensor, x: Tensor, coordinates: Tensor, grad: Tensor) -> Tensor:
    m, n = u.chunk(2, 1)
    inner = torch.bmm(m, grad)
    grad_m = torch.baddbmm(torch.bmm(coordinates, grad.mT), inner, x.mT)
    grad = torch.baddbmm(grad, m.mT, inner, alpha=-2)
    columns = grad.shape[-1]
    grad_n = torch.bmm(n[..., :columns], grad.mT)
    grad_n[..., :columns].add_(torch.bmm(n, grad))
    return torch.cat((grad_m, grad_n), 1).mul_(-2)


# ── one axis: pairs of factors, and a single one where their number is odd; the last is applied first ──
# What an adjoint needs is pushed on a stack.


def _pop(saved: list[Tensor], count: int) -> list[Tensor]:
    return [saved.pop() for _ in range(count)][::-1]


def _groups(bases: Tensor) -> list[tuple[int, Tensor]]:  # (g, n, r, c) → pairs (2, (g, 2r, c)), maybe (1, (g, r, c))
    return [(u.shape[1], u.flatten(1, 2)) for u in bases.split(2, 1)]


def _thin(bases: Tensor, x: Tensor, dim: int, saved: list[Tensor]) -> Tensor:
    for count, u in reversed(_groups(bases)):
        flat = x.flatten(2)
        terms, kept = (project if count == 1 else project_pair)(u, flat)
        saved += [flat, *kept]
        x = assemble(terms, x, dim)
    return x


def _thin_adjoint(bases: Tensor, saved: list[Tensor], grad: Tensor, dim: int) -> tuple[list[Tensor], Tensor]:
    grads: list[Tensor] = []
    for count, u in _groups(bases):
        shape = shrink(grad, dim, count)
        terms, last = assemble_adjoint(grad, count, dim)
        if count == 1:
            x, coordinates = _pop(saved, 2)
            grads_u, grad = project_adjoint(u, x, coordinates, terms, last)
        else:
            x, overlap, coordinates, inner = _pop(saved, 4)
            grads_u, grad = project_pair_adjoint(u, x, overlap, coordinates, inner, terms, last)
        grads += grads_u
        grad = grad.reshape(shape)
    return grads, grad


def _axis_taps(bases: Tensor, saved: list[Tensor]) -> Tensor:  # (g, n, r, c) → (g, n, c, c)
    """All taps but the last one of the product of the factors."""
    parts: list[Tensor] = []
    for count, u in _groups(bases):
        taps, kept = (torch.bmm(u.mT, u)[:, None], []) if count == 1 else pair_taps(u)
        parts.append(taps)
        saved += kept
    taps, kernels = multiply(parts)
    saved += [*parts[:-1], *kernels]
    return taps


def _axis_taps_adjoint(bases: Tensor, saved: list[Tensor], grad: Tensor) -> list[Tensor]:
    groups = _groups(bases)
    kernels = _pop(saved, len(groups) - 1)
    parts = _pop(saved, len(groups) - 1)
    grads: list[Tensor] = []
    for (count, u), grad_part in zip(reversed(groups), reversed(multiply_adjoint(parts, kernels, grad)), strict=True):
        if count == 1:
            grads.insert(0, torch.bmm(u, grad_part[:, 0] + grad_part[:, 0].mT))
        else:
            overlap, image = _pop(saved, 2)
            grads = [*pair_taps_adjoint(u, overlap, image, grad_part), *grads]
    return grads


def _dense(bases: Tensor, x: Tensor, dim: int, saved: list[Tensor]) -> Tensor:
    taps, flat = _axis_taps(bases, saved), x.flatten(2)
    saved += [flat, taps]
    return assemble(apply_taps(taps, flat), x, dim)


def _dense_adjoint(bases: Tensor, saved: list[Tensor], grad: Tensor, dim: int) -> tuple[list[Tensor], Tensor]:
    shape = shrink(grad, dim, bases.shape[1])
    flat, taps = _pop(saved, 2)
    terms, last = assemble_adjoint(grad, bases.shape[1], dim)
    grad_taps, grad = apply_taps_adjoint(taps, flat, terms, last)
    return _axis_taps_adjoint(bases, saved, grad_taps), grad.reshape(shape)


# ── composition ──


def count_bases(sizes: tuple[int, ...], rotate: bool) -> int:
    """Number of projectors of a kernel with these sizes: k − 1 for each axis and two for the orthogonal matrix."""
    return sum(k - 1 for k in sizes) + 2 * rotate


class _Compose(HandWritten):
    """(bases, start, factors along each axis, columns) → kernel.

    The bases have orthonormal rows; the start is a kernel, or None for the rotation. The bases are those of the rotation
    (if any), then those of each axis; factors multiply in this order.
    """

    @staticmethod
    def compute(
        bases: Tensor,  # (g, N, r, c)
        start: Tensor | None,  # (g, c, m, *t)
        counts: tuple[int, ...],
        columns: int,  # m
    ) -> tuple[Tensor, list[Tensor]]:
        saved: list[Tensor] = []
        axes = bases.split((bases.shape[1] - sum(counts), *counts), 1)
        if start is None:
            x, kept = _rotation(axes[0].flatten(1, 2), columns)
            saved += kept
            x = x.reshape(*x.shape, *(1,) * len(counts))
        else:
            x = start.contiguous()
        for axis in reversed(range(len(counts))):
            if counts[axis]:
                x = (_thin if _is_thin(axes[axis + 1], x) else _dense)(axes[axis + 1], x, axis + 3, saved)
        return x, saved

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None]:
        bases, start, counts, _ = inputs
        rotation, *axes = bases.split((bases.shape[1] - sum(counts), *counts), 1)
        grads: list[Tensor] = []  # of the bases
        for axis, (n, u) in enumerate(zip(counts, axes, strict=True)):
            if n:
                before = grad.narrow(axis + 3, 0, grad.shape[axis + 3] - n)
                adjoint = _thin_adjoint if _is_thin(u, before) else _dense_adjoint
                grads_u, grad = adjoint(u, saved, grad, axis + 3)
                grads += grads_u
        if start is None:
            x, coordinates = saved
            grads.insert(0, _rotation_adjoint(rotation.flatten(1, 2), x, coordinates, grad.flatten(2)))
        return torch.cat(grads, 1).reshape(bases.shape), None if start is None else grad, None, None


def _is_thin(bases: Tensor, x: Tensor) -> bool:
    """Note [Thin or dense] of `factors.py`; a single projector is always thin."""
    return bases.shape[1] == 1 or math.prod(x.shape[2:]) <= 2 * bases.shape[3]


def compose(
    bases: Tensor,  # (g, N, r, c), orthonormal rows
    sizes: tuple[int, ...],  # of the stride-1 kernel
    start: Tensor | None = None,  # (g, c, m, *t)
    columns: int | None = None,  # m, when the rotation is the start
) -> Tensor:  # (g, c, m, *(t + sizes - 1))
    """Kernel of `∏_axes ∏_i (P_i + (I − P_i) z_axis)`, applied to `start` or to the first columns of a rotation.

    All singular values are 1 at every frequency if those of `start` are. `N = count_bases(sizes, start is None)`.
    """
    counts = tuple(k - 1 for k in sizes)
    if start is not None and not any(counts):
        return start
    channels = bases.shape[-1]
    columns = channels if columns is None else columns
    if start is None and channels <= _FEW and not any(n % 2 for n in counts):
        return compose_pairs(bases, counts, columns)
    return evaluate(_Compose, bases, start, counts, columns)
