"""Layers whose bounds were once too small: other weights than their own, edited, hooked, in half precision, NaN."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import layers as ol
from orthogonium import lipschitz_bound
from orthogonium.certification import RefutedError
from tests.certification.fuzz import pieces
from tests.certification.fuzz.judge import Judge
from tests.certification.networks import Fn
from tests.certification.soundness import REFUSALS, sound_or_refused

pytestmark = pytest.mark.operators


def dense(features, scale=0.01):
    layer = nn.Linear(features, features).double()
    with torch.no_grad():
        layer.weight.copy_(scale * torch.eye(features))
    return layer


class Caller(nn.Module):
    """A layer, another weight for it, and code that uses both."""

    def __init__(self, code, layer=None):
        super().__init__()
        self.layer, self.code = layer or dense(4), code
        self.register_buffer("other", 100 * self.layer.weight.detach().clone())

    def forward(self, x):
        return self.code(self, x)


def _functional(self, x):
    return torch.func.functional_call(self.layer, {"weight": self.other}, (self.layer(x),))


def _functional_first(self, x):
    return self.layer(torch.func.functional_call(self.layer, {"weight": self.other}, (x,)))


def _both(self, x):
    return torch.cat([self.layer(x), torch.func.functional_call(self.layer, {"weight": self.other}, (x,))], 1)


def _exchanged(self, x):
    y, own = self.layer(x), self.layer.weight.data
    self.layer.weight.data = self.other
    y = self.layer(y)
    self.layer.weight.data = own
    return y


def _written_weight(self, x):
    y, own = self.layer(x), self.layer.weight.detach().clone()
    with torch.no_grad():
        self.layer.weight.copy_(self.other)
        y = y + self.layer(x)
        self.layer.weight.copy_(own)
    return y


def _new_parameter(self, x):
    y, own = self.layer(x), self.layer.weight
    self.layer.weight = nn.Parameter(self.other)
    y = y + self.layer(x)
    self.layer.weight = own
    return y


def _new_layers(self, x):
    """Layers that live for one call: the next one may have the identity of the last."""
    for weight in (self.layer.weight, self.other, self.other):
        x = torch.func.functional_call(nn.Linear(4, 4).double(), {"weight": weight, "bias": self.layer.bias}, (x,))
    return x


def _far(self, x):
    """What no random input near 0 shows."""
    return self.layer(x) + F.relu(torch.func.functional_call(self.layer, {"weight": self.other}, (x,)) - 40)


def _pre_hook(self, x):
    def edit(module, args):
        module.weight.data = self.other

    y, own = self.layer(x), self.layer.weight.data
    handle = self.layer.register_forward_pre_hook(edit)
    y = y + self.layer(x)
    handle.remove()
    self.layer.weight.data = own
    return y


WEIGHTS = {
    "functional_call after": (_functional, None, (4,)),
    "functional_call before": (_functional_first, None, (4,)),
    "functional_call beside": (_both, None, (4,)),
    "functional_call far away": (_far, None, (4,)),
    "data exchanged": (_exchanged, None, (4,)),
    "weight written": (_written_weight, None, (4,)),
    "parameter replaced": (_new_parameter, None, (4,)),
    "layers of one call": (_new_layers, None, (4,)),
    "pre-hook that swaps": (_pre_hook, None, (4,)),
    "convolution": (_functional, nn.Conv1d(2, 2, 3, padding=1).double(), (2, 5)),
    "circular convolution": (_exchanged, nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular").double(), (2, 5)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_those_of_the_call(name):
    code, layer, shape = WEIGHTS[name]
    sound_or_refused(Caller(code, layer).eval(), shape)


class Alternating(nn.Module):
    """Another function at each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_a_model_that_counts_its_calls():
    sound_or_refused(Alternating().eval(), (3,))


# Layers that are not what their class promises.
CHANGED = {
    "LoRA": (lambda: pieces.LoRA(4, 3, scale=20.0), (4,)),
    "scaled weight": (lambda: pieces.ScaledLinear(4, 3), (4,)),
    "scaled layer of ours": (lambda: pieces.ScaledOrtho(4, 4), (4,)),
    "forward of the instance": (lambda: pieces.own_forward(nn.Linear(4, 4), 10.0), (4,)),
    "forward of our instance": (lambda: pieces.own_forward(ol.OrthoLinear(4, 4), 10.0), (4,)),
    "hook": (lambda: pieces.hooked(ol.OrthoLinear(4, 4), post=pieces.doubled), (4,)),
    "hook in place": (lambda: pieces.hooked(ol.OrthoLinear(4, 4), post=pieces.doubled_in_place), (4,)),
    "pre-hook": (lambda: pieces.hooked(ol.MaxMin(), pre=pieces.shifted_input), (4,)),
    "pre-hook in place": (lambda: pieces.hooked(ol.OrthoLinear(4, 4), pre=pieces.edited_input), (4,)),
    "hook of a block": (lambda: pieces.hooked(ol.CPLLinear(4), post=pieces.doubled_in_place), (4,)),
    "CPL frozen and edited": (lambda: pieces.edited(ol.CPLLinear(4), 10.0), (4,)),
    "CPL convolution edited": (lambda: pieces.edited(ol.CPLConv1d(2), 10.0), (2, 5)),
    "SLL edited": (lambda: pieces.edited(ol.SDPBasedLipschitzDense(4, 4, 6), 10.0), (4,)),
    "SLL block edited": (lambda: pieces.edited(ol.SDPBasedLipschitzResBlock1d(2, 2.0), 10.0), (2, 6)),
    "sandwich edited": (lambda: pieces.edited(ol.SandwichLinear(4, 3), 10.0), (4,)),
    "AOC residual edited": (lambda: pieces.edited(ol.AOCLipschitzResBlock1d(2, 1.0, 3), 10.0), (2, 6)),
    "SLL-AOC edited": (lambda: pieces.edited(ol.SLLxAOCLipschitzResBlock1d(2, 4, 1.0), 10.0), (2, 6)),
    "CPL edited far away": (lambda: _far_away(ol.CPLLinear(4)), (4,)),
    "SLL edited far away": (lambda: _far_away(ol.SDPBasedLipschitzDense(4, 4, 6)), (4,)),
    "sandwich edited far away": (lambda: _far_away(ol.SandwichLinear(4, 3)), (4,)),
    "SLL convolution edited far away": (lambda: _far_away(ol.SDPBasedLipschitzResBlock1d(2, 2.0)), (2, 6)),
    "orthogonal edited": (lambda: pieces.edited(ol.OrthoLinear(4, 4), 10.0), (4,)),
    "CPL with GELU": (lambda: pieces.swapped_activation(ol.CPLLinear(4), nn.GELU()), (4,)),
    "SLL with GELU": (lambda: pieces.swapped_activation(ol.SDPBasedLipschitzDense(4, 4, 6), nn.GELU()), (4,)),
    "sandwich with SiLU": (lambda: pieces.swapped_activation(ol.SandwichLinear(4, 4), nn.SiLU()), (4,)),
    "CPL with a steep slope": (lambda: pieces.swapped_activation(ol.CPLLinear(4), nn.LeakyReLU(-3.0)), (4,)),
    "CPL with a hooked slope": (lambda: _hooked_slope(), (4,)),
    "CPL with its own slope": (lambda: pieces.swapped_activation(ol.CPLLinear(4), Fn(lambda t: 5 * t.relu())), (4,)),
}  # fmt: skip


def _far_away(block):
    """Edited so that units are active where inputs are large only."""
    block = pieces.edited(block, 10.0)
    with torch.no_grad():
        block.bias.fill_(-50.0)
    return block


def _hooked_slope():
    return pieces.swapped_activation(ol.CPLLinear(4), pieces.hooked(nn.ReLU(), post=pieces.doubled_in_place))


@pytest.mark.parametrize("name", CHANGED)
def test_layers_are_measured(name):
    make, shape = CHANGED[name]
    sound_or_refused(nn.Sequential(make().double()).eval(), shape)


BLOCKS = {
    "CPL": (lambda **k: ol.CPLLinear(6, **k), (6,)),
    "CPL convolution": (lambda **k: ol.CPLConv1d(3, **k), (3, 6)),
    "SLL": (lambda **k: ol.SDPBasedLipschitzDense(6, 6, 12, **k), (6,)),
    "SLL convolution": (lambda **k: ol.SDPBasedLipschitzResBlock1d(3, 2.0, **k), (3, 6)),
    "sandwich": (lambda **k: ol.SandwichLinear(6, 6, **k), (6,)),
    "AOC residual": (lambda **k: ol.AOCLipschitzResBlock1d(4, 1.0, 3, **k), (4, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_blocks_in_half_precision(name, dtype):
    make, shape = BLOCKS[name]
    assert_bounds(nn.Sequential(*(make(bias=False) for _ in range(3))).to(dtype).eval(), shape)


@pytest.mark.parametrize("name", BLOCKS)
def test_twenty_blocks_in_single_precision(name):
    make, shape = BLOCKS[name]
    assert_bounds(nn.Sequential(*(make(bias=False, activation=nn.Identity()) for _ in range(20))).eval(), shape)


def assert_bounds(model, shape):
    """What the stored weights apply in exact arithmetic is within the bound, if there is one."""
    try:
        bound = lipschitz_bound(model, shape).value
    except REFUSALS:
        return
    against = Judge(ol.freeze(model).double().eval(), shape, torch.float64).verdict(bound).against
    assert against is None, f"in float64, {against}"


def _nan(layer, name=None, value=math.nan):
    with torch.no_grad():
        for key, p in layer.named_parameters():
            if name is None or name in key:
                p.view(-1)[0] = value
    return layer


NANS = {
    "CPL": (lambda: _nan(ol.CPLLinear(4)), (4,)),
    "CPL bias": (lambda: _nan(ol.CPLLinear(4), "bias"), (4,)),
    "CPL infinite": (lambda: _nan(ol.freeze(ol.CPLLinear(4)), value=math.inf), (4,)),
    "SLL": (lambda: _nan(ol.SDPBasedLipschitzDense(4, 4, 6)), (4,)),
    "SLL convolution": (lambda: _nan(ol.SDPBasedLipschitzResBlock1d(2, 1.0)), (2, 5)),
    "sandwich": (lambda: _nan(ol.SandwichLinear(4, 4)), (4,)),
    "householder": (lambda: _nan(ol.HouseHolder(4)), (4,)),
    "additive residual": (lambda: _nan(ol.AdditiveResidual(torch.tanh)), (4,)),
    "centering": (lambda: _nan(ol.BatchCentering(4)), (4,)),
    "constant added": (lambda: Fn(lambda x: x + math.nan), (4,)),
    "constant joined": (lambda: Fn(lambda x: torch.cat([x, torch.full_like(x, math.nan)], 1)), (4,)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*rank-deficient:orthogonium.errors.NumericalWarning")
@pytest.mark.parametrize("name", NANS)
def test_models_with_nan_have_no_bound(name):
    make, shape = NANS[name]
    model = nn.Sequential(make()).double().eval()
    model.register_buffer("kind", torch.zeros((), dtype=torch.float64))
    assert sound_or_refused(model, shape, refusals=(*REFUSALS, RefutedError)) is None
