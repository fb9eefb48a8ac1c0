"""Certificates, bounds and spectra of layers that are orthogonal at each frequency of the image."""

import pytest
import torch
from torch import nn

import orthogonium
from orthogonium.layers import MaxMin, freeze
from orthogonium.layers.conv import circle
from orthogonium.models import create_model
from orthogonium.spectral import spectrum
from tests.layers.conv.circles import conv, methods
from tests.oracle import singular_values


@methods
def test_networks_are_certified(method):
    model = create_model("lip_resnet_tiny", (1, 8, 8), 5, widths=(8, 12), depths=(1, 1), method=method.lower()).eval()
    layers = [m for m in model.modules() if isinstance(m, circle.CircleConv)]
    assert layers and all(layer.image_size for layer in layers)
    bound = orthogonium.lipschitz_bound(model, (1, 8, 8))
    assert bound.value <= 1 + 1e-4 and not orthogonium.audit(model, (1, 8, 8)).warnings
    frozen = freeze(model)
    assert orthogonium.lipschitz_bound(frozen, (1, 8, 8)).value <= 1 + 1e-4
    data = [(torch.rand(4, 1, 8, 8), torch.arange(4))]
    certificates = orthogonium.certify(model, data)
    torch.testing.assert_close(certificates.radii, orthogonium.certify(frozen, data).radii)


@methods
def test_bounds_are_those_of_the_weight(method):
    """And of no promise: a weight that expands is found."""
    layer = freeze(conv(method)(3, 4, 3, stride=2, groups=1, image_size=6, dtype=torch.float64))
    with torch.no_grad():
        layer.weight[:, :, 2:4] *= 1.7
    expected = singular_values(layer, 3, 6, 6)[0].item()
    assert expected > 1.05
    assert orthogonium.lipschitz_bound(layer, (3, 6, 6)).value == pytest.approx(expected, rel=1e-9)
    assert "guarantee is broken" in str(orthogonium.audit(layer, (3, 6, 6)).warnings)
    for size in ((3, 2, 2), (3, 2, 6)) if layer.wraps else ():  # the weight wraps around
        expected = singular_values(layer, *size)[0].item()
        assert orthogonium.lipschitz_bound(layer, size).value == pytest.approx(expected, rel=1e-9)


@methods
def test_errors_of_float32_are_within_their_bound(method):
    for size in ((8, 8), (7, 11)):
        model = nn.Sequential(conv(method)(4, 8, 3), MaxMin(), conv(method)(8, 4, 2, stride=2)).eval()
        bound = orthogonium.lipschitz_bound(model, (4, *size))
        x = torch.randn(3, 4, *size)
        with torch.no_grad():
            exact = nn.Sequential(*(freeze(m).double() for m in model))  # the same weights
            error = (model(x).double() - exact(x.double())).flatten(1).norm(dim=1)
        allowed = bound.error.proved[0] + bound.error.proved[1] * x.flatten(1).norm(dim=1).double()
        assert (error <= allowed).all() and bool((error > 0).any())


@methods
def test_spectra_are_those_of_the_images_asked_for(method):
    layer = conv(method)(2, 2, 3, image_size=6)
    found = spectrum(layer, (2, 4, 5))
    assert found.kind == "exact" and abs(found.sigma_max - 1) <= 1e-5 and abs(found.sigma_min - 1) <= 1e-5
