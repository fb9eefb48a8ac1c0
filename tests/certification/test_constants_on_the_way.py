"""Rounding that the sample itself does not show: biases, constants that cancel, casts, overflow and underflow."""

import math

import pytest
import torch
from torch import nn

from orthogonium import certify, lipschitz_bound
from orthogonium.certification.radii import VRA, certified_radii
from orthogonium.errors import GuaranteeWarning
from orthogonium.layers import HouseHolder_Order_2, LayerCentering

ROUNDINGS = ("measured", "proved")
LARGE = 2.0**24  # the spacing of float32 is 2 from here on


def certified(model, x, labels=0, **options):
    labels = torch.full((len(x),), labels)
    return certify(model.eval(), [(x, labels)], eps=[0.0], **options).radii


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_sums_may_start_with_the_bias(rounding):
    model = nn.Linear(10000, 2)
    with torch.no_grad():
        model.weight[0], model.weight[1] = 2.0**-9, 0.0
        model.bias.copy_(torch.tensor([LARGE, LARGE + 10]))
    assert float(certified(model, torch.full((8, 10000), 1.024), rounding=rounding).max()) <= 0


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("layer", [nn.Linear(3000, 8), nn.Conv2d(256, 8, 3)], ids=["linear", "conv"])
def test_proved_errors_are_not_below_actual_ones(layer, rounding):
    nn.init.constant_(layer.bias, 1000.0)
    shape = (3000,) if isinstance(layer, nn.Linear) else (256, 3, 3)
    constant, slope = lipschitz_bound(layer.eval(), shape).error.proved
    x = torch.randn(64, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        actual = (layer(x).double() - layer.double()(x.double())).flatten(1).norm(dim=1)
    layer.float()
    assert bool((actual <= constant + slope * x.double().flatten(1).norm(dim=1)).all())


class CancelsInside(nn.Module):
    """x₀ + 2²⁴ − 2²⁴ inside one operator, beside x₁."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.head = nn.Linear(2, 1)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0, 1 / 16]]))
            self.head.bias.fill_(-LARGE)

    def forward(self, x):
        column = torch.ones_like(x[:, :1]).detach()
        if self.way == "linear":
            first = self.head(torch.cat([x[:, :1], 16 * LARGE * column], 1))
        else:
            parts = torch.cat([LARGE * column, x[:, :1], -LARGE * column], 1)
            first = parts.sum(1, keepdim=True) if self.way == "sum" else 3 * parts.mean(1, keepdim=True)
        return torch.cat([first, x[:, 1:]], 1)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("way", ["linear", "sum", "mean"])
def test_constants_that_cancel(way, rounding):
    model, x = CancelsInside(way).eval(), torch.tensor([[2.0, 0.5]])
    radius = float(certified(model, x, rounding=rounding))
    assert radius < 1.0  # where `linear` and `sum` are 0 instead of 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_inputs_of_more_digits_than_the_model(dtype):
    x = torch.tensor([[2**24 + 3, 2**24 + 1]], dtype=dtype)
    moved = (x + torch.tensor([[-1, 2]])).float()
    assert nn.ReLU()(moved).argmax(1) == 1
    assert float(certified(nn.Sequential(nn.ReLU()), x)) < math.sqrt(5)


def test_small_integers_are_exact():
    with pytest.warns(GuaranteeWarning, match="from 0 to 255"):
        assert float(certified(nn.Sequential(nn.ReLU()), torch.tensor([[200, 100]], dtype=torch.uint8))) > 70


def test_sums_of_a_pooling_may_overflow():
    model = nn.Sequential(nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(8, 2)).half()
    bound = lipschitz_bound(model.eval(), (1, 16, 16, 16))
    x = torch.zeros(1, 1, 16, 16, 16, dtype=torch.float16)
    x[:, :, :8, :8, :8] = 129.0  # whose sum of 512 is more than 65504, where torch adds up in half precision
    assert bound.reach < float(x.double().norm())


@pytest.mark.parametrize("function", [nn.Hardswish(), torch.sinc], ids=["hardswish", "sinc"])
def test_factors_on_the_way_may_overflow(function):
    class Applied(nn.Module):
        def forward(self, x):
            return function(x)

    reach = lipschitz_bound(Applied().eval(), (2,)).reach
    assert bool(function(torch.tensor([reach, -reach])).isfinite().all())


def test_each_partial_sum_may_underflow():
    tiny = torch.finfo(torch.float32).tiny
    model = nn.Sequential(nn.Linear(1000, 1, bias=False)).eval()
    nn.init.constant_(model[0].weight, 1.0)
    # Where small numbers are flushed to 0, as processors may, each product below `tiny` is lost.
    assert lipschitz_bound(model, (1000,)).error.proved[0] >= 999 * tiny


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 64)])
def test_centering_has_the_error_of_its_mean(shape):
    class Centered(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=tuple(range(1, x.dim())), keepdim=True)

    x = torch.full((4, *shape), 1.1) + torch.arange(4.0).reshape(-1, *[1] * len(shape))
    for model in (Centered().eval(), LayerCentering(shape[0]).eval()) if len(shape) == 3 else (Centered().eval(),):
        constant, slope = lipschitz_bound(model, shape).error.proved
        with torch.no_grad():
            actual = (model(x).double() - model.double()(x.double())).flatten(1).norm(dim=1)
        assert bool((actual <= constant + slope * x.double().flatten(1).norm(dim=1)).all())


def test_large_angles():
    activation = HouseHolder_Order_2(2)
    with torch.no_grad():
        activation.theta.copy_(torch.tensor([[1e6], [1.3], [2.1]]))
    angles = torch.linspace(0, 2 * math.pi, 20001, dtype=torch.float64)
    x = torch.stack([angles.cos(), angles.sin()], 1).float()
    with torch.no_grad():
        steps, moves = (t.double().diff(dim=0).norm(dim=1) for t in (activation(x), x))
    assert float((steps - moves).max()) < 1e-5
    y = activation(x)
    y.sum().backward()
    assert activation.theta.grad[0].abs().item() > 0


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape, size", [((6, 7), (9, 5)), ((6, 1), (9, 1)), ((6, 4), (2, 1)), ((1, 6), (1, 9))])
def test_antialiased_resampling(shape, size, mode, aligned):
    class Resampled(nn.Module):
        def forward(self, x):
            return nn.functional.interpolate(x, size=size, mode=mode, align_corners=aligned, antialias=True)

    model = Resampled().eval()
    impulses = torch.eye(math.prod(shape), dtype=torch.float32).reshape(-1, 1, *shape)
    largest = float(torch.linalg.matrix_norm(model(impulses).flatten(1).double(), 2))
    bound = lipschitz_bound(model, (1, *shape)).value
    assert largest <= bound * (1 + 1e-6)


def test_radii_are_compared_with_their_rounding():
    logits = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    labels = logits.argmax(1)
    exact = (logits.double().amax(1) - logits.double().amin(1)) / 2
    for i, radius in enumerate(exact.tolist()):
        assert not VRA(logits[i : i + 1], labels[i : i + 1], eps=radius * (1 + 1e-15)).any()
        assert VRA(logits[i : i + 1], labels[i : i + 1], eps=radius * (1 - 1e-6)).all()


def test_rows_of_a_head_that_are_close():
    rows = torch.tensor([[0.0, 0.0], [1e-23, 0.0]])
    radius = certified_radii(torch.tensor([[1e-23, 0.0]]), torch.tensor([0]), rows)
    assert float(radius) == pytest.approx(1.0, rel=1e-5)


class Erf(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x):
        return self.function(x * self.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [torch.erf, torch.erfc])
def test_erf_is_off_next_to_zero(function, dtype):
    model = Erf(function).to(dtype).eval()
    constant, slope = lipschitz_bound(model, (64,)).error.proved
    x = (torch.logspace(-9, 0, 1024)[:, None] * torch.linspace(-1, 1, 64)).to(dtype)
    actual = (model(x).double() - function(x.double())).norm(dim=1).detach()
    assert bool((actual <= constant + slope * x.double().norm(dim=1)).all())
