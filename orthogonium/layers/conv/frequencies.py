"""Circular convolution by Fourier transform, for kernels as large as the image: `n² log n` operations, not `n⁴`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from orthogonium.kernels.circle import from_frequencies, to_frequencies, wrap_taps
from orthogonium.kernels.phases import stack_phases, unstack_phases
from orthogonium.layers.whole import as_a_whole
from orthogonium.linalg.complex_matrices import real_form
from orthogonium.linalg.evaluation import autocasts


def symbol_of(weight: Tensor, left: Sequence[int], stride: Sequence[int], groups: int, sizes: Sequence[int]) -> Tensor:
    """The real matrices by which a convolution multiplies each frequency: `(*half, g, 2·out, 2·in·∏s)`."""
    taps = wrap_taps(weight.unflatten(0, (groups, -1)), left, sizes)
    return real_form(to_frequencies(stack_phases(taps, stride), len(stride)), conjugate=True)


def _widened(x: Tensor) -> Tensor:
    """In float32 or better: CPUs have no Fourier transform in lower precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _multiply(matrices: Tensor, x: Tensor) -> Tensor:  # (*half, g, 2m, 2n), complex (*half, g, n, b) → (*half, g, m, b)
    # Both parts of each channel; `view_as_real` would need gradients with strides that single images do not have.
    pairs = torch.stack([x.real, x.imag], -2).flatten(-3, -2)
    # Frequencies differ by orders of magnitude: autocast would lose the weak ones.
    with torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext():
        product = matrices @ pairs
    return torch.complex(*product.unflatten(-2, (-1, 2)).unbind(-2))


@as_a_whole
def convolve_frequencies(
    x: Tensor,  # (b, in, *sizes)
    weight: Tensor,  # (out, in/g, *k), with k divisible by the sizes
    left: tuple[int, ...],
    stride: tuple[int, ...],  # divides the sizes
    groups: int,
) -> Tensor:  # (b, out, *sizes/stride)
    """The circular convolution whose windows begin `left` pixels before the image; in float32 or better."""
    dims = len(stride)
    if not x.shape[0]:  # CPUs have no Fourier transform of an empty batch
        return convolve_frequencies(x.new_zeros(1, *x.shape[1:]), weight, left, stride, groups)[:0]
    matrices = symbol_of(_widened(weight), left, stride, groups, x.shape[2:])
    phases = stack_phases(_widened(x).unflatten(1, (groups, -1)), stride)  # (b, g, in·∏s, *m)
    images = to_frequencies(phases, dims).movedim(dims, -1)  # (*half, g, in·∏s, b)
    y = from_frequencies(_multiply(matrices, images).movedim(-1, dims), phases.shape[3:])
    return y.flatten(1, 2)


@as_a_whole
def adjoint_frequencies(
    y: Tensor,  # (b, out, *m)
    weight: Tensor,
    left: tuple[int, ...],
    stride: tuple[int, ...],
    groups: int,
) -> Tensor:  # (b, in, *m·stride)
    """The adjoint of `convolve_frequencies`."""
    dims = len(stride)
    sizes = [m * s for m, s in zip(y.shape[2:], stride, strict=True)]
    matrices = symbol_of(_widened(weight), left, stride, groups, sizes).mT
    images = to_frequencies(_widened(y).unflatten(1, (groups, -1)), dims).movedim(dims, -1)  # (*half, g, out, b)
    phases = from_frequencies(_multiply(matrices, images).movedim(-1, dims), y.shape[2:])  # (b, g, in·∏s, *m)
    return unstack_phases(phases, stride).flatten(1, 2)
