import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.layers.slopes import _ALLOWED, bounded_slopes, is_homogeneous

NAMES = [name for name, _, _ in _ALLOWED.values()]


@pytest.mark.parametrize("name", NAMES)
def test_secant_slopes_of_every_offered_activation(name):
    activation = bounded_slopes(name, "block")
    points = torch.cat([torch.linspace(-30, 30, 6001), torch.randn(2000)]).double().sort().values.unique()
    points = points[torch.cat([torch.ones(1, dtype=torch.bool), points.diff() > 1e-6])]
    slopes = activation(points).diff() / points.diff()
    assert slopes.min() >= -1e-7 and slopes.max() <= 1 + 1e-7
    assert slopes.max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_homogeneous_means_that_scales_pass_through(name):
    activation = bounded_slopes(name, "block")
    x = torch.randn(100).double()
    assert torch.allclose(activation(3 * x), 3 * activation(x)) == is_homogeneous(activation)


def test_modules_and_classes():
    leaky = nn.LeakyReLU(0.3)
    assert bounded_slopes(leaky, "block") is leaky
    assert isinstance(bounded_slopes(nn.ELU, "block"), nn.ELU)
    assert isinstance(bounded_slopes("ReLU", "block"), nn.ReLU)


class MaxMin(nn.Module):
    pass


@pytest.mark.parametrize(
    "activation, reason",
    [
        ("abs", "slope is −1"),
        ("GELU", "between −0.13 and 1.13"),
        (nn.GELU(), "between −0.13 and 1.13"),
        (nn.SiLU, "between −0.10 and 1.10"),
        (MaxMin(), "mixes channels"),
        (nn.PReLU(), "learned"),
        (nn.Softmax(1), "mixes channels"),
        (nn.Conv2d(1, 1, 1), "nothing is known"),
        ("rele", "nothing is known"),
        (torch.relu, "nothing is known"),
        (nn.LeakyReLU(-0.1), "0 ≤ negative_slope ≤ 1"),
        (nn.LeakyReLU(1.1), "0 ≤ negative_slope ≤ 1"),
        (nn.ELU(1.5), "0 ≤ alpha ≤ 1"),
        (nn.Softplus(threshold=1), "threshold ≥ 20"),
        (3, "nothing is known"),
    ],
)
def test_others_are_refused_with_the_reason(activation, reason):
    with pytest.raises(ParameterError, match=reason) as error:
        bounded_slopes(activation, "MyBlock")
    assert "MyBlock" in str(error.value) and "[0, 1]" in str(error.value)


@pytest.mark.parametrize("name, slope", [("gelu", 1.1), ("silu", 1.09), ("hardswish", 1.49), ("selu", 1.7)])
def test_refused_slopes_do_leave_the_interval(name, slope):
    x = torch.linspace(-5, 5, 10001).double()
    slopes = getattr(nn.functional, name)(x).diff() / x.diff()
    assert slopes.max() > slope
