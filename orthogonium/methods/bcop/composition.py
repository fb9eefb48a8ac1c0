"""Block convolution orthogonal parametrization, built axis by axis from projectors.

Li, Haque, Anil, Lucas, Grosse, Jacobsen (2019), "Preventing gradient attenuation in Lipschitz constrained convolutional
networks". For a projector P of rank ⌊c/2⌋, `P + (I − P) z` is orthogonal at every frequency z of its axis; a kernel of
size k is a product of k − 1 of them along each axis and of an orthogonal matrix. The latter is `(I − 2P)(I − 2Q)`,
which reaches every rotation. A square 3×3 kernel of c channels takes 25 c³ flops, and 48 c³ backward.

The kernel is `(g, c, m, *taps)` from the start, the layout of a weight: each factor multiplies it from the left.

Note [Three taps]
For the kernels that most layers have, one pair of factors on each axis, a hand-written derivative takes the taps of all
pairs at once, each axis in one product: half as many operators in a training step (measured by `benchmarks.ablation`).
Dense taps take as many flops as thin products if the kernel is square, and up to 128 channels operators cost more than
their arithmetic.

With the taps `A_0 = PQ`, `A_1 = P + Q − 2PQ` of a pair (`P = MᵀM`, `Q = NᵀN`, `PQ = MᵀKₙ`, `Kₙ = (MNᵀ)N`) an axis maps
X to `(A_0X, A_1X, X − A_0X − A_1X)`. Its adjoint takes `(G_0, G_1, G_2)` to `G_2 + A_0ᵀH_0 + A_1ᵀH_1`,
`H_i = G_i − G_2`. The rotation is that of a pair, too: `(I − 2P)(I − 2Q) = I − 2A_1`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.linalg.evaluation import HandWritten, evaluate
from orthogonium.methods.bcop.factors import apply_to_kernel

_FEW = 128  # channels up to which operators cost more than their arithmetic


def count_bases(sizes: tuple[int, ...], rotate: bool) -> int:
    """Number of projectors of a kernel with these sizes: k − 1 for each axis, and two for the orthogonal matrix."""
    return sum(k - 1 for k in sizes) + 2 * rotate


def rotation(bases: Tensor, columns: int) -> Tensor:  # (g, 2, r, c) → (g, c, m)
    """The first columns of `(I − 2P)(I − 2Q)`."""
    m, n = bases.unbind(1)
    identity = torch.eye(m.shape[2], columns, dtype=m.dtype, device=m.device)
    x = torch.baddbmm(identity, n.mT, n[..., :columns], alpha=-2)
    return torch.baddbmm(x, m.mT, torch.bmm(m, x), alpha=-2)


def compose(
    bases: Tensor,  # (g, N, r, c), orthonormal rows
    sizes: tuple[int, ...],  # of the stride-1 kernel
    start: Tensor | None = None,  # (g, c, m, *t)
    columns: int | None = None,  # m, when the rotation is the start
) -> Tensor:  # (g, c, m, *(t + sizes - 1))
    """Kernel of `∏_axes ∏_i (P_i + (I − P_i) z_axis)`, applied to `start` or to the first columns of a rotation.

    All singular values are 1 at every frequency if those of `start` are. `N = count_bases(sizes, start is None)`: first
    the bases of the rotation, then those of each axis.
    """
    counts = tuple(k - 1 for k in sizes)
    columns = bases.shape[-1] if columns is None else columns
    channels = bases.shape[-1]
    # One channel has projectors of rank 0; a kernel of one tap is a rotation alone.
    suits = start is None and channels > 1 and {2} <= set(counts) <= {0, 2}
    if suits and (channels <= _FEW or 4 * columns > 3 * channels):  # Note [Three taps]
        return evaluate(_ThreeTaps, bases.contiguous(), columns, counts)
    return _by_factors(bases, counts, start, columns)


def _by_factors(bases: Tensor, counts: tuple[int, ...], start: Tensor | None, columns: int) -> Tensor:
    first, *axes = bases.split((bases.shape[1] - sum(counts), *counts), 1)
    if start is None:
        x = rotation(first, columns)
        x = x.reshape(*x.shape, *(1,) * len(counts))
    else:
        x = start.contiguous()
    for axis in reversed(range(len(counts))):
        if counts[axis]:
            x = apply_to_kernel(axes[axis], x, axis + 3)
    return x


class _ThreeTaps(HandWritten):
    """(bases, columns, factors of each axis) → kernel. Note [Three taps]."""

    @staticmethod
    def compute(
        bases: Tensor, columns: int, counts: tuple[int, ...]
    ) -> tuple[Tensor, list[Tensor]]:  # (g, N, r, c) → (g, c, m, *k)
        """The kernel; MNᵀ, the coordinates Kₙ, the taps, and what each axis was applied to."""
        g, n, r, c = bases.shape
        m, below = bases.view(-1, 2, r, c).unbind(1)
        u = bases.view(-1, 2 * r, c)
        multiply = _product(c)
        overlap = multiply(m, below.mT)
        inner = multiply(overlap, below)
        product = multiply(m.mT, inner)
        taps = torch.cat((product, multiply(u.mT, u).sub_(product, alpha=2)), 1).view(g, n // 2, 2 * c, c)
        x = torch.eye(c, columns, dtype=bases.dtype, device=bases.device).sub(taps[:, 0, c:, :columns], alpha=2)
        kernel = x.new_empty(g, c, columns, *(k + 1 for k in counts))
        steps = []
        for pair in reversed(range(1, n // 2)):  # the last axis is applied first; its taps come last
            steps.append(x)
            first, second = torch.bmm(taps[:, pair], x).chunk(2, 1)
            terms = first, second, (x - first).sub_(second)
            if pair > 1:
                x = torch.stack(terms, 2).view(g, c, -1)
        # The taps of all axes go behind the columns.
        torch.stack([z.reshape(g, c, -1, columns).mT for z in terms], 3, out=kernel.view(g, c, columns, 3, -1))
        return kernel, [overlap, inner, taps, *steps]

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor, None, None]:
        """From the outermost axis to the rotation, then from all taps to the bases."""
        bases, columns = inputs[:2]
        overlap, inner, taps, *steps = saved
        g, n, r, c = bases.shape
        grad_taps = torch.zeros_like(taps)
        grad = grad.reshape(g, c, columns, -1).mT
        for pair in range(1, n // 2):
            x = steps.pop()
            parts = grad.view(g, c, 3, -1, columns).transpose(1, 2)
            last = parts[:, 2:].contiguous()
            above = torch.sub(parts[:, :2], last, out=grad.new_empty(g, 2, *last.shape[2:])).view(g, 2 * c, -1)
            torch.bmm(above, x.mT, out=grad_taps[:, pair])
            grad = torch.baddbmm(last.view(g, c, -1), taps[:, pair].mT, above)
        grad_taps[:, 0, c:, :columns] = grad.reshape(g, c, columns).mul(-2)
        # A_0 = PQ and A_1 = P + Q − 2PQ
        multiply = _product(c)
        of_product, of_sum = grad_taps.view(-1, 2, c, c).unbind(1)
        of_product = of_product.sub(of_sum, alpha=2)
        m, below = bases.view(-1, 2, r, c).unbind(1)
        of_inner = multiply(m, of_product)
        of_overlap = multiply(of_inner, below.mT)
        result = multiply(bases.view(-1, 2 * r, c), of_sum + of_sum.mT).view(-1, 2, r, c)
        result[:, 0] += multiply(inner, of_product.mT).add_(multiply(of_overlap, below))
        result[:, 1] += multiply(overlap.mT, of_inner).add_(multiply(of_overlap.mT, m))
        return result.view(bases.shape), None, None

    @classmethod
    def plain(cls, bases: Tensor, columns: int, counts: tuple[int, ...]) -> Tensor:
        """By single factors."""
        return _by_factors(bases, counts, None, columns)


def _product(channels: int) -> Callable[[Tensor, Tensor], Tensor]:
    return torch.bmm if channels < _FEW else _multiply


def _multiply(a: Tensor, b: Tensor) -> Tensor:  # (n, i, j), (n, j, k) → (n, i, k)
    """`torch.bmm`, whose threads each take a whole matrix: three matrices would leave one of two threads idle.

    So the remaining matrices, fewer than threads, are multiplied one by one, each by all threads.
    """
    count = len(a)
    left = count % torch.get_num_threads()
    if not left or a.device.type != "cpu":
        return torch.bmm(a, b)
    c = a.new_empty(count, a.shape[1], b.shape[2])
    whole = count - left
    torch.bmm(a[:whole], b[:whole], out=c[:whole])
    for i in range(whole, count):
        torch.mm(a[i], b[i], out=c[i])
    return c
