"""Kernels near isometries: singular values lie between the certified ends, which are hardly further apart."""

import math

import pytest
import torch
from torch import nn

from orthogonium.spectral import convolution, norm_bound, spectrum
from orthogonium.spectral.enclosure import enclosure
from orthogonium.spectral.grid import gram_error
from orthogonium.spectral.isometry import scale_and_deviation
from orthogonium.spectral.symbol import autocorrelation
from tests.spectral.zoo import KERNELS, WrappedConv, fill, oracle_values, rng

D = torch.float64


def nearly_isometric(layer, noise, scale):
    fill(layer, "orthogonal")
    with torch.no_grad():
        layer.weight.add_(noise * torch.randn_like(layer.weight)).mul_(scale)
    return layer


@pytest.mark.parametrize("seed", range(12))
def test_values_lie_between_the_ends(seed):
    random = rng(seed)
    groups, channels, k = random.choice((1, 2, 3)), random.choice((1, 2, 5)), random.choice((1, 2, 3, 5))
    noise, scale = random.choice((0.0, 1e-9, 1e-6, 1e-4, 1e-3)), random.choice((1.0, 1e-3, 7.0, 1e20))
    layer = nearly_isometric(WrappedConv(groups * channels, groups * channels, k, groups=groups), noise, scale)
    for size in ((5, 5), (8, 9)):
        exact = oracle_values(layer, (layer.in_channels, *size))
        found = enclosure(
            convolution(layer.weight.detach(), padding="same", padding_mode="circular", groups=groups), size
        )
        assert "deviation" in found.method
        low, high = float(found.lower.amin()), float(found.upper.amax())
        rounding = 1e-14 * float(exact[0])
        assert low <= float(exact[-1]) + rounding and float(exact[0]) - rounding <= high
        spread = float((exact / scale - 1).abs().max())
        assert high / scale - 1 <= 4 * spread + 1e-11 and 1 - low / scale <= 4 * spread + 1e-11


@pytest.mark.parametrize("noise", [1e-7, 1e-3])
def test_budget_of_one_operation(noise):
    layer = nearly_isometric(WrappedConv(4, 4, 3), noise, 1.0)
    exact = oracle_values(layer, (4, 9, 9))
    found = [enclosure(_circular(layer.weight), (9, 9), budget=budget) for budget in (1e12, 1.0)]
    assert all(float(f.lower) <= float(exact[-1]) and float(exact[0]) <= float(f.upper) for f in found)
    assert float(found[0].upper) <= float(found[1].upper)


def _circular(weight):
    return convolution(weight.detach(), padding="same", padding_mode="circular")


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("shift", [0.0, 0.25, 0.5])
def test_what_is_steep_between_the_frequencies_of_the_grid(k, shift):
    """A deviation that is largest between two points: on the grid it is smaller by up to the factor of the grid."""
    lags, points = 2 * k - 1, 3 * (2 * k - 2)
    at = 2 * math.pi * (1 + shift) / points
    t = torch.arange(lags, dtype=D) - (k - 1)
    rest = 1e-3 * torch.cos(at * t) * (lags - t.abs()) * (t != 0)
    true = torch.fft.fft(rest, 2**14).abs().max()
    gram = (rest + (t == 0)).reshape(1, 1, 1, lags)
    scale, deviation = scale_and_deviation(gram, torch.zeros(1, dtype=D), 1e9)
    assert float(scale) == 1.0
    assert true <= deviation[0] <= 1.3 * true + 1e-14


def test_transposed_and_strided():
    weight = nn.init.orthogonal_(torch.empty(8, 8, dtype=D)).reshape(8, 2, 2, 2) + 1e-6 * torch.randn(
        8, 2, 2, 2, dtype=D
    )
    for layer in (nn.Conv2d(2, 8, 2, 2, dtype=D, bias=False), nn.ConvTranspose2d(8, 2, 2, 2, dtype=D, bias=False)):
        layer.weight.data = weight
        shape = (layer.in_channels, 6, 6)
        exact, found = oracle_values(layer, shape), spectrum(layer, shape, kind="upper")
        assert "deviation" in found.method
        assert found.sigma_min <= exact[-1] + 1e-14 and exact[0] <= found.sigma_max + 1e-14
        assert found.sigma_max - found.sigma_min <= 4 * (exact[0] - exact[-1]) + 4e-5


@pytest.mark.parametrize("kind", KERNELS)
def test_other_kernels_are_bounded_by_their_deviation_too(kind):
    """Not sharp far from isometries, and never wrong."""
    layer = fill(WrappedConv(3, 3, 3), kind)
    if kind in ("huge", "tiny"):
        layer.weight.data /= layer.weight.data.abs().max()
    kernel = layer.weight.detach()[None]
    scale, deviation = scale_and_deviation(autocorrelation(kernel), gram_error(kernel), 1e9)
    exact = oracle_values(layer, (3, 7, 7)).square()
    slack = 1e-12 * float(exact[0])
    assert float(scale - deviation) <= float(exact[-1]) + slack
    assert float(exact[0]) <= float(scale + deviation) + slack


def test_gradients_stay():
    weight = nn.init.orthogonal_(torch.empty(4, 4, dtype=D)).reshape(4, 4, 1) + 1e-5 * torch.randn(4, 4, 1, dtype=D)
    weight.requires_grad_()
    bound = norm_bound(convolution(weight))
    (gradient,) = torch.autograd.grad(bound, weight)
    assert float((gradient * weight).sum().detach()) == pytest.approx(float(bound.detach()), rel=1e-4)  # homogeneous
