"""Block convolution orthogonal parametrization, built axis by axis from projectors.

Li, Haque, Anil, Lucas, Grosse, Jacobsen (2019), "Preventing gradient attenuation in Lipschitz constrained convolutional
networks". For a projector P of rank ⌊c/2⌋, `P + (I − P) z` is orthogonal at every frequency z of its axis; a kernel of
size k is a product of k − 1 of them along each axis and of an orthogonal matrix. The latter is `(I − 2P)(I − 2Q)`, which
reaches every rotation.

Note [Composition]
One factor applied to a kernel X takes two thin products, `B = M(MᵀX)`, for `Y = B + z (X − B)`. While X has a single
tap, factors are applied one by one. Later the factors of an axis are multiplied first: `A(z) = Σ_i A_i zⁱ` has `A(1) =
I`, so the last tap is I minus the others, and applying A takes n products for n factors:
`Y = Σ_{i<n} zⁱ Z_i + zⁿ (X − Σ Z_i)`, `Z_i = A_i X`, one big matrix product for all of them and all taps of X. Two
factors with projectors P, Q have `A_0 = PQ`, `A_1 = P + Q − 2PQ`.
A square 3×3 kernel of c channels takes 25 c³ flops (and 48 c³ backward).

Note [One function]
The whole composition is one autograd function of the bases: each step below stands beside its adjoint. The bookkeeping
of autograd would cost more than the arithmetic for c ≤ 128.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# ── steps and their adjoints; g groups, c channels, r = ⌊c/2⌋, t taps so far, m columns ──


def _reflect(m: Tensor, x: Tensor, coordinates: Tensor) -> Tensor:  # (g, c, r), (g, c, m), (g, r, m) → (g, c, m)
    """`(I − 2P) X` from the coordinates `MᵀX`."""
    return torch.baddbmm(x, m, coordinates, alpha=-2)


def _reflect_adjoint(m: Tensor, x: Tensor, coordinates: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    inner = m.mT @ grad
    return -2 * torch.baddbmm(grad @ coordinates.mT, x, inner.mT), torch.baddbmm(grad, m, inner, alpha=-2)


def _step(m: Tensor, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:  # (g, c, r), (g, c, *t, m) → (g, c, *t', m)
    """Multiply by `P + (I − P) z` along an axis; also the coordinates `MᵀX`, for the adjoint."""
    coordinates = m.mT @ x.flatten(2)
    projected = (m @ coordinates).view_as(x)
    rest = x - projected
    if x.shape[dim] == 1:
        return torch.cat((projected, rest), dim), coordinates
    edge = torch.zeros_like(x.narrow(dim, 0, 1))
    return torch.cat((projected, edge), dim) + torch.cat((edge, rest), dim), coordinates


def _step_adjoint(m: Tensor, x: Tensor, coordinates: Tensor, dim: int, grad: Tensor) -> tuple[Tensor, Tensor]:
    size = x.shape[dim]
    last = grad.narrow(dim, 1, size)
    difference = (grad.narrow(dim, 0, size) - last).flatten(2)
    inner = m.mT @ difference
    grad_m = torch.baddbmm(difference @ coordinates.mT, x.flatten(2), inner.mT)
    return grad_m, torch.baddbmm(last.flatten(2), m, inner).view_as(x)


def _pair(first: Tensor, second: Tensor) -> Tensor:  # two of (g, c, r) → (g, c, 2, c)
    """Taps `PQ` and `P + Q − 2PQ` of two factors."""
    product = (first @ (first.mT @ second)) @ second.mT
    total = torch.baddbmm(first @ first.mT, second, second.mT)
    return torch.stack((product, total - 2 * product), 2)


def _pair_adjoint(first: Tensor, second: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    grad_total = grad[:, :, 1]
    grad_product = grad[:, :, 0] - 2 * grad_total
    symmetric = grad_total + grad_total.mT
    inner = first.mT @ second
    right = grad_product @ second
    grad_inner = first.mT @ right
    grad_first = torch.baddbmm(torch.baddbmm(symmetric @ first, right, inner.mT), second, grad_inner.mT)
    left = torch.baddbmm(symmetric @ second, grad_product.mT, first @ inner)
    return grad_first, torch.baddbmm(left, first, grad_inner)


def _apply(taps: Tensor, x: Tensor, dim: int) -> Tensor:  # (g, c, n, c), (g, c, *t, m) → (g, c, *t', m)
    """Multiply by `A(z)` along an axis; `taps` are all but the last. Note [Composition]."""
    n, size = taps.shape[2], x.shape[dim]
    z = (taps.flatten(1, 2) @ x.flatten(2)).view(*taps.shape[:3], *x.shape[2:])
    last = x - z.sum(2)
    if size == 1:
        return torch.cat((z.squeeze(dim + 1).movedim(2, dim), last), dim)
    y = x.new_zeros(*x.shape[:dim], size + n, *x.shape[dim + 1 :])
    y.narrow(dim, n, size).copy_(last)
    for i, term in enumerate(z.unbind(2)):
        y.narrow(dim, i, size).add_(term)
    return y


def _apply_adjoint(taps: Tensor, x: Tensor, dim: int, grad: Tensor) -> tuple[Tensor, Tensor]:
    n, size = taps.shape[2], x.shape[dim]
    last = grad.narrow(dim, n, size)
    grad_z = torch.stack([grad.narrow(dim, i, size) - last for i in range(n)], 2).flatten(3).flatten(1, 2)
    grad_taps = grad_z @ x.flatten(2).mT
    grad_x = torch.baddbmm(last.flatten(2), taps.flatten(1, 2).mT, grad_z)
    return grad_taps.view_as(taps), grad_x.view_as(x)


def _all_taps(taps: Tensor) -> Tensor:  # (g, c, n, c) → (g, c, n+1, c), a kernel with c columns along one axis
    identity = torch.eye(taps.shape[-1], dtype=taps.dtype, device=taps.device)
    return torch.cat((taps, (identity - taps.sum(2))[:, :, None]), 2)


def _multiply(bases: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Taps of the product of all factors of an axis, pair by pair, and what the adjoint needs."""
    parts = [_pair(*bases[i : i + 2]) for i in range(0, len(bases) - 1, 2)]
    if len(bases) % 2:
        parts.append((bases[-1] @ bases[-1].mT)[:, :, None])
    products = [parts[-1]]
    for part in reversed(parts[:-1]):
        products.append(_apply(part, _all_taps(products[-1]), 2)[:, :, :-1])
    return products[-1], [*parts[:-1], *products]


def _multiply_adjoint(bases: list[Tensor], saved: list[Tensor], grad: Tensor) -> list[Tensor]:
    count = (len(bases) + 1) // 2
    parts, products = saved[: count - 1], saved[count - 1 :]
    grads: list[Tensor] = []
    for i, part in enumerate(parts):
        padded = F.pad(grad, (0, 0, 0, 1))
        grad_part, grad_all = _apply_adjoint(part, _all_taps(products[count - 2 - i]), 2, padded)
        grads += _pair_adjoint(bases[2 * i], bases[2 * i + 1], grad_part)
        grad = grad_all[:, :, :-1] - grad_all[:, :, -1:]
    if len(bases) % 2:
        symmetric = grad[:, :, 0] + grad[:, :, 0].mT
        return [*grads, symmetric @ bases[-1]]
    return [*grads, *_pair_adjoint(bases[-2], bases[-1], grad)]


# ── composition ──


def count_bases(sizes: tuple[int, ...], rotate: bool) -> int:
    """Number of projectors of a kernel with these sizes: k − 1 for each axis and two for the orthogonal matrix."""
    return sum(k - 1 for k in sizes) + 2 * rotate


class _Compose(torch.autograd.Function):
    """(bases, start) → kernel. The bases have orthonormal columns; the start is a kernel, or None for the rotation.

    The bases are those of the rotation (if any), then those of each axis; factors multiply in this order.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        bases: Tensor,  # (g, N, c, r)
        start: Tensor | None,  # (g, c, *t, m)
        counts: tuple[int, ...],  # factors along each axis
        columns: int,  # m
    ) -> tuple[Tensor, ...]:
        remaining = list(bases.unbind(1))
        saved: list[Tensor] = []
        if start is None:
            second, first, *remaining = remaining
            identity = torch.eye(first.shape[1], columns, dtype=bases.dtype, device=bases.device)
            x = _reflect(first, identity.expand(len(bases), -1, -1), first.mT[..., :columns])
            coordinates = second.mT @ x
            saved += [x, coordinates]
            x = _reflect(second, x, coordinates)
            x = x.view(*x.shape[:2], *(1,) * len(counts), columns)
        else:
            x = start.view_as(start)
        for axis in reversed(range(len(counts))):
            n, dim = counts[axis], axis + 2
            remaining, factors = remaining[: len(remaining) - n], remaining[len(remaining) - n :]
            if n == 0:
                continue
            if _one_by_one(x.shape[2:-1]):
                for m in reversed(factors):
                    y, coordinates = _step(m, x, dim)
                    saved += [x, coordinates]
                    x = y
            else:
                taps, kept = _multiply(factors)
                saved += [x, *kept]
                x = _apply(taps, x, dim)
        return x, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        bases, start, ctx.counts, ctx.columns = inputs
        ctx.rotate = start is None
        ctx.taps = (1,) * len(ctx.counts) if start is None else tuple(start.shape[2:-1])
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(bases, *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        bases, *saved = ctx.saved_tensors
        remaining = list(bases.unbind(1))
        rotation, remaining = (remaining[:2], remaining[2:]) if ctx.rotate else ([], remaining)
        grads: list[Tensor] = []  # of the bases
        grad = grad.contiguous()
        for axis, n in enumerate(ctx.counts):
            taps = (*ctx.taps[: axis + 1], *(ctx.taps[i] + ctx.counts[i] for i in range(axis + 1, len(ctx.counts))))
            factors, remaining = remaining[:n], remaining[n:]
            if n == 0:
                continue
            if _one_by_one(taps):
                for m in factors:
                    coordinates, x = saved.pop(), saved.pop()
                    grad_m, grad = _step_adjoint(m, x, coordinates, axis + 2, grad)
                    grads.append(grad_m)
            else:
                kept = saved[-_kept(n) :]
                del saved[-_kept(n) :]
                grad_taps, grad = _apply_adjoint(kept[-1], saved.pop(), axis + 2, grad)
                grads += _multiply_adjoint(factors, kept, grad_taps)
        if not ctx.rotate:
            return torch.stack(grads, 1), grad, None, None
        second, first = rotation
        coordinates, x = saved.pop(), saved.pop()
        grad_second, grad = _reflect_adjoint(second, x, coordinates, grad.flatten(2))
        # The first reflection acts on columns of the identity.
        inner = first.mT @ grad
        rows = F.pad(inner.mT, (0, 0, 0, first.shape[1] - ctx.columns))
        grad_first = -2 * torch.baddbmm(rows, grad, first[:, : ctx.columns])
        return torch.stack((grad_second, grad_first, *grads), 1), None, None, None


def _one_by_one(taps: tuple[int, ...]) -> bool:
    """Whether it takes fewer flops to apply the factors of an axis one by one than to multiply them first."""
    return all(t == 1 for t in taps)


def _kept(n: int) -> int:
    """How many tensors `_multiply` keeps for n factors."""
    return 2 * ((n + 1) // 2) - 1


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
    if start is not None and not any(counts):
        return start
    return _Compose.apply(bases, start, counts, bases.shape[-2] if columns is None else columns)[0]
