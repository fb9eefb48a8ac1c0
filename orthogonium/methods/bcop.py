"""Block convolution orthogonal parametrization, built axis by axis from projectors.

Li, Haque, Anil, Lucas, Grosse, Jacobsen (2019), "Preventing gradient attenuation in Lipschitz constrained
convolutional networks". For a projector P of rank ⌊c/2⌋, `P + (I − P) z` is orthogonal at every frequency z of its
axis; a kernel of size k is a product of k − 1 of them along each axis and of an orthogonal matrix.

Note [Composition]
The factors of one axis multiply to `A(z) = Σ_i A_i zⁱ` with `A(1) = I`. So the last tap is I minus the others, and
applying A to a kernel X takes n products for n factors, one big matrix product for all of them and for all taps of X:
`Y = Σ_{i<n} zⁱ Z_i + zⁿ (X − Σ Z_i)`, `Z_i = A_i X`. Two factors with projectors P, Q have `A_0 = PQ`, `A_1 = P + Q −
2PQ`. The orthogonal matrix is `(I − 2P)(I − 2Q) = I − 2(P + Q) + 4PQ`, which reaches every rotation. So only sums
`S = P + Q` and products `T = PQ` of pairs are ever needed, all of them from one batch of bases.
A square 3×3 kernel of c channels takes 28 c³ flops (and 52 c³ backward).

Note [One function]
The whole composition is one autograd function of the bases: each step below stands beside its adjoint. The bookkeeping
of autograd would cost more than the arithmetic for c ≤ 128.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# ── steps and their adjoints; g groups, c channels, r = ⌊c/2⌋, t taps so far, m columns ──


def _pairs(m: Tensor) -> tuple[Tensor, Tensor]:  # (g, p, 2, c, r) → two of (g, p, c, c)
    """`S = P + Q` and `T = PQ` of pairs of projectors `P = M₁M₁ᵀ`, `Q = M₂M₂ᵀ`."""
    first, second = m.unbind(2)
    p, q = (m @ m.mT).unbind(2)
    return p + q, (first @ (first.mT @ second)) @ second.mT


def _pairs_adjoint(m: Tensor, grad_s: Tensor, grad_t: Tensor) -> Tensor:
    first, second = m.unbind(2)
    inner = first.mT @ second
    t_second = grad_t @ second
    grad_inner = first.mT @ t_second
    symmetric = grad_s + grad_s.mT
    grad_first = symmetric @ first + t_second @ inner.mT + second @ grad_inner.mT
    grad_second = symmetric @ second + grad_t.mT @ (first @ inner) + first @ grad_inner
    return torch.stack((grad_first, grad_second), 2)


def _apply(taps: Tensor, x: Tensor, axis: int) -> Tensor:  # (g, c, n, c), (g, c, *t, m) → (g, c, *t', m)
    """Multiply by `A(z)` along an axis; `taps` are all but the last. Note [Composition]."""
    n, dim, size = taps.shape[2], axis + 2, x.shape[axis + 2]
    z = (taps.flatten(1, 2) @ x.flatten(2)).unflatten(1, (-1, n)).view(*taps.shape[:3], *x.shape[2:])
    last = x - z.sum(2)
    if size == 1:
        return torch.cat((z.squeeze(dim + 1).movedim(2, dim), last), dim)
    y = x.new_zeros(*x.shape[:dim], size + n, *x.shape[dim + 1 :])
    y.narrow(dim, n, size).copy_(last)
    for i, term in enumerate(z.unbind(2)):
        y.narrow(dim, i, size).add_(term)
    return y


def _apply_adjoint(taps: Tensor, x: Tensor, axis: int, grad: Tensor) -> tuple[Tensor, Tensor]:
    n, dim, size = taps.shape[2], axis + 2, x.shape[axis + 2]
    last = grad.narrow(dim, n, size)
    grad_z = torch.stack([grad.narrow(dim, i, size) - last for i in range(n)], 2).flatten(3).flatten(1, 2)
    grad_taps = grad_z @ x.flatten(2).mT
    grad_x = last + (taps.flatten(1, 2).mT @ grad_z).view_as(x)
    return grad_taps.view_as(taps), grad_x


def _all_taps(taps: Tensor) -> Tensor:  # (g, c, n, c) → (g, c, n+1, c), a kernel with c columns along one axis
    identity = torch.eye(taps.shape[-1], dtype=taps.dtype, device=taps.device)
    return torch.cat((taps, (identity - taps.sum(2))[:, :, None]), 2)


# ── composition ──


def count_bases(sizes: tuple[int, ...], rotate: bool) -> int:
    """Number of projectors of a kernel with these sizes: k − 1 for each axis and two for the orthogonal matrix."""
    return sum(k - 1 for k in sizes) + 2 * rotate


def _segments(counts: tuple[int, ...], rotate: bool) -> tuple[int, list[list[tuple[str, int]]]]:
    """Which pair or single projector serves which axis: the number of pairs, and per axis a list of (kind, index).

    The bases are ordered: the pair of the orthogonal matrix (if any), the pairs of all axes, then the single
    projectors of axes with an odd number of factors.
    """
    pairs, singles, axes = int(rotate), 0, []
    for n in counts:
        segments = [("pair", pairs + i) for i in range(n // 2)]
        pairs += n // 2
        if n % 2:
            segments.append(("single", singles))
            singles += 1
        axes.append(segments)
    return pairs, axes


class _Compose(torch.autograd.Function):
    """(bases, start) → kernel. The bases have orthonormal columns; the start is a kernel, or None for the rotation."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        bases: Tensor,  # (g, N, c, r)
        start: Tensor | None,  # (g, c, *t, m)
        counts: tuple[int, ...],  # factors along each axis
        columns: int,  # m
    ) -> tuple[Tensor, ...]:
        pairs, axes = _segments(counts, start is None)
        groups, _, c, r = bases.shape
        s, t = _pairs(bases[:, : 2 * pairs].view(groups, pairs, 2, c, r))
        single = bases[:, 2 * pairs :]
        p = single @ single.mT
        pair_taps = torch.stack((t, s - 2 * t), 3)  # (g, p, c, 2, c)

        if start is None:
            identity = torch.eye(c, columns, dtype=bases.dtype, device=bases.device)
            x = identity - 2 * pair_taps[:, 0, :, 1, :columns]  # I − 2S + 4T
            x = x.view(groups, c, *(1,) * len(counts), columns)
        else:
            x = start.view_as(start)
        saved = []
        for axis in reversed(range(len(counts))):
            if not axes[axis]:
                continue
            parts = [pair_taps[:, i] if kind == "pair" else p[:, i, :, None] for kind, i in axes[axis]]
            taps = parts[-1]
            saved.append(taps)
            for part in reversed(parts[:-1]):
                taps = _apply(part, _all_taps(taps), 0)[:, :, :-1]
                saved += [part, taps]
            saved.append(x)
            x = _apply(taps, x, axis)
        return x, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        bases, start, ctx.counts, ctx.columns = inputs
        ctx.rotate = start is None
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(bases, *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        bases, *saved = ctx.saved_tensors
        pairs, axes = _segments(ctx.counts, ctx.rotate)
        groups, _, c, r = bases.shape
        grad = grad.contiguous()
        grad_pairs: list[Tensor | None] = [None] * pairs  # of the taps (T, S − 2T)
        grad_singles: list[Tensor] = []

        for axis, segments in enumerate(axes):
            if not segments:
                continue
            x = saved.pop()
            grads = []
            if len(segments) == 1:
                grad_taps, grad = _apply_adjoint(saved.pop(), x, axis, grad)
            else:
                grad_taps, grad = _apply_adjoint(saved[-1], x, axis, grad)
                for _segment in segments[:-1]:
                    saved.pop()
                    part, taps = saved.pop(), saved[-1]
                    grad_all = torch.nn.functional.pad(grad_taps, (0, 0, 0, 1))
                    grad_part, grad_all = _apply_adjoint(part, _all_taps(taps), 0, grad_all)
                    grads.append(grad_part)
                    grad_taps = grad_all[:, :, :-1] - grad_all[:, :, -1:]
                saved.pop()
            grads.append(grad_taps)
            for (kind, index), part in zip(segments, grads, strict=True):
                if kind == "pair":
                    grad_pairs[index] = part
                else:
                    grad_singles.append(part[:, :, 0])

        if ctx.rotate:  # the start I − 2S + 4T is I − 2·A₁ in terms of the taps A₀ = T, A₁ = S − 2T
            grad_x = torch.nn.functional.pad(grad.reshape(groups, c, ctx.columns), (0, c - ctx.columns))
            grad_pairs[0] = torch.stack((torch.zeros_like(grad_x), -2 * grad_x), 2)
        grad_bases = []
        if pairs:
            stacked = torch.stack([g for g in grad_pairs if g is not None], 1)  # (g, p, c, 2, c)
            grad_t, grad_s = stacked[:, :, :, 0] - 2 * stacked[:, :, :, 1], stacked[:, :, :, 1]
            m = bases[:, : 2 * pairs].view(groups, pairs, 2, c, r)
            grad_bases.append(_pairs_adjoint(m, grad_s, grad_t).flatten(1, 2))
        if grad_singles:
            grad_p = torch.stack(grad_singles, 1)
            grad_bases.append((grad_p + grad_p.mT) @ bases[:, 2 * pairs :])
        grad_start = None if ctx.rotate else grad
        return torch.cat(grad_bases, 1), grad_start, None, None


def compose(
    bases: Tensor,  # (g, N, c, r), orthonormal columns
    sizes: tuple[int, ...],  # of the stride-1 kernel
    start: Tensor | None = None,  # (g, c, *t, m)
    columns: int | None = None,  # m, when the rotation is the start
) -> Tensor:  # (g, c, *(t + sizes - 1), m)
    """Kernel of `∏_axes ∏_i (P_i + (I − P_i) z_axis)`, applied to `start` or to the first columns of a rotation.

    All singular values are 1 at every frequency if those of `start` are. `N = count_bases(sizes, start is None)`.
    """
    counts = tuple(k - 1 for k in sizes)
    c = bases.shape[-2]
    if start is not None and not any(counts):
        return start
    return _Compose.apply(bases, start, counts, c if columns is None else columns)[0]
