"""Rounding and overflow of numbers on the way: in long sums, beside large constants, behind squares and windows."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import certify, lipschitz_bound
from orthogonium import layers as ol
from tests.certification.networks import Fn

pytestmark = pytest.mark.operators
UNIT = torch.finfo(torch.float32).eps / 2


def radius(model, x, label, **options):
    return float(certify(model.eval(), [(x, torch.full((len(x),), label))], **options).radii[0])


@pytest.mark.parametrize("rounding", ["measured", "proved"])
def test_sums_that_begin_with_a_large_bias(rounding):
    """Products may be added to the bias one block at a time, by the size of the batch."""
    model = nn.Sequential(nn.Linear(10_000, 2))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].weight[0] = 0.01
        model[0].bias.copy_(torch.tensor([2.0**24, 2.0**24 + 10]))
    assert not radius(model, torch.full((8, 10_000), 0.2), 0, rounding=rounding) > 0


BIASED = {
    "dense": (lambda: nn.Linear(3000, 8), (3000,)),
    "convolution": (lambda: nn.Conv2d(256, 8, 3), (256, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(256, 4, 3), (256, 3, 3)),
    "centering": (lambda: ol.LayerCentering(3), (3, 32, 32)),
    "centering by hand": (
        lambda: nn.Sequential(nn.Identity(), Fn(lambda x: x - x.mean((1, 2), keepdim=True))), (32, 32),
    ),
    "projection": (lambda: nn.Sequential(Fn(lambda x: F.normalize(x, eps=1.0))), (3000,)),
    "average": (lambda: nn.AvgPool2d(16), (3, 32, 32)),
}  # fmt: skip


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize("bias", [1000.0, 1e6])
def test_proved_errors_hold(name, bias):
    make, shape = BIASED[name]
    model = make().float().eval()
    for p in model.parameters():
        p.requires_grad_(False)
        if p.dim() == 1:
            p.fill_(bias)
    constant, slope = lipschitz_bound(model, shape).error.proved
    level = torch.linspace(1, 2, 40).reshape(-1, *[1] * len(shape))
    x = torch.cat([torch.randn(40, *shape), level.expand(-1, *shape)])
    deviation = (model(x).double() - model.double()(x.double())).flatten(1).norm(dim=1)
    assert bool((deviation <= constant + slope * x.double().flatten(1).norm(dim=1)).all())


@pytest.mark.parametrize("rounding", ["measured", "proved"])
def test_constants_that_cancel_inside_a_product(rounding):
    """x + 2²⁴ − 2²⁴, in one product: exact for even numbers, among which is the sample."""

    class Cancelling(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(2, 1)
            with torch.no_grad():
                self.dense.weight.copy_(torch.tensor([[1.0, 1 / 16]]))
                self.dense.bias.fill_(-(2.0**24))

        def forward(self, x):
            y = self.dense(torch.cat([x[:, :1], torch.full_like(x[:, :1], 16 * 2.0**24)], 1))
            return torch.cat([y, torch.full_like(y, 0.5)], 1)

    model = Cancelling().eval()
    assert model(torch.tensor([[2.0]]))[0].tolist() == [2.0, 0.5]
    assert not radius(model, torch.tensor([[2.0]]), 0, rounding=rounding) > 1


def test_the_floor_of_long_sums_grows():
    model = nn.Linear(150_528, 2, bias=False)
    found = lipschitz_bound(model, (150_528,))
    assert found.error.floor[1] > 20 * UNIT * found.value
    short = lipschitz_bound(nn.Linear(16, 16, bias=False), (16,))
    assert short.error.floor[1] < 1.1 * UNIT * short.value


def test_partial_sums_that_underflow():
    found = lipschitz_bound(nn.Linear(1000, 1, bias=False), (1000,))
    assert found.error.proved[0] >= 1000 * torch.finfo(torch.float32).tiny


def test_integers_that_a_cast_moves():
    model, x = nn.Sequential(nn.ReLU()), torch.tensor([[2**24 + 3, 2**24 + 1]])
    assert radius(model, x, 0) <= 1.0
    assert radius(model, torch.tensor([[5, 1]]), 0) == pytest.approx(4 / math.sqrt(2), rel=1e-5)


OVERFLOWING = {
    "sum of a window": (nn.AdaptiveAvgPool3d((2, 1, 1)), (1, 8, 8, 8), torch.float16, 255.9),
    "average": (nn.AvgPool2d(16), (1, 16, 16), torch.float16, 255.9),
    "hardswish": (nn.Hardswish(), (2,), torch.float32, 6e37),
    "sinc": (Fn(torch.sinc), (2,), torch.float32, 1.2e38),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERFLOWING)
def test_reach_ends_before_numbers_on_the_way_overflow(name):
    module, shape, dtype, entry = OVERFLOWING[name]
    model = nn.Sequential(module)
    model.register_buffer("kind", torch.zeros((), dtype=dtype))
    x = torch.full((1, *shape), entry, dtype=torch.float64)
    assert lipschitz_bound(model.eval(), shape).reach < float(x.norm())


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 1, 7), (11, 2)), ((1, 9, 1), (3, 8)), ((1, 9, 1), (3, 1)), ((2, 6, 5), (2, 9)), ((1, 6, 6), (9, 9))],
)
def test_resampling_against_aliases(mode, align, shape, size):
    def resize(x):
        return F.interpolate(x, size=size, mode=mode, antialias=True, align_corners=align)

    model = Fn(resize)
    model.register_buffer("kind", torch.zeros((), dtype=torch.float64))
    eye = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    exact = float(torch.linalg.matrix_norm(resize(eye).flatten(1), ord=2))
    assert exact * (1 - 1e-9) <= lipschitz_bound(model.eval(), shape).value <= 1.0001 * exact
