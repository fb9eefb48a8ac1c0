"""All singular values of circular convolutions by Fourier transform (Sedghi et al. 2019, Senderovich et al. 2022).

On a circle of n pixels the singular values are those of K(2πm/n), m = 0 … n−1; with a stride that divides n, those of
the phase-stacked kernel at n/s frequencies. K(ω) is evaluated by its definition, so an image smaller than the kernel
needs no special care (a padded FFT would truncate the kernel).

The compressed variant: with orthonormal frames of the channels, K = U₁·core·U₂, the singular values are those of the
core, plus zeros. Layers that change the number of channels by more than the number of taps, and layers of low rank,
have a small core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import GeometryError
from orthogonium.spectral.definition import describe
from orthogonium.spectral.geometry import Convolution, require_geometry
from orthogonium.spectral.reductions import Reduction, reductions
from orthogonium.spectral.symbol import circle_frequencies, phases, symbol


def circular_reduction(conv: Convolution, size: Sequence[int]) -> Reduction | None:
    """The reduction that keeps the whole spectrum, if padding makes the layer a circular convolution at this size."""
    first = reductions(conv, size)[0]
    return first if first.same_spectrum else None


def circular_singular_values(
    layer: nn.Module | Convolution, size: Sequence[int], *, compressed: bool = False, per_group: bool = False
) -> Tensor:
    """All singular values, largest first, of a layer that is a circular convolution at this size.

    Args:
        layer: a layer of known geometry (`geometry_of`): circular padding that keeps one window per stride, with the
            stride dividing the size; or windows that tile the image without padding; or a dense layer (size ()).
        size: spatial size of the input.
        compressed: whether to find small channel frames first.
        per_group: return one row per group, (groups, count), instead of all values together.

    Returns:
        min(inputs, outputs) values in float64, differentiable where they are simple.

    >>> from orthogonium.spectral import circular_singular_values
    >>> conv = torch.nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular", bias=False)
    >>> _ = torch.nn.init.dirac_(conv.weight)
    >>> [round(s, 6) for s in circular_singular_values(conv, (2, 2)).tolist()]
    [1.0, 1.0, 1.0, 1.0]
    """
    conv = require_geometry(layer)
    reduction = circular_reduction(conv, size)
    frequencies = circle_frequencies(conv, reduction) if reduction else None
    if reduction is None or frequencies is None:
        raise GeometryError(
            f"Not a circular convolution on inputs of size {tuple(size)}: {describe(conv)}. The Fourier transform "
            'needs circular padding "same" and a stride that divides the size. Use `operator_matrix`, or a bound.'
        )
    kernel = phases(conv, reduction.stride)
    rank = min(kernel.shape[1], conv.weight.shape[1] * math.prod(reduction.stride))  # the window may skip phases
    if compressed:
        kernel = compress(kernel)
    taps = kernel.shape[3:]
    pieces = [
        torch.linalg.svdvals(symbol(kernel, frequencies.waves(taps, index))) for index in frequencies.chunks(kernel)
    ]
    values = torch.cat(pieces, 1)  # (groups, F, ≤ rank)
    values = torch.nn.functional.pad(values, (0, rank - values.shape[2]))
    values = values.repeat_interleave(frequencies.multiplicity(values).long(), dim=1).flatten(1)
    return (values if per_group else values.flatten()).sort(dim=-1, descending=True).values


def compress(kernel: Tensor) -> Tensor:
    """(groups, r₁, r₂, *k) core of a kernel (groups, rows, columns, *k): its channels in orthonormal frames."""
    for axis in (1, 2):
        unfolding = kernel.movedim(axis, 1).flatten(2)
        frame, weight, _ = torch.linalg.svd(unfolding.detach(), full_matrices=False)
        tiny = weight[:, :1] * (max(unfolding.shape[1:]) * torch.finfo(kernel.dtype).eps)
        rank = max(int((weight > tiny).sum(1).max()), 1)
        core = frame[..., :rank].transpose(1, 2) @ unfolding
        kernel = core.unflatten(2, kernel.movedim(axis, 1).shape[2:]).movedim(1, axis)
    return kernel
