"""Kernel algebra against the operators it speaks of."""

import pytest
import torch
import torch.nn.functional as F

from orthogonium.errors import ShapeError
from orthogonium.kernels import adjoint, block_conv, dilate, identity
from orthogonium.kernels.algebra import _multiply_taps

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
sizes = pytest.mark.parametrize(
    "inner,outer", [((3,), (2,)), ((3, 2), (1, 4)), ((2, 2), (3, 3)), ((2, 1, 3), (1, 2, 2))], ids=str
)


def kernel(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@sizes
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_block_conv_is_composition(inner, outer, groups, stride):
    dims = len(inner)
    a, b = kernel(2 * groups, 3, *inner), kernel(4 * groups, 2, *outer)
    x = kernel(2, 3 * groups, *[9] * dims)
    expected = CONV[dims](CONV[dims](x, a, groups=groups), b, groups=groups, stride=stride)
    fused = block_conv(a, b, groups)
    assert fused.shape == (4 * groups, 3, *(i + o - 1 for i, o in zip(inner, outer, strict=True)))
    torch.testing.assert_close(CONV[dims](x, fused, groups=groups, stride=stride), expected)
    torch.testing.assert_close(_multiply_taps(a, b, groups), fused)  # what accelerators do
    assert block_conv(a.to("meta"), b.to("meta"), groups).shape == fused.shape


def test_block_conv_is_associative_and_differentiable():
    a, b, c = kernel(3, 2, 2, 3), kernel(4, 3, 3, 1), kernel(2, 4, 2, 2)
    torch.testing.assert_close(block_conv(block_conv(a, b), c), block_conv(a, block_conv(b, c)))
    small = [kernel(2, 2, 2).requires_grad_(), kernel(2, 2, 3).requires_grad_()]
    assert torch.autograd.gradcheck(block_conv, small)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size,pad", [(3, 1), (4, 2), (2, 0)])
def test_adjoint(dims, groups, size, pad):
    """⟨Kx, y⟩ = ⟨x, Kᵀy⟩, zero padding p against k − 1 − p."""
    k = kernel(3 * groups, 2, *[size] * dims)
    x = kernel(1, 2 * groups, *[5] * dims)
    kx = CONV[dims](x, k, padding=pad, groups=groups)
    y = torch.randn_like(kx)
    kty = CONV[dims](y, adjoint(k, groups), padding=size - 1 - pad, groups=groups)
    torch.testing.assert_close((kx * y).sum(), (x * kty).sum())
    torch.testing.assert_close(adjoint(adjoint(k, groups), groups), k)


@pytest.mark.parametrize("size", [(1,), (3,), (4, 3), (3, 3, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_identity(size, groups):
    k = identity(4, size, groups, dtype=torch.float64)
    x = kernel(2, 4, *[5] * len(size))
    pads = [p for n in reversed(size) for p in ((n - 1) // 2, n - 1 - (n - 1) // 2)]
    torch.testing.assert_close(CONV[len(size)](F.pad(x, pads), k, groups=groups), x)


def test_dilate():
    k, x = kernel(3, 2, 3, 2), kernel(1, 2, 9, 9)
    torch.testing.assert_close(F.conv2d(x, dilate(k, (2, 3))), F.conv2d(x, k, dilation=(2, 3)))


def test_bad_shapes():
    with pytest.raises(ShapeError, match="does not take"):
        block_conv(kernel(3, 2, 2), kernel(4, 5, 2))
    with pytest.raises(ShapeError, match="1 to 3 sizes"):
        block_conv(kernel(3, 2), kernel(4, 3))
    with pytest.raises(ShapeError, match="groups"):
        adjoint(kernel(3, 2, 2), groups=2)
    with pytest.raises(ShapeError, match="groups"):
        identity(3, (1,), groups=2)
