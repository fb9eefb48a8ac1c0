"""Rounding, overflow and NaN: what is certified may not change its class with the batch, nor inside the radius."""

import contextlib
import math

import pytest
import torch
from torch import nn

from orthogonium import certify
from orthogonium import layers as ol
from orthogonium.certification import RefutedError
from orthogonium.certification.precise import in_precision
from orthogonium.errors import OrthogoniumError
from tests.certification.networks import Fn
from tests.certification.soundness import certified_or_refused
from tests.certification.test_refuted_certificates import network, points

pytestmark = pytest.mark.operators


def wide(dtype=torch.float32, features=256):
    """Two classes that differ little for large inputs: all that tells them apart is rounding."""
    model = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, 2)).to(dtype)
    with torch.no_grad():
        model[2].weight[1] = model[2].weight[0] + 1e-6 * torch.randn(features)
    return model.eval()


SIZES = (1, 2, 16, 2048)


@pytest.mark.parametrize(
    ("first", "second"), [(1e-3, 1e3), (1e-3, 1e6), (1.0, 1e5), (0.0, 1e4), (1e6, 1e-3), (1e2, 1e2)]
)
def test_large_inputs_after_small_ones(first, second):
    model, x = wide(), torch.randn(2064, 256)
    certified_or_refused(model, first * x[:16], second * x[16:], sizes=SIZES, steps=5)


OFFSETS = {
    "2^24": (torch.float32, 2.0**24), "2^20": (torch.float32, 2.0**20), "2^30": (torch.float32, 2.0**30),
    "2^53": (torch.float64, 2.0**53), "half": (torch.float16, 2.0**11), "bfloat16": (torch.bfloat16, 2.0**8),
}  # fmt: skip


class Offset(nn.Module):
    """Adds a large number to one logit and takes it away again."""

    def __init__(self, amount, dtype):
        super().__init__()
        self.register_buffer("bias", torch.tensor([amount, 0.0], dtype=dtype))

    def forward(self, x):
        return (x + self.bias) - self.bias


class TwoLayers(nn.Sequential):
    def __init__(self, amount, dtype):
        super().__init__(nn.Linear(2, 2), nn.Linear(2, 2))
        with torch.no_grad():
            for layer, sign in zip(self, (1, -1), strict=True):
                layer.weight.copy_(torch.eye(2))
                layer.bias.copy_(torch.tensor([sign * amount, 0.0]))
        self.to(dtype)


@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("kind", [Offset, TwoLayers])
def test_large_biases(name, kind):
    dtype, amount = OFFSETS[name]
    unit = amount * torch.finfo(dtype).eps  # sums with the bias are exact for its multiples
    x = unit * torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [1.0, 3.0], [3.0, 0.0], [2.0, -2.0]])
    with contextlib.suppress(RefutedError):  # the steps that rounding makes are steeper than any bound
        certified_or_refused(kind(amount, dtype).eval(), x.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_networks_in_half_precision(dtype):
    model = network().to(dtype)
    certified_or_refused(model, points(200).to(dtype), 1e-2 * points(50).to(dtype), sizes=(1, 3, 64), steps=10)


@pytest.mark.parametrize("kernel", [1, 3])
def test_convolutions_of_all_batch_sizes(kernel):
    model = nn.Sequential(nn.Conv2d(3, 16, kernel), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(1, 3, 6, 6))
    x = torch.randn(64, 3, 6, 6)
    certified_or_refused(model.eval(), x[:4] * 1e-3, x * 1e4, sizes=(1, 5, 64), steps=5)


@pytest.mark.parametrize("error", [-5.0, math.nan, math.inf, -1e-300, -math.inf])
def test_a_forward_error_is_a_number(error):
    x = points(4)
    with pytest.raises(OrthogoniumError, match="forward_error"):
        certify(network(), [(x, torch.tensor([0, 1, 2, 0]))], forward_error=error)


NANS = {
    "bias of a block": lambda: nn.Sequential(ol.CPLLinear(8), ol.OrthoLinear(8, 3)),
    "one logit": lambda: nn.Sequential(ol.OrthoLinear(8, 3), Fn(lambda y: y + torch.tensor([0.0, 0.0, math.nan]))),
    "infinite logit": lambda: nn.Sequential(ol.OrthoLinear(8, 3), Fn(lambda y: y + torch.tensor([math.inf, 0.0, 0.0]))),
}  # fmt: skip


@pytest.mark.parametrize("name", NANS)
def test_nan_is_not_certified(name):
    model = NANS[name]().eval()
    if name == "bias of a block":
        with torch.no_grad():
            model[0].bias[0] = math.nan
    found = certified_or_refused(model, points(8))
    assert found is None or not (found.radii > 0).any()


def test_overflow_is_not_certified():
    """Half-precision logits [inf, 60000] of inputs that are finite."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False)).half().eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[40.0, 0.0], [0.0, 40.0]]))
    x = torch.tensor([[2000.0, 1500.0], [1500.0, 2000.0], [2000.0, 2000.0], [1.0, 0.0]]).half()
    found = certify(model, [(x, torch.tensor([0, 1, 0, 0]))])
    assert (
        not (found.radii[:3] > 0).any() and not found.radii.isnan().any() and found.certified_accuracy_at(0.0) <= 0.25
    )


class TestResults:
    """What a result says of itself."""

    def test_kinds_of_rounding(self):
        model, x = network(), points(40)
        y = model(x).argmax(1)
        measured, proved = (certify(model, [(x, y)], rounding=kind) for kind in ("measured", "proved"))
        assert (measured.rounding, proved.rounding) == ("measured", "proved")
        assert (proved.radii <= measured.radii).all() and (proved.radii > 0).any()
        assert measured.attacked > 0 and measured.non_finite == proved.non_finite == 0
        with pytest.raises(OrthogoniumError, match="rounding"):
            certify(model, [(x, y)], rounding="guessed")

    def test_stride(self):
        model, x = network(), points(40)
        y = model(x).argmax(1)
        assert len(certify(model, [(x, y)], stride=4).radii) == 40
        with pytest.raises(OrthogoniumError, match="stride"):
            certify(model, [(x, y)], stride=0)

    def test_non_finite_logits_are_counted(self):
        model = Fn(lambda x: 1e30 * (x - 1) * torch.tensor([1.0, 2.0]))
        model.register_buffer("kind", torch.zeros(()))
        x = torch.tensor([[1e20, 0.0], [3.0, 1.0]])
        found = certify(model.eval(), [(x, torch.tensor([0, 0]))])
        assert found.non_finite == 1 and not found.radii[0] > 0 and found.radii.isfinite().all()

    def test_every_class_is_the_label_of_others(self):
        """Labels that are wrong have no certificate."""
        model, x = network(), points(40)
        y = (model(x).argmax(1) + 1) % 3
        assert not (certify(model, [(x, y)]).radii > 0).any()


def test_a_loader_may_use_its_memory_again():
    model, x = network(), points(48)

    def batches():
        memory = torch.empty(16, *x.shape[1:])
        for part in x.split(16):
            yield memory.copy_(part), labels(part)

    def labels(part):
        return model(part).argmax(1)

    once = certify(model, [(x, labels(x))])
    torch.testing.assert_close(certify(model, batches()).radii, once.radii, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("axis", [1, -1, 2])
def test_maxmin_in_another_precision(axis):
    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
    out = in_precision(ol.MaxMin(axis), x, torch.float64)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, ol.MaxMin(axis)(x.double()), rtol=0, atol=0)
