"""What `convert` does not convert, or only by other means, is named with a reason."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import orthogonium
from orthogonium import convert
from orthogonium.errors import ParameterError
from orthogonium.layers import MaxMin, OrthoLinear
from tests.conversion.networks import MLP
from tests.layers.test_attention import PlainAttention


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def test_hooks_and_tied_weights_are_not_dropped_in_silence():
    tied = convert(Tied(), (6,))
    assert [r.name for r in tied.refused] == ["b"] and "weight is that of a" in str(tied)
    assert tied.bound <= 1 + 1e-4
    hooked = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    hooked[0].register_forward_hook(lambda module, args, output: 5 * output)
    hooked.register_forward_pre_hook(lambda module, args: (5 * args[0],))
    found = convert(hooked, (6,))
    assert [r.name for r in found.refused] == ["(model)", "0"] and all("hooks" in r.reason for r in found.refused)
    x, y = torch.randn(2, 4, 6)
    assert (found.model(x) - found.model(y)).norm() <= (x - y).norm() * (1 + 1e-5)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.gate = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):  # (n, t, 4)
        x = self.norm(self.first(x))
        x = x * torch.sigmoid(self.gate(x))
        return x * self.scale


def test_what_has_no_bound_is_refused_by_name():
    found = convert(Attention(), (5, 4))
    assert math.isinf(found.bound)
    reasons = {refusal.name: str(refusal) for refusal in found.refused}
    assert "norm" not in reasons and "product" in reasons["mul"] and "trained" in reasons["mul_1"]
    assert "⚠ not converted: mul" in str(found) and "no Lipschitz constant is known" in str(found)
    assert isinstance(found.model.first, OrthoLinear)


def test_attention_is_refused_with_what_to_take_instead():
    found = convert(PlainAttention(), (5, 8))
    assert math.isinf(found.bound)
    assert any("DistanceAttention" in str(refusal) for refusal in found.refused)


class ByValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.act = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x):
        x = self.act(self.norm(self.layer(x)))
        return x if x.sum() > 0 else -x


def test_a_forward_that_cannot_be_traced_keeps_its_code():
    found = convert(ByValue(), (2, 6, 6))
    assert isinstance(found.model, ByValue) and isinstance(found.model.act, MaxMin)
    assert "cannot be traced" in found.refused[0].reason and len(found.changes) == 3
    assert math.isinf(found.bound)
    with pytest.raises(ParameterError, match="graph"):
        convert(ByValue(), (2, 6, 6), weights="keep")


class Elsewhere(ByValue):
    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(self.layer)
        self.other, self.own = nn.Linear(36, 36), OrthoLinear(36, 36)

    def forward(self, x):
        y = self.act(self.norm(self.layer(x)))
        return self.own(self.other(x.flatten(1))) if x.sum() > 1 else y


def test_modules_that_a_call_with_zeros_does_not_meet_are_named():
    found = convert(Elsewhere(), (2, 6, 6))
    assert [refusal.name for refusal in found.refused][:2] == ["(forward)", "other"]
    assert "does not meet it" in found.refused[1].reason and type(found.model.other) is nn.Linear
    assert [change.name for change in found.changes] == ["layer", "norm", "act"]


class WithoutGradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            x = self.first(x)
        return self.second(x)


def test_parts_without_gradients_are_named():
    found = convert(WithoutGradients(), (4,))
    assert [refusal.name for refusal in found.refused] == ["first"] and "no_grad" in found.refused[0].reason


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x) + x


@pytest.mark.parametrize("normalized", [False, True])
def test_layers_with_a_forward_pass_of_their_own_are_followed(normalized):
    layer = Doubled(4, 4)
    if normalized:
        layer = nn.utils.parametrizations.weight_norm(layer)
    found = convert(nn.Sequential(layer, nn.ReLU()), (4,), "spectral", weights="keep")
    lost = found.refused or math.isinf(found.bound)
    assert lost or (found.agreement > 1 - 1e-5 and found.bound <= 1 + 1e-4)


def test_the_reason_why_another_method_took_over_is_told():
    plain = nn.Sequential(nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(20, 2))
    notes = str(convert(plain, (3, 4, 4), "rko", ortho_params=None).changes)
    assert "rko has no such layer: " in notes


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_networks_are_refused_with_what_to_write_instead(cell):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell(4, 4, batch_first=True)

        def forward(self, x):
            return self.cell(x)[0][:, -1]

    (refused,) = orthogonium.convert(Last(), (5, 4)).refused
    assert refused.name == "cell" and "OrthoLinear" in refused.reason and "build_once" in refused.reason


class Inputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 3)

    def forward(self, x, y):
        return self.a(x) + self.a(y)


class Outputs(Inputs):
    def forward(self, x):
        return {"logits": self.a(x)}


@pytest.mark.parametrize("weights", ["new", "keep"])
def test_several_inputs_and_outputs(weights):
    with pytest.raises(ParameterError, match=r"Inputs needs x, y\. Wrap it"):
        convert(Inputs(), (4,), weights=weights)
    if weights == "keep":
        with pytest.raises(ParameterError, match=r"Outputs returns dict\. Wrap it"):
            convert(Outputs(), (4,), weights=weights)
    else:
        found = convert(Outputs(), (4,))
        assert found.bound == math.inf and "dict" in found.refused[0].reason


def test_mistakes():
    for options, match in [
        ({"method": "magic"}, "no method 'magic'"),
        ({"weights": "old"}, "weights is one of 'new', 'keep'"),
        ({"activation": "relu"}, "activation is one of"),
        ({"method": "sandwich", "weights": "keep"}, "contain their activation"),
        ({"lipschitz": -1.0}, "must be positive"),
    ]:
        with pytest.raises(ParameterError, match=match):
            convert(MLP(), (1, 8, 8), **options)
    with pytest.raises(ParameterError, match="input_shape"):
        convert(MLP(), 64)
    with pytest.raises(ParameterError, match="takes a module"):
        convert(torch.relu, (3,))
    assert "convert" in dir(orthogonium)


def test_methods_replaced_on_an_instance_are_followed():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 3))
    conv = model[0]
    conv._conv_forward = lambda x, weight, bias: 5 * F.conv2d(x, weight, bias, padding=1)
    found = convert(model, (1, 4, 4), "aol")
    assert any("5" in change.before or "mul" in change.before for change in found.changes) or found.refused


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return self.layer(x)


def test_writes_into_buffers_are_named():
    model = Counts()
    found = convert(model, (3,))
    assert [r.name for r in found.refused] == ["calls"] and model.calls == 0


class ClassToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.randn(1, 1, 4)), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))


def test_constants_of_the_size_of_a_batch():
    found = convert(ClassToken(), (3, 4))
    assert found.refused == () and found.bound <= 1 + 1e-4
    assert found.model(torch.randn(5, 3, 4)).shape == (5, 4, 4)
    kept = convert(nn.Sequential(nn.Linear(4, 4), ClassToken()), (3, 4), "aol", weights="keep")
    assert kept.agreement > 0.9999 or kept.refused  # the token would have to be in the unit of the values


class Unregistered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3)]

    def forward(self, x):
        return self.layers[0](x)


def test_layers_in_a_plain_list():
    found = convert(Unregistered(), (3,))
    assert found.refused[0].name == "(forward)"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_scripts_have_no_forward_pass_to_read():
    with pytest.raises(ParameterError, match="script"):
        convert(nn.Sequential(torch.jit.script(nn.Linear(3, 3))), (3,))
