"""Convex potential convolutions: the bound is one, for every image and padding, and is used."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium.errors import GeometryError, ParameterError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.frequency_bound import squared_norm_bound
from orthogonium.layers.conv.cpl import CPLConv1d, CPLConv2d, CPLConv3d
from orthogonium.methods.cpl import PotentialKernels
from tests.jacobians import ascend, jacobian_norm, jacobians
from tests.oracle import plain_conv, singular_values


def circular_norm(kernel, groups, size):
    """Norm of the circular convolution on images of one size, from impulse responses."""
    dims = kernel.dim() - 2
    co, ci = kernel.shape[0], kernel.shape[1] * groups
    conv = plain_conv(dims)(ci, co, tuple(kernel.shape[2:]), groups=groups, bias=False).double()
    conv.weight = nn.Parameter(kernel.double())
    pads = [p for k in reversed(kernel.shape[2:]) for p in ((k - 1) // 2, k // 2)]

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv

        def forward(self, x):
            return self.conv(F.pad(x, pads, mode="circular"))

    return singular_values(Wrapped(), ci, *size).max().item()


def lattice_norm(kernel, groups):
    """Norm on images without end: the largest at frequencies so dense that it misses less than a thousandth."""
    axes = tuple(range(2, kernel.dim()))
    symbol = torch.fft.fftn(kernel.double(), s=[512 if len(axes) == 1 else 96] * len(axes), dim=axes)
    matrices = symbol.unflatten(0, (groups, -1)).flatten(3).movedim(3, 0)
    return torch.linalg.matrix_norm(matrices, 2).max().item()


KERNELS = [((4, 3, 3), 1), ((3, 5, 2, 3), 1), ((6, 2, 3, 1), 2), ((2, 1, 5, 5), 2), ((3, 2, 2, 1, 2), 1)]


@pytest.mark.parametrize("shape, groups", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bound_is_above_every_norm_and_tightens(shape, groups, dtype):
    for kernel in (torch.randn(shape, dtype=dtype), torch.ones(shape, dtype=dtype)):
        size = [{1: 16, 2: 6, 3: 4}[len(shape) - 2]] * (len(shape) - 2)
        true, supremum = circular_norm(kernel, groups, size), lattice_norm(kernel, groups)
        bounds = [squared_norm_bound(kernel, n, groups).max().sqrt().item() for n in (0, 1, 2, 4)]
        assert all(b >= true for b in bounds)
        assert all(b <= a * (1 + 1e-6) for a, b in zip(bounds, bounds[1:], strict=False))
        # cos(π/16) for each axis of frequencies between those of a grid 8 times as fine, 5^(1/32) for four steps
        assert bounds[3] <= 1.1 * supremum


@pytest.mark.parametrize("taps", [2, 3, 4, 6])
def test_bound_between_frequencies(taps):
    """Kernels whose only peak lies where the grid is coarsest: half-way between two of its points."""
    grid = 8 * (taps - 1) + 1
    t = torch.arange(taps).double()
    for at in (0.5, 1.5, grid // 2 - 0.5):
        kernel = torch.cos(2 * torch.pi * at / grid * t).view(1, 1, -1)
        turned = torch.sin(2 * torch.pi * at / grid * t).view(1, 1, -1)
        pair = torch.cat([torch.cat([kernel, -turned], 1), torch.cat([turned, kernel], 1)], 0)  # e^{iωt} as real taps
        true = circular_norm(pair, 1, [2 * grid])
        assert true == pytest.approx(taps)
        assert true <= squared_norm_bound(pair).sqrt().item() <= 1.06 * true


def test_matrices_are_kernels_of_one_tap():
    kernel = torch.randn(6, 4, 1, 1).double()
    bound = squared_norm_bound(kernel, groups=2).sqrt()
    true = torch.linalg.matrix_norm(kernel.view(2, 3, 4), ord=2)
    assert (bound >= true).all() and (bound <= 1.02 * true).all()


def test_rounding_is_covered():
    """Float32 bounds of matrices that are as hard as can be: all singular values equal."""
    for n in (8, 64, 200):
        q = torch.linalg.qr(torch.randn(n, n))[0]
        true = torch.linalg.matrix_norm(q.double(), ord=2) ** 2
        assert squared_norm_bound(q[..., None], niter=20).double() >= true


def test_gradients():
    geometry = ConvGeometry.of(1, 4, 6, 3, 1, 1, 2)
    constraint = PotentialKernels(geometry, 2)
    raw = torch.randn(geometry.weight_shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(constraint.build, (raw,))


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_with_all_units_open(mode):
    """The worst case for the bound: J = I − (2/β)KᵀK. A power iteration from below fails this."""
    for layer in (CPLConv2d(3, 5, padding_mode=mode), CPLConv2d(4, kernel_size=2, groups=2, padding_mode=mode)):
        layer = layer.double()
        with torch.no_grad():
            layer.bias.fill_(1e3)
        for size in ((6, 6), (4, 7), (2, 2)):
            j = jacobians(layer, torch.zeros(1, layer.in_channels, *size).double())[0]
            reach = torch.linalg.eigvalsh(j)
            assert reach.min() >= -1 - 1e-11 and reach.max() <= 1 + 1e-11
    j = jacobians(layer, torch.zeros(1, 4, 12, 12).double())[0]
    assert torch.linalg.eigvalsh(j).min() <= -0.8


def test_groups_have_their_own_bound():
    layer = CPLConv2d(4, groups=2, dtype=torch.float64)
    alone = CPLConv2d(2, dtype=torch.float64)
    with torch.no_grad():
        weight = layer.parametrizations.weight.original0
        weight[2:] *= 100
        alone.parametrizations.weight.original0.copy_(weight[:2])
        alone.bias.copy_(layer.bias[:2])
    x = torch.randn(1, 4, 5, 5).double()
    torch.testing.assert_close(layer(x)[:, :2], alone(x[:, :2]), rtol=1e-11, atol=1e-11)


def test_trained_toy_uses_the_bound():
    layer = CPLConv2d(3, 6, padding_mode="circular")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    x, y = torch.randn(2, 8, 3, 4, 4)
    for _ in range(200):
        optimizer.zero_grad()
        branch = layer(x) - layer(y) - (x - y)
        (-branch.flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)).mean().backward()
        optimizer.step()
    layer.eval().requires_grad_(False)
    points = torch.cat([x, ascend(layer, x)])
    assert 0.9 <= jacobian_norm(layer, points) <= 1 + 1e-5
    assert jacobian_norm(lambda z: layer(z) - z, points) >= 1.8


def test_zero_weight_is_the_identity():
    layer = CPLConv1d(3)
    with torch.no_grad():
        layer.parametrizations.weight.original0.zero_()
    x = torch.randn(1, 3, 5)
    assert torch.equal(layer(x), x)
    layer(x).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_arguments():
    assert CPLConv3d(2, 4, (1, 2, 3))(torch.randn(1, 2, 3, 4, 5)).shape == (1, 2, 3, 4, 5)
    with pytest.raises(ParameterError, match="niter"):
        CPLConv2d(3, niter=-1)
    with pytest.raises(GeometryError, match="out_channels"):
        CPLConv2d(4, 5, groups=2)
    with pytest.raises(GeometryError, match="dilation"):
        CPLConv2d(4, dilation=0)
    with pytest.raises(ParameterError, match="slope"):
        CPLConv2d(4, activation="abs")
