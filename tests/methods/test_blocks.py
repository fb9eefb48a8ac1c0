"""Gradients of the kernels of blocks against finite differences, and their shapes."""

import pytest
import torch

from orthogonium.kernels import ConvGeometry
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.sandwich import SandwichKernels
from orthogonium.methods.sll import OrthogonalResidual, SDPKernels
from orthogonium.methods.sll_aoc import FusedKernels


def methods():
    def geometry(*sizes, **options):
        return ConvGeometry.of(1, *sizes, **options)

    def orthogonal(*sizes, **options):
        return OrthogonalKernel(geometry(*sizes, **options), DEFAULT_ORTHO_PARAMS)

    yield "sdp", SDPKernels(geometry(2, 4, 3, groups=2), niter=2)
    yield "orthogonal", OrthogonalResidual(geometry(3, 2, 2), DEFAULT_ORTHO_PARAMS)
    yield "fused", FusedKernels(SDPKernels(geometry(2, 3, 2)), orthogonal(2, 2, 2), orthogonal(2, 3, 2, stride=2))
    yield "fused-after", FusedKernels(SDPKernels(geometry(3, 2, 1)), None, orthogonal(3, 2, 1))
    yield "sandwich", SandwichKernels(geometry(2, 3, 2), DEFAULT_ORTHO_PARAMS, scaled=True)
    yield "sandwich-strided", SandwichKernels(geometry(1, 2, 3, stride=2), DEFAULT_ORTHO_PARAMS, scaled=True)


@pytest.mark.parametrize("kernels", [c for _, c in methods()], ids=[n for n, _ in methods()])
def test_gradients(kernels):
    raw = [p.normal_().requires_grad_() for p in kernels.initial(None, torch.float64)]
    assert tuple(kernel.shape for kernel in kernels.build(*raw)) == kernels.shapes
    # Random directions: bases of projectors have some along which nothing changes, which is no obstacle.
    assert torch.autograd.gradcheck(kernels.build, raw, fast_mode=True, atol=1e-6)
