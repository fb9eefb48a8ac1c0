"""Circular convolutions of images, by one matrix for each frequency of the image.

Note [Circles]
On a circle of m pixels a convolution multiplies the Fourier transform of an image by its *symbol* at the m frequencies
`2πf/m`, one matrix of channels for each. A kernel with as many taps as the image has pixels can have any symbol with
`S(−f) = conj S(f)`, which makes it real. So a matrix function that commutes with conjugation, applied at each
frequency, maps a real kernel to a real kernel, which is orthogonal if all its matrices are. Half of the frequencies
suffice, those of `rfftn`.

A kernel of stride s on a circle of `s·m` pixels is the stride-1 kernel of its phases on m (Note [Stride] of
`phases.py`).

The symbols here are `Σ_t K[t] e^{−2πi f·t/m}`, as in `rfftn`: convolving (torch correlates) multiplies by the
conjugate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def wrap_taps(kernel: Tensor, first: Sequence[int], sizes: Sequence[int]) -> Tensor:  # (..., *k) → (..., *sizes)
    """The kernel as a function on a circle: tap j is added to pixel `j − first`."""
    dims = len(sizes)
    missing = [-k % n for k, n in zip(kernel.shape[-dims:], sizes, strict=True)]
    x = F.pad(kernel, [p for n in reversed(missing) for p in (0, n)])
    for axis, n in enumerate(sizes, -dims):
        x = x if x.shape[axis] == n else x.unflatten(axis, (-1, n)).sum(axis - 1)
    return x.roll([-f for f in first], tuple(range(-dims, 0)))


def to_frequencies(x: Tensor, dims: int) -> Tensor:  # (..., *m) → (*half of m, ...), complex
    """The Fourier transform of the last axes, frequencies in front."""
    axes = tuple(range(-dims, 0))
    return torch.fft.rfftn(x, dim=axes).movedim(axes, tuple(range(dims)))


def from_frequencies(x: Tensor, sizes: Sequence[int]) -> Tensor:  # (*half of m, ...) → (..., *m)
    """The inverse of `to_frequencies`."""
    axes = tuple(range(-len(sizes), 0))
    return torch.fft.irfftn(x.movedim(tuple(range(len(sizes))), axes), s=tuple(sizes), dim=axes)


def conjugate_symmetric(x: Tensor, sizes: Sequence[int]) -> Tensor:  # (*half of m, ...) → the same shape
    """Symbols of a real kernel, with rounding errors removed: `S(−f) = conj S(f)`, to the last digit.

    If both frequencies f and −f are present (the last index is 0, or half of the pixels), the later one gets the
    conjugate of the other. A frequency that is its own negative gets a real symbol.
    """
    axis, last = len(sizes) - 1, sizes[-1]
    negative = _negatives(sizes[:-1], x.device)
    own = torch.arange(len(negative), device=x.device)
    for f in {0, last // 2} if last % 2 == 0 else {0}:
        plane = x.select(axis, f)
        flat = plane.reshape(len(own), -1)
        conjugate = flat[negative].conj()
        flat = torch.where((own > negative)[:, None], conjugate, flat)
        flat = torch.where((own == negative)[:, None], (flat + conjugate) / 2, flat)
        x = x.select_scatter(flat.view(plane.shape), axis, f)
    return x


def _negatives(sizes: Sequence[int], device: torch.device) -> Tensor:
    """The flat index of −f for each flat index of f."""
    flat = torch.zeros(1, dtype=torch.long, device=device)
    for n in sizes:
        flat = (flat[:, None] * n + -torch.arange(n, device=device) % n).flatten()
    return flat
