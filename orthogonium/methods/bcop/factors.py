"""Orthogonal factors `P + (I − P) z` along one axis of a kernel: each step beside its adjoint.

A projector is given by a basis M with orthonormal rows, `P = MᵀM`; pairs of them stand one above the other in
`U = [M; N]`. Shapes: g groups, c channels, r rows of a basis, m columns of the kernel, *t its taps so far, T = m·∏t.

Note [Terms]
A product `A(z) = Σ_i A_i zⁱ` of n factors has `A(1) = I`, so the last tap is I minus the others: n terms `Z_i = A_i X`
give `Y = Σ_{i<n} zⁱ Z_i + zⁿ (X − Σ Z_i)`. Two factors with projectors P, Q have `A_0 = PQ`, `A_1 = P + Q − 2PQ`.

Note [Thin or dense]
The terms of a pair come from the coordinates `UX`, in 6 c²T flops (12 backward), or from the taps `A_0`, `A_1`
themselves, in 4 c³ + 4 c²T (6 c³ + 8 c²T backward): thin products are cheaper for T ≤ 2c. Dense, one product applies any
number of factors.
"""

from __future__ import annotations

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

# ── terms to kernel ──


def assemble(terms: list[Tensor], x: Tensor, dim: int) -> Tensor:  # n of (g, c, T), (g, c, m, *t) → (g, c, m, *t')
    """`Σ_{i<n} zⁱ Z_i + zⁿ (X − Σ Z_i)` along an axis."""
    n, size = len(terms), x.shape[dim]
    terms = [z.reshape(x.shape) for z in terms]
    last = reduce(torch.sub, terms, x)
    if size == 1:
        return torch.cat((*terms, last), dim)
    y = F.pad(last, (0, 0) * (x.dim() - 1 - dim) + (n, 0))
    for i, z in enumerate(terms):
        y.narrow(dim, i, size).add_(z)
    return y


def assemble_adjoint(grad: Tensor, n: int, dim: int) -> tuple[Tensor, Tensor]:  # → (g, n, c, T), (g, c, T)
    """Gradients of the terms, and that of X but for what comes through the terms."""
    size = grad.shape[dim] - n
    windows = grad.unfold(dim, size, 1).movedim((dim, -1), (1, dim + 1))  # n + 1 shifts of the taps of X
    windows = windows.clone(memory_format=torch.contiguous_format)
    terms, last = windows[:, :n], windows[:, n]
    terms.sub_(windows[:, n:])
    return terms.flatten(3), last.flatten(2)


def shrink(grad: Tensor, dim: int, n: int) -> list[int]:
    """Shape of a kernel before n factors along an axis."""
    return [size - n * (i == dim) for i, size in enumerate(grad.shape)]


# ── thin: one projector, two projectors ──


def project(m: Tensor, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:  # (g, r, c), (g, c, T)
    """The term `PX`, and the coordinates `MX` for the adjoint."""
    coordinates = torch.bmm(m, x)
    return [torch.bmm(m.mT, coordinates)], [coordinates]


def project_adjoint(
    m: Tensor, x: Tensor, coordinates: Tensor, terms: Tensor, last: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the basis and of X."""
    grad = terms[:, 0]
    inner = torch.bmm(m, grad)
    return [torch.baddbmm(torch.bmm(coordinates, grad.mT), inner, x.mT)], torch.baddbmm(last, m.mT, inner)


def project_pair(u: Tensor, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:  # (g, 2r, c), (g, c, T)
    """The terms `PQX = Mᵀ(MNᵀ)NX` and `(P + Q − 2PQ)X = Uᵀ[MX − 2(MNᵀ)NX; NX]`, and what the adjoint needs."""
    m, n = u.chunk(2, 1)
    overlap = torch.bmm(m, n.mT)
    above, below = torch.bmm(u, x).chunk(2, 1)
    inner = torch.bmm(overlap, below)
    coordinates = torch.cat((torch.sub(above, inner, alpha=2), below), 1)
    return [torch.bmm(m.mT, inner), torch.bmm(u.mT, coordinates)], [overlap, coordinates, inner]


def project_pair_adjoint(
    u: Tensor, x: Tensor, overlap: Tensor, coordinates: Tensor, inner: Tensor, terms: Tensor, last: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the bases and of X."""
    m, n = u.chunk(2, 1)
    first, second = terms.unbind(1)
    above, below = torch.bmm(u, second).chunk(2, 1)
    grad_inner = torch.bmm(m, first).sub_(above, alpha=2)
    grad_coordinates = torch.cat((above, torch.baddbmm(below, overlap.mT, grad_inner)), 1)
    grad_overlap = torch.bmm(grad_inner, coordinates.chunk(2, 1)[1].mT)
    grad_m, grad_n = torch.baddbmm(torch.bmm(coordinates, second.mT), grad_coordinates, x.mT).chunk(2, 1)
    grad_m = torch.baddbmm(torch.baddbmm(grad_m, inner, first.mT), grad_overlap, n)
    grad_n = torch.baddbmm(grad_n, grad_overlap.mT, m)
    return [grad_m, grad_n], torch.baddbmm(last, u.mT, grad_coordinates)


# ── dense: the taps of one or two factors, and of all factors of an axis ──


def pair_taps(u: Tensor) -> tuple[Tensor, list[Tensor]]:  # (g, 2r, c) → (g, 2, c, c)
    """`PQ` and `P + Q − 2PQ`, and what the adjoint needs."""
    m, n = u.chunk(2, 1)
    overlap = torch.bmm(m, n.mT)
    image = torch.bmm(overlap, n)
    product = torch.bmm(m.mT, image)
    total = torch.bmm(u.mT, u)
    return torch.stack((product, total.sub_(product, alpha=2)), 1), [overlap, image]


def pair_taps_adjoint(u: Tensor, overlap: Tensor, image: Tensor, grad: Tensor) -> list[Tensor]:
    """Gradients of the bases."""
    m, n = u.chunk(2, 1)
    grad_product, grad_total = grad.unbind(1)
    grad_product = torch.sub(grad_product, grad_total, alpha=2)
    grad_m, grad_n = torch.bmm(u, grad_total + grad_total.mT).chunk(2, 1)
    grad_image = torch.bmm(m, grad_product)
    grad_overlap = torch.bmm(grad_image, n.mT)
    grad_m = torch.baddbmm(torch.baddbmm(grad_m, image, grad_product.mT), grad_overlap, n)
    grad_n = torch.baddbmm(torch.baddbmm(grad_n, overlap.mT, grad_image), grad_overlap.mT, m)
    return [grad_m, grad_n]


def apply_taps(taps: Tensor, x: Tensor) -> list[Tensor]:  # (g, n, c, c), (g, c, T) → n of (g, c, T)
    """The terms `A_i X`: one product."""
    return list(torch.bmm(taps.flatten(1, 2), x).unflatten(1, taps.shape[1:3]).unbind(1))


def apply_taps_adjoint(taps: Tensor, x: Tensor, terms: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the taps and of X."""
    stacked = terms.flatten(1, 2)
    grad_taps = torch.bmm(stacked, x.mT)
    return grad_taps.unflatten(1, taps.shape[1:3]), torch.baddbmm(last, taps.flatten(1, 2).mT, stacked)


def as_kernel(taps: Tensor) -> Tensor:  # (g, n, c, c) → (g, c, c, n+1)
    """The kernel of an axis: the last tap is I minus the others."""
    identity = torch.eye(taps.shape[-1], dtype=taps.dtype, device=taps.device)
    return torch.cat((taps, (identity - taps.sum(1))[:, None]), 1).movedim(1, -1)


def as_kernel_adjoint(grad: Tensor) -> Tensor:  # (g, c, c, n+1) → (g, n, c, c)
    """Gradient of the taps."""
    return (grad[..., :-1] - grad[..., -1:]).movedim(-1, 1).contiguous()


def multiply(parts: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Taps of a product from those of its parts, and the products of the last ones, as kernels, for the adjoint."""
    kernels: list[Tensor] = []
    taps = parts[-1]
    for part in reversed(parts[:-1]):
        kernels.append(as_kernel(taps))
        product = assemble(apply_taps(part, kernels[-1].flatten(2)), kernels[-1], 3)
        taps = product[..., :-1].movedim(-1, 1)
    return taps, kernels


def multiply_adjoint(parts: list[Tensor], kernels: list[Tensor], grad: Tensor) -> list[Tensor]:
    """Gradients of all parts, from all but the last of them."""
    grads: list[Tensor] = []
    for part, kernel in zip(parts, reversed(kernels), strict=True):
        terms, last = assemble_adjoint(F.pad(grad.movedim(1, -1), (0, 1)), part.shape[1], 3)
        grad_part, grad_kernel = apply_taps_adjoint(part, kernel.flatten(2), terms, last)
        grads.append(grad_part)
        grad = as_kernel_adjoint(grad_kernel.reshape(kernel.shape))
    return [*grads, grad]
