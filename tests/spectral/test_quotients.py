import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import layers as ol
from orthogonium.errors import ParameterError
from orthogonium.spectral import Quotient, exact_twin, jacobian_singular_values, steepest_quotient

DTYPES = [torch.float32, torch.float64]


def pick(first, x):
    """Factors of entries: `first`, then ones."""
    return torch.cat([torch.full((1,), first), torch.ones(x.shape[1] - 1)]).to(x)


def recompute(fn, found: Quotient) -> float:
    out = fn(torch.stack([found.x, found.y])).double().flatten(1)
    return float((out[0] - out[1]).norm() / (found.x.double() - found.y.double()).norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("fn", "least"), [
    (lambda x: x + (100 * x.sin()).detach(), 100),  # the derivative lies
    (lambda x: F.relu(100 * (x - 5)), 99.9),  # steep far from the origin
    (lambda x: F.relu(-100 * (x + 500)), 99.9),
    (lambda x: F.relu(100 * (x - 5)) - F.relu(100 * (x - 5.01)), 99),  # steep in a narrow place only
    (lambda x: F.normalize(x, dim=1), 1e5),  # steep near the origin
    (lambda x: x.abs().sqrt(), 1e3),
    (lambda x: torch.where(x > 0, x, x + 1), 20),  # jumps down
    (lambda x: torch.where(x > 3.3, x - 0.01, x), 5),
    (lambda x: x + 0.3 * (x.sum(1, keepdim=True) > 7).to(x), 20),  # a jump of no single entry
    (torch.round, 20),
    (lambda x: x.bfloat16().to(x), 20),
    (lambda x: x.topk(3, dim=1, sorted=False).values, 20),
    (lambda x: pick(50.0, x) * x, 49.9),  # one entry of many
    (lambda x: pick(50.0, x) * x.detach(), 10),
    (F.gelu, 1.12),
    (F.hardswish, 1.44),
])  # fmt: skip
def test_finds_what_is_steep(fn, least, dtype):
    for size in (6, 48):
        found = steepest_quotient(fn, (size,), dtype=dtype)
        assert found.finite and found.lower > least
        assert found.value == pytest.approx(recompute(fn, found), rel=1e-6)


def test_finds_the_jump_of_softplus_at_its_threshold():
    # log(1 + exp(−20)) = 2e-9 is lost from one float64 number to the next
    assert steepest_quotient(F.softplus, (4,), dtype=torch.float64, budget=4000).lower > 1e3


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fn", [
    torch.relu, torch.abs, torch.sin, lambda x: x, lambda x: x.sort(dim=1).values, lambda x: x.clamp(-50, 50),
    lambda x: x.flip(1) - 3, torch.zeros_like, lambda x: 0.3 * x.cumsum(1).tanh()[:, :1],
])  # fmt: skip
def test_says_what_rounding_explains(fn, dtype):
    found = steepest_quotient(fn, (12,), dtype=dtype, scales=(1e-3, 1.0))
    assert found.finite and found.lower <= 1
    assert 0 <= found.rounding and math.isfinite(found.value)


@pytest.mark.parametrize("make", [
    lambda: nn.Sequential(ol.AdaptiveOrthoConv2d(3, 8, 3), ol.MaxMin(), nn.Flatten(), ol.OrthoLinear(128, 10)),
    lambda: nn.Sequential(ol.SDPBasedLipschitzResBlock(3, 2), nn.ReLU()),
])  # fmt: skip
def test_networks_are_judged_by_their_twins(make):
    network = make().eval()
    twin = exact_twin(network, (3, 4, 4))
    found = steepest_quotient(twin, (3, 4, 4), dtype=torch.float64)
    assert found.lower <= 1 + 1e-5  # float32 weights
    assert found.lower > 0.9 * jacobian_singular_values(twin, found.x[None]).max()
    assert steepest_quotient(network, (3, 4, 4)).lower <= 1 + 1e-4


@pytest.mark.parametrize("fn", [
    torch.exp, lambda x: x * math.nan, lambda x: torch.where(x > 25, math.nan, x), lambda x: x / x, torch.log,
])  # fmt: skip
def test_reports_outputs_that_are_not_finite(fn):
    found = steepest_quotient(fn, (3,))
    assert not found.finite and found.value == found.lower == math.inf
    assert not fn(found.x).isfinite().all()


def test_half_precision_that_overflows_is_reported():
    def norm(x):
        return x.square().sum(1).sqrt()

    assert not steepest_quotient(norm, (3,), dtype=torch.float16, scales=(1.0, 1e3)).finite
    assert steepest_quotient(norm, (300,), dtype=torch.float16).finite  # what a dtype cannot hold is not asked for


def test_cost_is_bounded_and_nothing_else_is_touched():
    batches = []

    def fn(x):
        batches.append(len(x) * (3 if x.requires_grad else 1))
        return x.relu()

    state = torch.get_rng_state()
    first = steepest_quotient(fn, (3, 5, 5), seed=1)
    assert sum(batches) <= 30 * 8 * 1.1 and max(batches) <= 8
    assert torch.equal(torch.get_rng_state(), state)
    again = steepest_quotient(fn, (3, 5, 5), seed=1)
    assert first.value == again.value and torch.equal(first.x, again.x)


def test_bad_arguments():
    with pytest.raises(ParameterError, match="[Ss]cales"):
        steepest_quotient(torch.sin, (3,), scales=(0.0, 1.0))
    with pytest.raises(ParameterError, match="budget"):
        steepest_quotient(torch.sin, (3,), budget=3)


class Casts(nn.Linear):
    def forward(self, x):
        return super().forward(x.float())


class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = torch.eye(3)  # neither parameter nor buffer: stays in float32

    def forward(self, x):
        return x @ self.matrix


class OwnWay(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.dtype == torch.float64 else 3 * super().forward(x)


def test_twins():
    layer = ol.OrthoLinear(3, 3).bfloat16()
    twin = exact_twin(layer, (3,))
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(
        twin(x), x @ layer.weight.double().T + layer.bias.double()
    )  # what is applied, not what is meant
    assert layer.weight.dtype == torch.bfloat16 and nn.utils.parametrize.is_parametrized(layer)
    assert exact_twin(torch.relu, (3,)) is torch.relu
    double = ol.OrthoLinear(3, 3).double()
    assert torch.equal(exact_twin(double, (3,))(x), double(x))
    for none in (Casts(3, 3), Held(), OwnWay(3, 3), lambda x: x.float(), lambda x: x * torch.eye(3)[0] @ torch.eye(3)):
        assert exact_twin(none, (3,)) is None


def test_a_twin_leaves_parametrized_modules_alone():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    twin = exact_twin(layer, (4,))
    x = torch.randn(2, 4)
    assert torch.allclose(twin(x.double()).float(), layer(x), atol=1e-5)
    assert layer.weight.dtype == torch.float32 and len(layer.parametrizations.weight) == 1
