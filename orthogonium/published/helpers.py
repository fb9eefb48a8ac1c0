"""Helper functions of 0.0.4 whose arguments differ from those of their counterparts here, on which they are built."""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.errors import ShapeError
from orthogonium.kernels import adjoint, block_conv
from orthogonium.spectral import circular_gram_bound, convolution, gram_bound


def fast_matrix_conv(
    m1: Tensor,  # (c2, c1/g, *k)
    m2: Tensor,  # (c3, c2/g, *l)
    groups: int = 1,
) -> Tensor:  # (c3, c1/g, *(k+l−1))
    """`block_conv`: the kernel of the convolution with m1, then with m2."""
    return block_conv(m1, m2, groups)


def fast_batched_matrix_conv(
    m1: Tensor,  # (b, c2, c1/g, *k)
    m2: Tensor,  # (b, c3, c2/g, *l)
    groups: int = 1,
) -> Tensor:  # (b, c3, c1/g, *(k+l−1))
    """`block_conv` of each pair of kernels: one call, with the pairs as groups.

    >>> m1, m2 = torch.randn(2, 4, 3, 3, 3), torch.randn(2, 5, 4, 2, 2)
    >>> fast_batched_matrix_conv(m1, m2).shape
    torch.Size([2, 5, 3, 4, 4])
    """
    if m1.shape[:1] != m2.shape[:1]:
        raise ShapeError(f"As many kernels are needed on both sides, got {tuple(m1.shape)} and {tuple(m2.shape)}.")
    return block_conv(m1.flatten(0, 1), m2.flatten(0, 1), groups * len(m1)).unflatten(0, (len(m1), -1))


def transpose_kernel(p: Tensor, groups: int, flip: bool = True) -> Tensor:  # (co, ci/g, *k) → (ci, co/g, *k)
    """Channels swapped within each group; with `flip` the kernel of the adjoint convolution, `kernels.adjoint`."""
    transposed = adjoint(p, groups)
    return transposed if flip else transposed.flip(tuple(range(2, p.dim())))


def block_orth(
    p1: Tensor,  # (g, b, c, c), projectors
    p2: Tensor,  # (g, b, c, c), projectors
) -> Tensor:  # (b, g·c, c, 2, 2)
    """2 × 2 kernels [[PQ, P(I−Q)], [(I−P)Q, (I−P)(I−Q)]], orthogonal where P and Q are orthogonal projectors."""
    if p1.dim() != 4 or p1.shape != p2.shape or p1.shape[-1] != p1.shape[-2]:
        raise ShapeError(
            f"block_orth takes projectors (groups, batch, c, c) of one shape, got {tuple(p1.shape)} and "
            f"{tuple(p2.shape)}."
        )
    identity = torch.eye(p1.shape[-1], dtype=p1.dtype, device=p1.device)
    rows = [torch.stack((p @ p2, p @ (identity - p2)), -1) for p in (p1, identity - p1)]
    return torch.stack(rows, -2).transpose(0, 1).flatten(1, 2)


def compute_delattre2023(X: Tensor, n: int | None = None, n_iter: int = 3) -> Tensor:
    """Certified bound on the norm of a circular convolution of stride 1 by Gram iteration at each frequency.

    On images of n × n pixels, or of any size: `spectral.circular_gram_bound`.

    >>> compute_delattre2023(torch.eye(4)[..., None, None], n=8).item() < 1.2
    True
    """
    conv = convolution(X, padding="same", padding_mode="circular")
    return circular_gram_bound(conv, None if n is None else (n,) * (X.dim() - 2), steps=n_iter).to(X.dtype)


def compute_delattre2024(X: Tensor, n_iter: int = 4) -> Tensor:
    """Certified bound on the norm of a convolution of stride 1 by Gram iteration on the kernel: `spectral.gram_bound`.

    It holds for every image size, and for zero padding too. Taps grow to `2^n_iter (k − 1) + 1` along each axis.
    """
    return gram_bound(convolution(X, padding="same"), steps=n_iter).to(X.dtype)
