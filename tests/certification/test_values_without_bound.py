"""Numbers that are none, and operations that only look harmless."""

import math

import pytest
import torch
from torch import nn

from orthogonium import audit, lipschitz_bound
from orthogonium.certification import UnboundedError
from orthogonium.certification.rules.entrywise import ELU_IS_EXACT, SLOPES, fixed
from tests.certification.networks import Fn, steepest


def broken(layer, name, value=math.nan):
    with torch.no_grad():
        getattr(layer, name).view(-1)[0] = value
    return layer


@pytest.mark.parametrize(("layer", "shape"), [
    (broken(nn.Linear(3, 3), "weight"), (3,)),
    (broken(nn.Linear(3, 3), "weight", math.inf), (3,)),
    (broken(nn.Linear(3, 3), "bias"), (3,)),
    (broken(nn.Conv2d(2, 2, 3, padding=1), "weight"), (2, 4, 4)),
    (broken(nn.BatchNorm1d(3), "weight"), (3,)),
    (broken(nn.BatchNorm1d(3), "running_var", -1.0), (3,)),
    (nn.LeakyReLU(math.nan), (3,)),
    (nn.PReLU(init=math.nan), (3,)),
    (Fn(lambda x: torch.add(x, x, alpha=math.nan)), (3,)),
    (Fn(lambda x: torch.nn.functional.linear(x, torch.full((2, 3), math.nan))), (3,)),
    (Fn(lambda x: x @ torch.full((3, 3), math.inf)), (3,)),
])  # fmt: skip
def test_weights_that_are_not_numbers_have_no_bound_and_a_place(layer, shape):
    model = nn.Sequential(nn.Identity(), layer).eval()
    with pytest.raises(UnboundedError, match=r"1: .*(infinite or NaN)"):
        lipschitz_bound(model, shape)
    report = audit(model, shape)
    assert math.isinf(report.lipschitz_bound) and [row.name for row in report.rows if row.kind == "unbounded"] == ["1"]


def test_uneven_copies_count_by_the_largest():
    model = Fn(lambda x: x.repeat_interleave(torch.tensor([1, 9, 1]), dim=1))
    bound = audit(model, (3,)).lipschitz_bound
    assert bound == pytest.approx(3) and bound >= steepest(model, (3,)) - 1e-9
    even = Fn(lambda x: torch.repeat_interleave(x, torch.tensor([4]), dim=1))
    assert audit(even, (3,)).lipschitz_bound == pytest.approx(2)


@pytest.mark.skipif(not ELU_IS_EXACT, reason="refused with this version of torch")
def test_celu_with_a_negative_alpha_has_no_bound():
    assert lipschitz_bound(nn.CELU(3.0), (3,)).value == 1
    with pytest.raises(UnboundedError, match="alpha > 0"):
        lipschitz_bound(nn.CELU(-1.0), (3,))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is:DeprecationWarning")
def test_compiled_methods_are_followed():
    layer = nn.Linear(3, 3).eval()
    traced = torch.jit.trace(layer, torch.zeros(1, 3))
    assert audit(traced, (3,)).lipschitz_bound == pytest.approx(audit(layer, (3,)).lipschitz_bound)


def test_the_audit_reports_what_secants_refute(monkeypatch):
    monkeypatch.setitem(SLOPES, torch.ops.aten.sin.default, (fixed(0.0, 0.25), 0.0))  # a rule that is wrong
    report = audit(Fn(torch.sin), (3,))
    assert math.isinf(report.lipschitz_bound) and "moved apart" in report.warnings[-1]


def test_complex_numbers_are_named():
    spectrum = Fn(lambda x: torch.fft.irfft(0.5 * torch.fft.rfft(x)))
    with pytest.raises(UnboundedError, match="mul: No bound of complex numbers is known") as caught:
        lipschitz_bound(nn.Sequential(nn.Linear(4, 4), spectrum).eval(), (4,))
    assert "integer" not in str(caught.value)
