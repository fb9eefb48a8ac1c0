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
    assert_lipschitz(layer, shape, points=4)
    with pytest.raises(AssertionError, match=r"not orthogonal .* \[1\.0[45]"):
        assert_orthogonal(Scaled(layer, 1.05), shape)
    with pytest.raises(AssertionError, match="not orthogonal"):
        assert_orthogonal(Scaled(layer, 0.99), shape)
    with pytest.raises(AssertionError, match="not 1-Lipschitz"):
        assert_lipschitz(Scaled(layer, 1.05), shape, points=4)
    assert_lipschitz(Scaled(layer, 1.05), shape, constant=1.05, points=4)
    assert_lipschitz(Scaled(layer, 0.5), shape, constant=0.5, points=4)


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
def test_the_search_finds_the_steepest_place(fn, constant):
    with pytest.raises(AssertionError, match="moved apart by a factor"):
        assert_lipschitz(fn, (3,), constant=constant)
    assert_lipschitz(fn, (3,), constant=constant + 0.15)


class Folded(nn.Module):
    """x + slope·relu(−x), with a parameter that says the dtype."""

    def __init__(self, slope, offset=0.0):
        super().__init__()
        self.slope, self.offset = nn.Parameter(torch.tensor(float(slope))), offset

    def forward(self, x):
        return x + self.slope * torch.relu(-x) + self.offset


def only_in(dtype, scale=99.0):
    class Sometimes(nn.Linear):
        def forward(self, x):
            return x + scale * torch.relu(-x) if x.dtype == dtype else x

    return Sometimes(1, 1).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [
    lambda: Folded(99), lambda: Folded(1), lambda: Folded(99, 1e4), lambda: Folded(0.5, -1e3),
    lambda: Scaled(Folded(0), 1.2), lambda: nn.Sequential(nn.Flatten(), Folded(3)),
])  # fmt: skip
def test_half_precision_hides_nothing(make, dtype):
    layer = make().to(dtype)
    with pytest.raises(AssertionError, match="not orthogonal"):
        assert_orthogonal(layer, (4,))
    if not (isinstance(layer, Folded) and layer.slope <= 1):
        with pytest.raises(AssertionError, match="not 1-Lipschitz"):
            assert_lipschitz(layer, (4,), points=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_code_that_depends_on_the_dtype(dtype):
    with pytest.raises(AssertionError, match="not 1-Lipschitz"):
        assert_lipschitz(only_in(dtype), (4,), points=4)


def lying(change):
    return lambda x: x + change(x.detach())


@pytest.mark.parametrize("fn", [
    lying(lambda x: 100 * x.sin()), lying(lambda x: 0.1 * x), lying(torch.round), lying(torch.relu),
    lambda x: (2 * x).detach(), lambda x: torch.where(x > 0, x, x + 1),
    lambda x: torch.relu(100 * (x - 5)), lambda x: x.bfloat16().float(), nn.functional.normalize,
])  # fmt: skip
def test_gradients_are_not_believed(fn):
    with pytest.raises(AssertionError, match="not 1-Lipschitz"):
        assert_lipschitz(fn, (4,), points=4)


@pytest.mark.parametrize("fn", [lying(lambda x: 100 * x.sin()), lying(lambda x: -0.9 * x.sin()), lying(torch.relu)])
def test_orthogonal_by_gradient_only(fn):
    with pytest.raises(AssertionError, match="not orthogonal"):
        assert_orthogonal(fn, (4,))


class Exaggerated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.tanh()

    @staticmethod
    def backward(ctx, grad):
        return 5 * grad


def test_a_gradient_that_exaggerates_refutes_nothing():
    assert_lipschitz(Exaggerated.apply, (4,), points=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [
    lambda: nn.Linear(4, 4), lambda: ol.OrthoLinear(4, 4), lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    lambda: ol.SDPBasedLipschitzDense(4, 4, 8),
])  # fmt: skip
def test_parameters_that_are_not_finite_fail(make, dtype):
    layer = make().to(dtype)
    next(layer.parameters()).data.view(-1)[0] = math.nan
    for check in (assert_orthogonal, assert_lipschitz):
        with pytest.raises(AssertionError, match="not finite"):
            check(layer, (4,))


@pytest.mark.parametrize("fn", [
    torch.exp, lambda x: x * math.nan, lambda x: torch.where(x > 20, math.nan, x), torch.log, lambda x: x / x,
])  # fmt: skip
def test_outputs_that_are_not_finite_fail(fn):
    for check in (assert_orthogonal, assert_lipschitz):
        with pytest.raises(AssertionError, match="not finite"):
            check(fn, (4,))


def test_half_precision_layers_pass():
    for dtype in (torch.bfloat16, torch.float16):
        for layer, shape in (
            (ol.OrthoLinear(8, 4), (8,)),
            (ol.AdaptiveOrthoConv2d(2, 2, 3), (2, 4, 4)),
            (ol.MaxMin(), (6,)),
        ):
            assert_lipschitz(layer.to(dtype), shape, points=4)


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


def test_radii_that_are_not_numbers_fail():
    x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    for radius in (torch.tensor([0.1, math.nan]), torch.tensor([math.nan, -1.0]), math.nan):
        with pytest.raises(AssertionError, match="NaN"):
            assert_certificate(nn.Identity(), x, radius)
    assert_certificate(lambda x: torch.stack([x[:, 0], x[:, 0] - 1], 1), x, math.inf)  # true, and attacked


def test_what_is_wrong_without_an_attack():
    x = torch.tensor([[1.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    with pytest.raises(AssertionError, match="input 1 is not of its class 0"):
        assert_certificate(nn.Identity(), x, 1e-3, torch.tensor([0, 0, 0]))
    assert_certificate(nn.Identity(), x, torch.tensor([1e-3, 0.0, -1.0]), torch.tensor([0, 0, 1]))
    for bad in (math.nan, math.inf):
        with pytest.raises(AssertionError, match="without any perturbation"):
            assert_certificate(lambda x, bad=bad: torch.where(x > 2, bad, x), x[:2], 1e-3)


@pytest.mark.parametrize("fn", [
    lambda x: x * (1.0 if len(x) > 1 else -1.0),
    lambda x: x - x.mean(0, keepdim=True) * torch.tensor([1.2, 0.0]),
    lambda x: x * (-1) ** len(x),
    lambda x: x + torch.tensor([0.0, 9.0]) * (len(x) == 7),
    lambda x: x.cumsum(0),
])  # fmt: skip
def test_classes_that_depend_on_the_batch_break_certificates(fn):
    x = torch.tensor([[1.0, 0.0], [0.5, 3.0]] * 4)
    with pytest.raises(AssertionError, match="without any perturbation"):
        assert_certificate(fn, x, 1e-4)


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
