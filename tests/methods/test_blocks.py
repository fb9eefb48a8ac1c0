"""Gradients of the packed constraints against finite differences, and what they pack."""

import pytest
import torch

from orthogonium.kernels import ConvGeometry
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.packing import Packing
from orthogonium.methods.sandwich import SandwichKernels
from orthogonium.methods.sll import OrthogonalResidual, SDPKernels
from orthogonium.methods.sll_aoc import FusedKernels


def constraints():
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


@pytest.mark.parametrize("constraint", [c for _, c in constraints()], ids=[n for n, _ in constraints()])
def test_gradients(constraint):
    raw = [p.normal_().requires_grad_() for p in constraint.initial(None, torch.float64)]
    assert constraint.build(*raw).shape == (sum(constraint.packing.sizes),)
    # Random directions: bases of projectors have some along which nothing changes, which is no obstacle.
    assert torch.autograd.gradcheck(constraint.build, raw, fast_mode=True, atol=1e-6)


def test_packing():
    packing = Packing((2, 3), (4,), (1, 2, 2))
    tensors = [torch.randn(shape) for shape in packing.shapes]
    packed = packing.pack(*tensors)
    for a, b in zip(packing.unpack(packed), tensors, strict=True):
        assert torch.equal(a, b) and a.data_ptr() >= packed.data_ptr()
