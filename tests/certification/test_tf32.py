"""Certificates where products are rounded to fewer digits: the rounding of the arithmetic in use is deducted."""

import pytest
import torch
from torch import nn

from orthogonium import certify
from orthogonium.certification import UnboundedError
from orthogonium.layers import MaxMin, OrthoLinear, freeze
from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
from tests.certification.soundness import certified_or_refused
from tests.tf32 import BY_LIBRARY, TF32, settings_of_products, tf32_allowed


def network():
    layers = [AdaptiveOrthoConv2d(2, 8, 3, stride=2), MaxMin(), nn.Flatten(), OrthoLinear(32, 32), MaxMin()]
    return nn.Sequential(*layers, OrthoLinear(32, 3)).eval()


def between_classes(model, pairs=64):
    """Inputs on both sides of boundaries between classes, from as near as float32 knows them to as far as 0.1."""
    a, b = torch.randn(2, pairs, 2, 4, 4)
    with torch.no_grad():
        apart = model(a).argmax(1) != model(b).argmax(1)
        a, b = a[apart], b[apart]
        label = model(a).argmax(1)
        low, high = torch.zeros(len(a)), torch.ones(len(a))
        at = lambda t: a + t.view(-1, 1, 1, 1) * (b - a)  # noqa: E731
        for _ in range(24):
            middle = (low + high) / 2
            same = model(at(middle)).argmax(1) == label
            low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    return torch.cat([at(low + d) for d in torch.logspace(-7, -1, 7) for d in (d, -d)])


@pytest.mark.parametrize("rounding", ["measured", "proved"])
def test_certified_classes_are_those_of_full_precision(rounding):
    model = network()
    x = between_classes(model)
    with torch.no_grad():
        exact = model(x).argmax(1)
    with tf32_allowed(), TF32() as mode:
        found = certified_or_refused(model, x, sizes=(1, 64), steps=5, rounding=rounding)
    assert mode.rounded > 0
    changed = found.predictions != exact
    assert changed.any()  # else nothing was tried
    assert (found.radii > 0).any() and not (found.radii[changed] > 0).any()


SETTINGS = {"high": lambda: torch.set_float32_matmul_precision("high")}
if BY_LIBRARY:
    SETTINGS |= {
        "matmul": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "tf32"),
        "conv": lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "tf32"),
        "library": lambda: setattr(torch.backends.mkldnn, "fp32_precision", "bf16"),
        "everything": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
        "two interfaces": lambda: (SETTINGS["high"](), SETTINGS["conv"](), SETTINGS["matmul"]()),
    }


@pytest.mark.parametrize("rounding", ["measured", "proved"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_counts(name, rounding):
    """Errors of 2⁻¹¹ of the norms at least, which the layers of this model keep; without a setting they are smaller."""
    model, x = network(), torch.randn(16, 2, 4, 4)
    units = certify(model, [(x, torch.zeros(16).long())], rounding=rounding).forward_errors / x.flatten(1).norm(dim=1)
    assert (units < 2**-13).all()
    with settings_of_products():
        SETTINGS[name]()
        found = certify(model, [(x, torch.zeros(16).long())], rounding=rounding)
    assert (found.forward_errors >= 2**-11 * x.flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("rounding", ["measured", "proved"])
def test_inputs_at_which_nothing_is_rounded(rounding):
    """All factors have 10 bits, but inputs beside these have more: a step of half a unit is rounded to a whole one."""
    layer = nn.Linear(64, 2)
    ulp = 2**-10
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1 / 8], [0.0]]).expand(2, 64))
        layer.bias.copy_(torch.tensor([-8 * (1 + ulp) + 6 * ulp, 0.0]))
        x = torch.full((1, 64), 1 + ulp)
        moved = torch.full((1, 64), 1 + 0.499 * ulp)
        with tf32_allowed(), TF32():
            assert torch.equal(layer(x), torch.tensor([[6 * ulp, 0.0]]))
            assert layer(moved).argmax() == 1 and (moved - x).norm() < 0.7 * 6 * ulp
            found = certify(nn.Sequential(layer).eval(), [(x, torch.tensor([0]))], rounding=rounding)
    assert found.radii <= (moved - x).norm()


@pytest.mark.parametrize("rounding", ["measured", "proved"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype, rounding):
    """Certified classes are those of the same weights and inputs in float64; others are not."""
    model = network()
    x = between_classes(model).to(dtype)
    model = freeze(model).to(dtype)
    with torch.no_grad():
        exact = freeze(model).double()(x.double()).argmax(1)
    found = certified_or_refused(model, x, sizes=(1, 64), steps=5, rounding=rounding)
    changed = found.predictions != exact
    assert changed.any() and not (found.radii[changed] > 0).any()
    assert rounding == "proved" or (found.radii > 0).any()  # sums of 32 products in 8 bits prove nothing


class Autocast(nn.Module):
    def __init__(self, model, dtype):
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x):
        with torch.autocast("cpu", self.dtype):
            return self.model(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_is_refused(dtype):
    """Inside the model and around it: casts are steps, whose size no dtype tells."""
    model, batch = network(), (torch.randn(4, 2, 4, 4), torch.zeros(4).long())
    with pytest.raises(UnboundedError, match="model.to"):
        certify(Autocast(model, dtype).eval(), [batch])
    with torch.autocast("cpu", dtype), pytest.raises(UnboundedError, match="model.to"):
        certify(model, [batch])
