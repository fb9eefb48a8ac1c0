"""Complex matrices as real ones of twice the size, so everything for real matrices applies to them.

Each entry `a + ib` becomes the block `[[a, −b], [b, a]]`. Sums, products and transposes of such real forms are the real
forms of sums, products and *conjugate* transposes. So a matrix function that consists of these, or is a limit of
them (polar factors, exponentials, the Cayley transform, projections onto ranges), does to the real form what it does to
the complex matrix. Rows and columns keep their order, so cropping and padding with zeros commute with it, too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def real_form(w: Tensor, conjugate: bool = False) -> Tensor:  # complex (..., m, n) → real (..., 2m, 2n)
    """The real matrices of complex ones, or of their conjugates."""
    real = w.real
    imaginary = -w.imag if conjugate else w.imag  # torch.func has no batches of `w.conj().imag`
    above, below = torch.stack((real, -imaginary), -1), torch.stack((imaginary, real), -1)
    return torch.stack((above, below), -3).flatten(-4, -3).flatten(-2)


def complex_form(w: Tensor) -> Tensor:  # real (..., 2m, 2n) → complex (..., m, n)
    """The complex matrices of real ones that consist of such blocks."""
    blocks = w.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2))
    return torch.complex(blocks[..., 0, :, 0], blocks[..., 1, :, 0])


def off_complex(w: Tensor) -> float:  # real (..., 2m, 2n)
    """How far real matrices are from consisting of such blocks: the largest difference of entries."""
    blocks = w.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2))
    (a, b), (c, d) = (blocks[..., i, :, :].unbind(-1) for i in range(2))
    return max((a - d).abs().amax().item(), (b + c).abs().amax().item())


def on_complex(function: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """Apply a function of real matrices to complex ones.

    >>> from orthogonium.linalg import polar
    >>> q = on_complex(polar, torch.randn(2, 3, dtype=torch.complex128))
    >>> torch.allclose(q @ q.mH, torch.eye(2, dtype=q.dtype))
    True
    """
    return complex_form(function(real_form(w)))
