import pytest
import torch
from torch import nn

from orthogonium.spectral import circular_gram_bound, convolution, gram_bound
from orthogonium.spectral.gram import spectral_radius
from tests.spectral.zoo import WrappedConv, fill, oracle_values

D = torch.float64


def lattice_norm(weight, points=1024):
    """Largest norm of K(ω) on a grid so fine that it is the norm on the infinite lattice, for stride 1."""
    axes = tuple(range(2, weight.ndim))
    transformed = torch.fft.fftn(weight, s=(points,) * len(axes), dim=axes)
    return torch.linalg.matrix_norm(transformed.flatten(2).movedim(2, 0), 2).amax()


@pytest.mark.parametrize("kind", ["gaussian", "alternating", "rank one", "orthogonal", "sparse", "constant"])
def test_kernel_form_gets_sharp(kind):
    weight = fill(nn.Conv1d(4, 3, 4, dtype=D), kind).weight.detach()
    exact = lattice_norm(weight)
    bounds = [gram_bound(convolution(weight), steps=n) for n in range(1, 9)]
    assert all(exact * (1 - 1e-12) <= b for b in bounds)
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in zip(bounds, bounds[1:], strict=False))
    assert bounds[-1] <= 1.01 * exact


def test_kernel_form_gets_sharp_in_two_dimensions():
    weight = torch.randn(3, 2, 3, 3, dtype=D)
    exact = lattice_norm(weight, 64)
    assert exact * (1 - 1e-3) <= gram_bound(convolution(weight), steps=5) <= 1.01 * exact


@pytest.mark.parametrize(("k", "s", "d", "groups"), [(3, 1, 1, 1), (3, 2, 1, 2), (5, 3, 2, 1)])
def test_frequency_form_gets_sharp(k, s, d, groups):
    layer = WrappedConv(4, 4, k, s, d, groups)
    exact = oracle_values(layer, (4, 6, 6))[0]
    bounds = [circular_gram_bound(layer, (6, 6), steps=n, rtol=0.0) for n in range(1, 11)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in zip(bounds, bounds[1:], strict=False))
    assert exact <= bounds[-1] <= 1.002 * exact


def test_stride_makes_the_bound_smaller():
    weight = torch.randn(4, 4, 3, 3, dtype=D)
    assert gram_bound(convolution(weight, stride=2), steps=4) < 0.9 * gram_bound(convolution(weight), steps=4)


def test_spectral_radius_bounds():
    matrices = torch.rand(50, 6, 6, dtype=D) * (torch.rand(50, 6, 6) < 0.4)
    radius = torch.linalg.eigvals(matrices).abs().amax(1)
    assert (spectral_radius(matrices) >= radius * (1 - 1e-12)).all()


def test_spectral_radius_gets_sharp():
    """Birkhoff: entries within a factor 2 shrink distances of Hilbert's metric, at first log 2, to a third, 8 times."""
    positive = 0.5 + 0.5 * torch.rand(50, 6, 6, dtype=D)
    radius = torch.linalg.eigvals(positive).abs().amax(1)
    assert (spectral_radius(positive) <= radius * 2 ** (3**-8) * (1 + 1e-9)).all()
