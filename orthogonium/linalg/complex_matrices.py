"""Complex matrices as real ones of twice the size, for algorithms that only know real matrices.

Each entry `a + ib` becomes the block `[[a, −b], [b, a]]`. Sums, products and transposes of such real forms are the real
forms of sums, products and *conjugate* transposes. So a matrix function that consists of these, or is a limit of
them (projections onto ranges, polar factors), does to the real form what it does to the complex matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor


def real_form(w: Tensor) -> Tensor:  # complex (..., m, n) → real (..., 2m, 2n)
    """The real matrices of complex ones."""
    above, below = torch.stack((w.real, -w.imag), -1), torch.stack((w.imag, w.real), -1)
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
