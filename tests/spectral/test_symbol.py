import math

import pytest
import torch

from orthogonium.errors import ParameterError
from orthogonium.spectral import convolution
from orthogonium.spectral.reductions import reductions
from orthogonium.spectral.symbol import (
    Frequencies,
    autocorrelation,
    covering_frequencies,
    grid_factor,
    phases,
    symbol,
)


def brute_symbol(kernel, omega):
    """Σ_t K_t e^{iω·t}, one term at a time."""
    out = torch.zeros(kernel.shape[:2], dtype=torch.complex128)
    for t in torch.cartesian_prod(*(torch.arange(k) for k in kernel.shape[2:])).reshape(-1, kernel.ndim - 2):
        angle = (torch.tensor(omega, dtype=torch.float64) * t).sum()
        out += kernel[(slice(None), slice(None), *t.tolist())] * torch.exp(1j * angle)
    return out


@pytest.mark.parametrize("size", [(4,), (2, 3), (3, 1, 2)])
def test_symbol_is_its_definition(size):
    kernel = torch.randn(1, 2, 3, *size, dtype=torch.float64)
    frequencies = Frequencies(tuple(range(4, 4 + len(size))), (1,) * len(size))
    index = torch.arange(len(frequencies))
    found = symbol(kernel, frequencies.waves(size, index))[0]
    for f in index.tolist():
        m = torch.unravel_index(torch.tensor(f), frequencies.shape)
        omega = [2 * math.pi * mi.item() / n for mi, n in zip(m, frequencies.points, strict=True)]
        torch.testing.assert_close(found[f], brute_symbol(kernel[0], omega))


@pytest.mark.parametrize("size", [(), (4,), (2, 3), (2, 2, 2)])
def test_autocorrelation_is_the_kernel_of_the_product(size):
    kernel = torch.randn(2, 2, 3, *size, dtype=torch.float64)
    gram = autocorrelation(kernel)
    frequencies = Frequencies((7,) * len(size), (1,) * len(size))
    index = torch.arange(len(frequencies))
    matrices = symbol(kernel, frequencies.waves(size, index))
    product = symbol(gram, frequencies.waves(gram.shape[3:], index, centred=True))
    torch.testing.assert_close(product, matrices @ matrices.mH)


def test_phases_keep_every_tap_once():
    weight = torch.arange(1.0, 2 * 3 * 5 * 4 + 1).reshape(2, 3, 5, 4)
    stacked = phases(convolution(weight, stride=(2, 3)))
    assert stacked.shape == (1, 2, 18, 3, 2)
    assert stacked.sum() == weight.sum()
    assert phases(convolution(weight, stride=6, dilation=(3, 4))).shape == (1, 2, 18, 3, 2)  # strides 2 and 3 in effect
    assert phases(convolution(weight, stride=7)).shape == (1, 2, 60, 1, 1)


def test_diverged_weights_have_no_bound():
    with pytest.raises(ParameterError, match="NaN"):
        phases(convolution(torch.full((1, 1, 3), math.nan)))


@pytest.mark.parametrize(("taps", "points"), [(2, 3), (2, 4), (3, 4), (5, 8)])
def test_the_grid_factor_is_attained(taps, points):
    """cos(degree·(θ − π/points)/2) is 1 between two grid points and at most cos(π·degree/(2·points)) on the grid."""
    degree, middle = taps - 1, math.pi / points
    grid = 2 * math.pi * torch.arange(points, dtype=torch.float64) / points
    largest = torch.cos(degree * (grid - middle) / 2).abs().amax()
    assert 1 / largest == pytest.approx(grid_factor(taps, points), rel=1e-9)


@pytest.mark.parametrize("taps", [2, 3, 5, 8])
def test_no_polynomial_exceeds_the_grid_factor(taps):
    for points in range(taps, 3 * taps):
        p = torch.randn(500, taps, dtype=torch.complex128)
        p = torch.cat([p, torch.randn(500, taps, dtype=torch.float64).to(p)])
        fine = torch.fft.fft(p, 64 * points).abs().amax(1)
        coarse = torch.fft.fft(p, points).abs().amax(1)
        assert (fine <= coarse * grid_factor(taps, points) * (1 + 1e-12)).all()
    assert grid_factor(taps, taps - 1) == math.inf
    assert grid_factor(1, 1) == 1


def test_covering_uses_the_fewest_frequencies():
    conv = convolution(torch.randn(2, 2, 3, 3), padding=1, padding_mode="circular")
    few, factor = covering_frequencies(conv, reductions(conv, (5, 400))[0], (3, 3), rtol=0.01)
    assert few.points[0] == 5
    assert few.points[1] < 40
    assert 1 < factor <= 1.01
    thin, looser = covering_frequencies(conv, reductions(conv, (500, 400))[0], (3, 3), rtol=0.01, most=50)
    assert len(thin) <= 50
    assert looser > 1.01
    with pytest.raises(ParameterError, match="rtol"):
        covering_frequencies(conv, reductions(conv)[0], (3, 3), rtol=0.0)
