"""Constants other than 1: the same functions, times a number that everything counts."""

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import orthogonium
from orthogonium.errors import ConstraintError, ParameterError
from orthogonium.layers import (
    AdaptiveOrthoConv2d,
    AdditiveResidual,
    LipschitzConv2d,
    LipschitzConvTranspose1d,
    LipschitzLinear,
    MaxMin,
    OrthoLinear,
    Scale,
    SDPBasedLipschitzResBlock,
    UnitNormLinear,
    freeze,
    spread_constant,
)
from orthogonium.methods import METHODS
from tests.contracts.test_contracts import LAYERS, train_step
from tests.jacobians import ascend, jacobian_norm, jacobians
from tests.layers.conv.executions import count_in_turn

CONSTANTS = (0.3, 1.0, 7.0)


def scaled(name, lipschitz):
    """A layer, its twin with constant 1 and the same parameters, and an input."""
    case = LAYERS[name]
    layer, plain = case.make(lipschitz=lipschitz), case.make()
    plain.load_state_dict(layer.state_dict())  # the constant is no part of it
    return layer, plain, case.input(layer)


@pytest.mark.parametrize("lipschitz", CONSTANTS)
@pytest.mark.parametrize("name", LAYERS)
def test_singular_values(name, lipschitz):
    layer = LAYERS[name].make(lipschitz=lipschitz)
    x = LAYERS[name].input(layer)
    for steps in (0, 3):
        for _ in range(steps):
            train_step(layer, x, lr=0.1 / max(lipschitz, 1.0))  # the gradient grows with the constant
        judged = freeze(layer).double()
        points = torch.cat([x.double(), ascend(judged, x.double())])
        found = jacobian_norm(judged, points)
        if layer.guarantee.each_output:
            rows = jacobians(judged, points).norm(dim=2)
            assert (rows / lipschitz - 1).abs().max() <= 1e-5
        else:
            assert found <= lipschitz * (1 + 1e-5)
        if layer.guarantee.kind == "orthogonal":
            sigma = torch.linalg.svdvals(jacobians(judged, x.double()[:1]))
            assert sigma.min() >= lipschitz * (1 - 1e-5)


@pytest.mark.parametrize("lipschitz", [0.3, 7.0])
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_the_layer_times_the_constant(name, lipschitz):
    layer, plain, x = scaled(name, lipschitz)
    bias = layer.bias if isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)) else None
    with torch.no_grad():
        if bias is not None:
            bias.zero_()
            plain.bias.zero_()
        torch.testing.assert_close(layer(x), lipschitz * plain(x), rtol=1e-4, atol=1e-5 * lipschitz)
        torch.testing.assert_close(layer.eval()(x), lipschitz * plain.eval()(x), rtol=1e-4, atol=1e-5 * lipschitz)


@pytest.mark.parametrize("lipschitz", [0.3, 7.0])
@pytest.mark.parametrize("name", [name for name in LAYERS if "OrthoLinear" not in name or name.endswith("DEFAULT")])
def test_guarantee_audit_and_bound_count_it(name, lipschitz):
    layer = LAYERS[name].make(lipschitz=lipschitz).eval()
    shape = LAYERS[name].input(layer).shape[1:]
    assert layer.guarantee.constant == layer.lipschitz == lipschitz and f"{lipschitz:g}" in str(layer.guarantee)
    for model in (layer, freeze(layer)):
        report = orthogonium.audit(model, shape)
        assert not report.warnings
        assert report.lipschitz_bound == orthogonium.lipschitz_bound(model, shape).value
        if not layer.guarantee.each_output:
            # "SOC", RKO and AOL stay below; blocks are bounded by their structure.
            assert report.lipschitz_bound <= lipschitz * (1 + 1e-4)
        if layer.guarantee.kind == "orthogonal":
            assert report.lipschitz_bound >= lipschitz * (1 - 1e-4)


@pytest.mark.parametrize("lipschitz", [0.3, 7.0])
@pytest.mark.parametrize("name", ["OrthoLinear-DEFAULT", "AOC", "SLL", "SLL-AOC", "Sandwich", "CPLLinear"])
def test_a_broken_constant_is_found(name, lipschitz):
    layer = freeze(LAYERS[name].make(lipschitz=lipschitz))
    with torch.no_grad():
        layer.weight *= 4
    report = orthogonium.audit(layer, LAYERS[name].input(layer).shape[1:])
    assert any("guarantee is broken" in text for text in report.warnings)
    assert report.lipschitz_bound > 1.001 * lipschitz


@pytest.mark.parametrize("lipschitz", [0, -1.0, math.inf, math.nan, "2", True, None])
def test_what_is_no_constant_is_refused(lipschitz):
    for cls, arguments in (
        (OrthoLinear, (3, 3)),
        (AdaptiveOrthoConv2d, (4, 4, 3)),
        (SDPBasedLipschitzResBlock, (4, 2)),
    ):
        with pytest.raises(ParameterError, match="lipschitz.*positive"):
            cls(*arguments, lipschitz=lipschitz)
    with pytest.raises(ParameterError, match="Scale: lipschitz"):
        Scale(lipschitz)
    with pytest.raises(ParameterError, match="lipschitz"):
        spread_constant(nn.Sequential(OrthoLinear(2, 2)), lipschitz)


def test_copies_files_and_removal_keep_it():
    layer = AdaptiveOrthoConv2d(4, 4, 3, lipschitz=2.5)
    x = torch.randn(1, 4, 6, 6)
    assert list(layer.state_dict()) == list(AdaptiveOrthoConv2d(4, 4, 3).state_dict())
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(layer), torch.load(buffer, weights_only=False), freeze(layer)):
        assert other.lipschitz == 2.5 and torch.equal(other(x), layer(x))
    expected = layer(x)
    parametrize.remove_parametrizations(layer, "weight")
    assert torch.equal(layer(x), expected)
    with pytest.raises(ConstraintError, match="multiply"):
        layer.lipschitz = 3.0


def test_it_can_be_set():
    layer = OrthoLinear(4, 4, bias=False).eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        before = layer(x)
        layer.lipschitz = 4
        assert torch.equal(layer(x), 4 * before)  # also where the weight was kept
    with pytest.raises(ParameterError, match="positive"):
        layer.lipschitz = -1.0


@pytest.mark.parametrize("method", ["aoc", "bcop", "rko"])
def test_assignment_divides_by_it(method):
    source = LipschitzConv2d(4, 4, 3, method=method, lipschitz=3.0)
    target = LipschitzConv2d(4, 4, 3, method=method, lipschitz=3.0)
    target.weight = source.weight.detach()
    torch.testing.assert_close(target.weight, source.weight, rtol=1e-4, atol=1e-4)
    other = LipschitzConv2d(4, 4, 3, method="aoc")
    with pytest.raises(ConstraintError, match="outside the set"):
        other.weight = LipschitzConv2d(4, 4, 3, method="aoc", lipschitz=3.0).weight.detach()
    dense = OrthoLinear(3, 5, lipschitz=0.5)
    dense.weight = torch.randn(5, 3)
    sigma = torch.linalg.svdvals(dense.weight)
    torch.testing.assert_close(sigma, torch.full_like(sigma, 0.5))


@pytest.mark.parametrize("spans", [False, True])
def test_factors_in_turn_have_it(spans, monkeypatch):
    layer = AdaptiveOrthoConv2d(4, 4, 3, lipschitz=3.0)
    x = torch.randn(1, 4, 6, 6)
    expected = layer(x)
    applied = count_in_turn(monkeypatch, pixels=10**6, spans=spans)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
    assert applied


@pytest.mark.parametrize("method", METHODS)
def test_layers_by_name_take_it(method):
    entry = METHODS[method]
    if entry.conv:
        assert LipschitzConv2d(4, 4, 3, method=method, lipschitz=2.0).lipschitz == 2
    if entry.conv_transpose:
        assert LipschitzConvTranspose1d(4, 4, 3, method=method, lipschitz=2.0).lipschitz == 2
    if entry.linear:
        assert LipschitzLinear(4, 4, method=method, lipschitz=2.0).lipschitz == 2


def test_printed_in_one_line():
    lines = [
        "OrthoLinear(in_features=3, out_features=2, bias=False, lipschitz=2, kernel=OrthogonalMatrix)",
        "AdaptiveOrthoConv2d(4, 8, kernel_size=(3, 3), stride=(2, 2), padding=same, padding_mode=circular, "
        "kernel=OrthogonalKernel)",
        "SDPBasedLipschitzResBlock(4, 4, kernel_size=(3, 3), inner=8, bias=True, padding_mode=zeros, "
        "kernel=SDPKernels, activation=ReLU())",
        "Scale(3)",
        "Scale(3, learnable=True)",
        "OrthoLinear(in_features=3, out_features=2, bias=False, lipschitz=2)",
    ]
    dense = OrthoLinear(3, 2, bias=False, lipschitz=2.0)
    conv, block = AdaptiveOrthoConv2d(4, 8, 3, stride=2), SDPBasedLipschitzResBlock(4, 2)
    modules = [dense, conv, block, Scale(3), Scale(3, learnable=True), freeze(dense)]
    assert [repr(module) for module in modules] == lines
    printed = str(nn.Sequential(*modules)).splitlines()
    assert printed[1:-1] == [f"  ({i}): {line}" for i, line in enumerate(lines)]


# ── Scale ──


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_scale(dtype):
    x = torch.randn(3, 4).to(dtype)
    fixed = Scale(3)
    assert fixed(x).dtype == dtype and torch.equal(fixed(x), 3 * x) and not list(fixed.parameters())
    assert str(fixed.guarantee).startswith("all singular values 3")
    trained = Scale(3, learnable=True, dtype=dtype)
    y = trained(x)
    assert y.dtype == dtype and y.shape == x.shape
    torch.testing.assert_close(y, (2.7 * x.double()).to(dtype), rtol=2e-2 if dtype == torch.bfloat16 else 1e-6, atol=0)
    y.sum().backward()
    assert trained.alpha.grad.abs().sum() > 0


@pytest.mark.parametrize("alpha", [-200.0, 0.0, 200.0])
def test_a_trained_scale_stays_below_its_limit(alpha):
    layer = Scale(3.0, learnable=True)
    nn.init.constant_(layer.alpha, alpha)
    assert 0 <= layer.factor.item() <= 3
    bound = orthogonium.lipschitz_bound(layer, (4,)).value
    assert (
        bound == pytest.approx(layer.factor.item(), rel=1e-6, abs=1e-30) and not orthogonium.audit(layer, (4,)).warnings
    )
    layer.reset_parameters()
    assert layer.factor.item() == pytest.approx(2.7)


# ── a share for each layer ──


def test_each_layer_of_a_chain_gets_its_share():
    shared = OrthoLinear(4, 4)
    inner = nn.Sequential(shared, MaxMin(), shared)
    model = nn.Sequential(inner, OrthoLinear(4, 4, lipschitz=2.0), UnitNormLinear(4, 3))
    assert spread_constant(model, 16.0) is model
    assert [shared.lipschitz, model[1].lipschitz, model[2].lipschitz] == [2.0, 4.0, 2.0]
    assert spread_constant(model, 1.0)[1].lipschitz == 4.0
    with pytest.raises(ParameterError, match="Scale"):
        spread_constant(nn.Sequential(nn.Linear(2, 2)), 2.0)


@pytest.mark.parametrize("lipschitz", [0.5, 9.0])
def test_layers_of_a_chain_that_are_elsewhere_too_are_left_out(lipschitz):
    """Inside a residual block constants do not multiply; what undoes a layer undoes its constant."""
    shared, own = OrthoLinear(4, 4), OrthoLinear(4, 4)
    model = nn.Sequential(shared, MaxMin(), AdditiveResidual(nn.Sequential(shared, MaxMin())), own).eval()
    before = orthogonium.lipschitz_bound(model, (4,)).value
    spread_constant(model, lipschitz)
    assert [shared.lipschitz, own.lipschitz] == [1.0, lipschitz]
    assert orthogonium.lipschitz_bound(model, (4,)).value == pytest.approx(before * lipschitz, rel=1e-4)
    undone = nn.Sequential(shared, shared.inverse(), own)
    spread_constant(undone, 1 / lipschitz)
    assert [shared.lipschitz, own.lipschitz] == [1.0, 1.0]
    for nothing_left in (nn.Sequential(shared, AdditiveResidual(shared)), nn.Sequential(shared, shared.inverse())):
        with pytest.raises(ParameterError, match="nowhere else"):
            spread_constant(nothing_left, lipschitz)


def test_plain_layers_of_a_chain_keep_their_constants():
    plain = nn.Linear(4, 4)
    nn.init.orthogonal_(plain.weight, gain=7.5)
    model = nn.Sequential(plain, OrthoLinear(4, 4)).eval()
    for factor, bound in ((0.5, 3.75), (4.0, 15.0)):
        spread_constant(model, factor)
        assert orthogonium.lipschitz_bound(model, (4,)).value == pytest.approx(bound, rel=1e-4)


@pytest.mark.parametrize("method", ["aoc", "aol", "spectral"])
def test_layers_that_start_from_plain_ones(method):
    """The weight is closest to the plain one among those with this constant."""
    plain = nn.Linear(6, 6)
    nn.init.orthogonal_(plain.weight, gain=3.0)
    cls = parametrize.type_before_parametrizations(LipschitzLinear(6, 6, method=method))
    layer = cls.from_torch(plain, lipschitz=3.0)
    assert layer.lipschitz == 3 and layer.distance_to(plain) <= 0.02


@pytest.mark.parametrize("value", [-5.0, 0.0, float("nan"), float("inf")])
def test_the_factor_of_a_scale_stays_a_constant(value):
    scale = Scale(2.0)
    with pytest.raises(ParameterError):
        scale.lipschitz = value
    assert scale.lipschitz == 2.0


class Skips(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def test_a_sequential_with_a_forward_of_its_own_is_no_chain():
    with pytest.raises(ParameterError, match="no chain"):
        spread_constant(Skips(OrthoLinear(4, 4), MaxMin()), 0.01)
