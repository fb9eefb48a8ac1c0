"""Circular convolution by Fourier transform, for kernels as large as the image: `n² log n` operations, not `n⁴`."""

from __future__ import annotations

from torch import Tensor

from orthogonium.kernels.circle import from_frequencies, to_frequencies
from orthogonium.kernels.phases import stack_phases, unstack_phases
from orthogonium.layers.whole import as_a_whole
from orthogonium.linalg.evaluation import widened
from orthogonium.methods.circle import Grid, symbol


def symbol_of(weight: Tensor, stride: Grid, groups: int, grid: Grid) -> Tensor:  # → (*half, g, out, in·∏s)
    """The symbol of a weight; a convolution multiplies each frequency by its conjugate."""
    return symbol(weight.unflatten(0, (groups, -1)), grid, stride)


@as_a_whole
def convolve_frequencies(
    x: Tensor,  # (b, in, *sizes)
    weight: Tensor,  # (out, in/g, *k), with k divisible by the sizes
    stride: Grid,  # divides the sizes
    groups: int,
    adjoint: bool,
) -> Tensor:  # (b, out, *sizes/stride)
    """The circular convolution with "same" padding, or its adjoint from outputs to images; in float32 or better."""
    if not x.shape[0]:  # CPUs have no Fourier transform of an empty batch
        return convolve_frequencies(x.new_zeros(1, *x.shape[1:]), weight, stride, groups, adjoint)[:0]
    # CPUs have no Fourier transform in lower precision.
    phases = widened(x).unflatten(1, (groups, -1))
    phases = phases if adjoint else stack_phases(phases, stride)  # (b, g, in·∏s, *m), of the adjoint (b, g, out, *m)
    dims, grid = len(stride), phases.shape[3:]
    matrices = symbol_of(widened(weight), stride, groups, grid)
    images = to_frequencies(phases, dims).movedim(dims, -1)  # (*half, g, in·∏s or out, b)
    # Frequencies differ by orders of magnitude: rounding of real numbers by autocast would lose the weak ones.
    product = (matrices.mT if adjoint else matrices.conj()) @ images
    y = from_frequencies(product.movedim(-1, dims), grid)
    return (unstack_phases(y, stride) if adjoint else y).flatten(1, 2)
