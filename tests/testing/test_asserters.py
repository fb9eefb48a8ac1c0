"""The asserters accept what they should, and fail on what must fail."""

import math

import pytest
import torch
from torch import nn

from orthogonium import layers as ol
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.testing import assert_certificate, assert_lipschitz, assert_orthogonal, find_counterexample


class Scaled(nn.Module):
    def __init__(self, layer, factor):
        super().__init__()
        self.layer, self.factor = layer, factor

    def forward(self, x):
        return self.factor * self.layer(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("make", "shape"), [
    (lambda: ol.AdaptiveOrthoConv2d(2, 2, 3), (2, 5, 5)),
    (lambda: ol.AdaptiveOrthoConv2d(2, 8, 4, stride=2), (2, 6, 6)),
    (lambda: ol.OrthoLinear(6, 4), (6,)),
    (lambda: ol.MaxMin(), (6,)),
    (lambda: ol.HouseHolder(6), (6, 2, 2)),
])  # fmt: skip
def test_orthogonal_layers_pass_and_scaled_ones_fail(make, shape, dtype):
    layer = make().to(dtype)
    assert_orthogonal(layer, shape)
    assert_lipschitz(layer, shape)
    with pytest.raises(AssertionError, match=r"not orthogonal .* \[1\.0[45]"):
        assert_orthogonal(Scaled(layer, 1.05), shape)
    with pytest.raises(AssertionError, match="not orthogonal"):
        assert_orthogonal(Scaled(layer, 0.99), shape)
    with pytest.raises(AssertionError, match="not 1-Lipschitz"):
        assert_lipschitz(Scaled(layer, 1.05), shape)
    assert_lipschitz(Scaled(layer, 1.05), shape, constant=1.05)
    assert_lipschitz(Scaled(layer, 0.5), shape, constant=0.5)


def test_plain_layers_fail():
    conv = nn.Conv2d(2, 2, 3, padding=1)
    with pytest.raises(AssertionError, match="Conv2d is not orthogonal"):
        assert_orthogonal(conv, (2, 5, 5))
    nn.init.constant_(conv.weight, 1.0)
    with pytest.raises(AssertionError, match="largest singular value"):
        assert_lipschitz(conv, (2, 5, 5), constant=4)
    with pytest.raises(AssertionError, match="not orthogonal"):
        assert_orthogonal(nn.ReLU(), (4,))


@pytest.mark.parametrize(("fn", "constant"), [(nn.GELU(), 1.12), (torch.sin, 0.99), (lambda x: x + x.sin(), 1.9)])
def test_ascent_finds_the_steepest_point(fn, constant):
    with pytest.raises(AssertionError, match="ascent"):
        assert_lipschitz(fn, (3,), constant=constant)
    assert_lipschitz(fn, (3,), constant=constant + 0.15)


def test_certificates():
    x = torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.2, 0.1]])
    exact = (x[:, 0] - x[:, 1]).abs() / 2**0.5
    assert_certificate(nn.Identity(), x, exact)
    assert_certificate(nn.Identity(), x, exact, x.argmax(1))
    with pytest.raises(AssertionError, match="1 of 3 certificates are broken: input 1 "):
        assert_certificate(nn.Identity(), x, exact * torch.tensor([1.0, 1.01, 1.0]))
    assert_certificate(nn.Identity(), x, -1.0)  # claims nothing
    with pytest.raises(AssertionError, match="3 of 3"):
        assert_certificate(nn.Identity(), x, math.inf)  # claims everything
    with pytest.raises(ShapeError, match="radius per input"):
        assert_certificate(nn.Identity(), x, torch.ones(2))


def test_counterexamples_lie_in_the_ball_and_change_the_class():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(40, 6)
    fooled, found = find_counterexample(model, x, torch.full((40,), 1.5))
    assert fooled.any() and not fooled.all()
    assert ((found - x).norm(dim=1) <= 1.5 * (1 + 1e-5)).all()
    assert (model(found).argmax(1) != model(x).argmax(1))[fooled].all()
    assert torch.equal(found[~fooled], x[~fooled])


def test_bad_arguments():
    with pytest.raises(ParameterError, match="constant"):
        assert_lipschitz(nn.ReLU(), (3,), constant=-1)
    with pytest.raises(ParameterError, match="tolerance"):
        assert_orthogonal(nn.ReLU(), (3,), tolerance=-1e-3)
