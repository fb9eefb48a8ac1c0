"""Kernels of size 3, one pair of factors on each axis, with a first derivative by hand.

What `factors.py` does, for the kernels that most layers have: the taps of all pairs at once, each axis in one product,
and half as many operators in a training step (`benchmarks.ablation` has the gain). Dense taps take the flops of thin
products where the kernel is square, and up to 128 channels operators cost more than their arithmetic.

With the taps `A_0 = PQ`, `A_1 = P + Q − 2PQ` of a pair (`P = MᵀM`, `Q = NᵀN`, `PQ = MᵀKₙ`, `Kₙ = (MNᵀ)N`) an axis maps
X to `(A_0X, A_1X, X − A_0X − A_1X)`. Its adjoint takes `(G_0, G_1, G_2)` to `G_2 + A_0ᵀH_0 + A_1ᵀH_1`,
`H_i = G_i − G_2`. The rotation is that of a pair, too: `(I − 2P)(I − 2Q) = I − 2A_1`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.linalg.derivatives import HandWritten

_FEW = 256  # channels: beyond, thin products are faster


def applies(channels: int, counts: tuple[int, ...]) -> bool:
    """Whether a kernel that starts from a rotation is of this kind."""
    return set(counts) <= {0, 2} and 1 < channels <= _FEW  # one channel has projectors of rank 0


class ThreeTaps(HandWritten):
    """(bases, columns, factors of each axis, the same by operators of torch) → kernel, for `compose`."""

    @staticmethod
    def compute(
        bases: Tensor, columns: int, counts: tuple[int, ...], otherwise: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[Tensor]]:  # (g, N, r, c) → (g, c, m, *k)
        """The kernel; the coordinates Kₙ, the taps, and what each axis was applied to."""
        g, n, r, c = bases.shape
        m, below = bases.view(-1, 2, r, c).unbind(1)
        u = bases.view(-1, 2 * r, c)
        inner = torch.bmm(torch.bmm(m, below.mT), below)
        product = torch.bmm(m.mT, inner)
        taps = torch.cat((product, torch.bmm(u.mT, u).sub_(product, alpha=2)), 1).view(g, n // 2, 2 * c, c)
        x = torch.eye(c, columns, dtype=bases.dtype, device=bases.device).sub(taps[:, 0, c:, :columns], alpha=2)
        steps = [x]
        for pair in range(n // 2 - 1, 0, -1):  # the last axis is applied first; its taps stand last
            first, second = torch.bmm(taps[:, pair], x).chunk(2, 1)
            x = torch.stack((first, second, (x - first).sub_(second)), 2).flatten(2)
            steps.append(x)
        sizes = [k + 1 for k in counts]
        return x.view(g, c, *sizes, columns).movedim(-1, 2).contiguous(), [inner, taps, *steps[:-1]]

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor, None, None, None]:
        """From the outermost axis to the rotation, then from all taps to the bases."""
        bases, columns = inputs[:2]
        inner, taps, *steps = saved
        g, n, r, c = bases.shape
        grad_taps = torch.zeros_like(taps)
        grad = grad.movedim(2, -1).reshape(g, c, -1)
        for pair in range(1, n // 2):
            x = steps.pop()
            parts = grad.view(g, c, 3, -1).movedim(2, 1)
            above = torch.sub(parts[:, :2], parts[:, 2:], out=grad.new_empty(g, 2, c, x.shape[2])).flatten(1, 2)
            torch.bmm(above, x.mT, out=grad_taps[:, pair])
            grad = torch.baddbmm(parts[:, 2], taps[:, pair].mT, above)
        grad_taps[:, 0, c:, :columns] = grad.mul(-2)
        # A_0 = PQ and A_1 = P + Q − 2PQ
        of_product, of_sum = grad_taps.view(-1, 2, c, c).unbind(1)
        of_product = of_product.sub(of_sum, alpha=2)
        m, below = bases.view(-1, 2, r, c).unbind(1)
        of_inner = torch.bmm(m, of_product)
        of_overlap = torch.bmm(of_inner, below.mT)
        result = torch.bmm(bases.view(-1, 2 * r, c), of_sum + of_sum.mT).view(-1, 2, r, c)
        result[:, 0] += torch.bmm(inner, of_product.mT).baddbmm_(of_overlap, below)
        overlap = torch.bmm(m, below.mT)
        result[:, 1] += torch.bmm(overlap.mT, of_inner).baddbmm_(of_overlap.mT, m)
        return result.view(bases.shape), None, None, None

    @classmethod
    def plain(cls, bases: Tensor, columns: int, counts: Any, otherwise: Callable[[Tensor], Tensor]) -> Tensor:
        """By single factors."""
        return otherwise(bases)
