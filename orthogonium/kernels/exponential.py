"""The exponential of a kernel that is minus its own adjoint, truncated where it cannot expand.

Note [Safe orders]
An anti-Hermitian symbol has eigenvalues iλ. The series truncated after order n, `S_n(iλ) = Σ_{j ≤ n} (iλ)ʲ / j!`,
satisfies `|S_n(iλ)| ≤ 1` on 0 < |λ| ≤ 1 exactly for n = 3, 4, 7, 8, 11, 12, … (n mod 4 ∈ {3, 0}), since the first term
that is left out of |S_n|² then has a negative sign. It is smallest at λ = 1. Other orders expand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.kernels.fourier import Symbol, gram, kernel_of, product, symmetric_symbol

SAFE_ORDERS = (3, 4, 7, 8, 11, 12)


def smallest_singular_value(order: int) -> float:
    """`|S_n(i)|`: no singular value of the truncated exponential is smaller if the norm of the kernel is at most 1.

    >>> [f"{1 - smallest_singular_value(n):.1e}" for n in (3, 4, 7, 8)]
    ['2.8e-02', '6.1e-03', '1.6e-05', '2.2e-06']
    """
    return abs(sum(1j**j / math.factorial(j) for j in range(order + 1)))


def grown_size(sizes: Sequence[int], order: int) -> tuple[int, ...]:
    """Sizes `n(k − 1) + 1` of the exponential of a kernel with sizes k."""
    return tuple(order * (k - 1) + 1 for k in sizes)


def skew_exponential(
    half: Tensor,  # (half the taps, g, c, c), K[−t] = −K[t]ᵀ
    sizes: Sequence[int],  # of K, odd
    order: int,
    columns: int,
) -> Tensor:  # (g, c, columns, *(order·(sizes − 1) + 1))
    """The first columns of `Σ_{j ≤ order} Kʲ / j!` under ⊛.

    Horner's rule in K², which is minus the Gram symbol: one product for two orders.
    """
    grid = grown_size(sizes, order)
    k = symmetric_symbol(half, sizes, grid, sign=-1)
    minus_square = gram(k)
    identity = torch.eye(half.shape[-1], columns, dtype=half.dtype, device=half.device)

    def linear(j: int) -> Symbol:
        """`K^(2j)` has the coefficient I/(2j)! + K/(2j+1)!."""
        even = identity / math.factorial(2 * j) if j else 0.0
        odd = 1 / math.factorial(2 * j + 1)
        return even + odd * k[0][..., :columns], None if k[1] is None else odd * k[1][..., :columns]

    top = order // 2
    if order % 2:
        total = linear(top)
    else:
        # The highest coefficient is a multiple of the identity: no product needed.
        top -= 1
        total = _subtract(linear(top), _columns(minus_square, columns, 1 / math.factorial(order)))
    for j in reversed(range(top)):
        total = _subtract(linear(j), product(minus_square, total))
    kernel = kernel_of(total, grid)
    middle: tuple[Any, ...] = (..., *(n // 2 for n in grid))
    # Added to the tap, the identity is exact; interpolating it would cost a few roundings.
    kernel[middle] += identity
    return kernel


def _columns(x: Symbol, columns: int, factor: float) -> Symbol:
    return factor * x[0][..., :columns], None if x[1] is None else factor * x[1][..., :columns]


def _subtract(x: Symbol, y: Symbol) -> Symbol:
    return x[0] - y[0], None if x[1] is None or y[1] is None else x[1] - y[1]
