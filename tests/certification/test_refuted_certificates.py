"""Classifiers whose certificates were once broken, and classifiers like them: each certificate holds, or there is none."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import certify
from orthogonium import layers as ol
from orthogonium.errors import OrthogoniumError
from tests.certification.fuzz import pieces
from tests.certification.networks import Fn
from tests.certification.soundness import certified_or_refused

pytestmark = pytest.mark.operators


def network(head=None):
    return nn.Sequential(ol.OrthoLinear(8, 8), ol.MaxMin(), ol.OrthoLinear(8, 3) if head is None else head).eval()


class Followed(nn.Module):
    """A network and the code that follows its last layer."""

    def __init__(self, code):
        super().__init__()
        self.f, self.aux, self.code = network(), nn.Linear(8, 3), code
        with torch.no_grad():
            self.aux.weight.mul_(10)

    def forward(self, x):
        return self.code(self, x, self.f(x))


def _times(self, x, y):
    y *= 10
    return y


def _plus(self, x, y):
    y += self.aux(x)
    return y


def _view(self, x, y):
    y[:, 0].mul_(30)
    return y


def _later(self, x, y):
    z = y.view(len(x), 3)
    y.mul_(20)
    return z


def _data(self, x, y):
    y.data.mul_(10)
    return y


def _out(self, x, y):
    torch.mul(y, torch.tensor([1.0, 20.0, 1.0]), out=y)
    return y


def _copied(self, x, y):
    return y.copy_(10 * y + self.aux(x))


def _indexed(self, x, y):
    y[:, [0, 2]] *= 10
    return y


def _columns(self, x, y):
    for i, column in enumerate(y.unbind(1)):
        column.mul_(8**i)
    return y


def _transposed(self, x, y):
    y.T.mul_(torch.tensor([[1.0], [10.0], [30.0]]))
    return y


def _emptied(self, x, y):
    z = torch.empty_like(y)
    z[:, :1], z[:, 1:] = 10 * y[:, 1:2], y[:, :2] + self.aux(x)[:, 1:]
    return y.copy_(z)


FOLLOWED = {
    "div_": lambda self, x, y: y.div_(0.1),
    "*=": _times,
    "+=": _plus,
    "elu": lambda self, x, y: F.elu(10 * y, alpha=3.0, inplace=True),
    "leaky_relu": lambda self, x, y: F.leaky_relu(y, 20.0, inplace=True),
    "addcmul_": lambda self, x, y: y.addcmul_(self.aux(x), torch.tensor(2.0)),
    "view": _view,
    "earlier view": _later,
    "data": _data,
    "out": _out,
    "copy_": _copied,
    "index": _indexed,
    "columns": _columns,
    "transposed": _transposed,
    "emptied": _emptied,
    "lerp_": lambda self, x, y: y.lerp_(self.aux(x), 3.0),
    "baddbmm_": lambda self, x, y: y.addmm_(x, 5 * self.aux.weight.T),
}  # fmt: skip


def points(count=100, features=8, scale=3.0):
    return scale * torch.randn(count, features)


@pytest.mark.parametrize("name", FOLLOWED)
def test_code_after_the_head(name):
    certified_or_refused(Followed(FOLLOWED[name]).eval(), points())


HOOKS = {
    "head": lambda model: pieces.hooked(model[2], post=_tenfold),
    "model": lambda model: pieces.hooked(model, post=_tenfold),
    "model returns": lambda model: pieces.hooked(model, post=lambda m, a, y: 10 * y),
    "input of the head": lambda model: pieces.hooked(model[2], pre=_tenfold_input),
    "input of the model": lambda model: pieces.hooked(model, pre=lambda m, a: (10 * a[0],)),
    "activation": lambda model: pieces.hooked(model[1], post=_tenfold),
}  # fmt: skip


def _tenfold(module, args, output):
    output.mul_(torch.tensor([10.0, *[1.0] * (output.shape[1] - 1)]))


def _tenfold_input(module, args):
    args[0].mul_(10)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks(name):
    model = network()
    HOOKS[name](model)
    certified_or_refused(model, points())


class Property(nn.Linear):
    """The weight that is seen is not the one that is used."""

    def forward(self, input):
        return F.linear(input, self.weight.flip(0) * torch.tensor([[20.0], [1.0], [1.0]]), self.bias)


class Tempered(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.temperature = nn.Parameter(torch.tensor(0.05))

    def forward(self, input):
        return super().forward(input) / self.temperature


class Called(nn.Linear):
    def __call__(self, input):
        return 10 * super().__call__(input)


class Ensemble(nn.Linear):
    """Two weights through one layer."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("other", 10 * torch.randn(sizes[1], sizes[0]))

    def forward(self, input):
        return torch.func.functional_call(nn.Linear(8, 3), {"weight": self.other, "bias": self.bias}, (input,))


class Exchanged(Ensemble):
    def forward(self, input):
        own, self.weight.data = self.weight.data, self.other
        out = F.linear(input, self.weight, self.bias)
        self.weight.data = own
        return out


HEADS = {
    "LoRA": lambda: pieces.LoRA(8, 3, scale=30.0),
    "scaled": lambda: pieces.ScaledLinear(8, 3),
    "scaled of ours": lambda: pieces.ScaledOrtho(8, 3),
    "permuted": lambda: Property(8, 3),
    "temperature": lambda: Tempered(8, 3),
    "own call": lambda: Called(8, 3),
    "own forward": lambda: pieces.own_forward(nn.Linear(8, 3), 10.0),
    "other weight": lambda: Ensemble(8, 3),
    "exchanged weight": lambda: Exchanged(8, 3),
    "functional_call": lambda: pieces.NewWeights(nn.Linear(8, 3)),
    "bfloat16": lambda: pieces.bf16(nn.Linear(8, 3)),
    "autocast": lambda: _Autocast(),
}  # fmt: skip


class _Autocast(nn.Linear):
    def __init__(self):
        super().__init__(8, 3)

    def forward(self, input):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(input).to(input.dtype)


@pytest.mark.parametrize("name", HEADS)
def test_heads(name):
    certified_or_refused(network(HEADS[name]()).eval(), points(), sizes=(1, 7))


class Shared(nn.Module):
    """The head is called twice, with its own and with another weight; the last call counts."""

    def __init__(self, last):
        super().__init__()
        self.head, self.last = nn.Linear(8, 3), last
        with torch.no_grad():
            self.head.weight.mul_(0.05)
        self.register_buffer("other", torch.randn(3, 8))

    def forward(self, x):
        other = {"weight": self.other}
        if self.last == "other":
            self.head(x)
            return torch.func.functional_call(self.head, other, (x,))
        torch.func.functional_call(self.head, other, (x,))
        return self.head(x)


@pytest.mark.parametrize("last", ["other", "own"])
def test_head_of_two_weights(last):
    certified_or_refused(Shared(last).eval(), points())


# Rounding. What is certified may not change its class with the batch, nor inside of the radius.
def wide(dtype=torch.float32, features=256):
    """Two classes that differ little for large inputs: all that tells them apart is rounding."""
    model = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, 2)).to(dtype)
    with torch.no_grad():
        model[2].weight[1] = model[2].weight[0] + 1e-6 * torch.randn(features)
    return model.eval()


SIZES = (1, 2, 16, 2048)


@pytest.mark.parametrize(("first", "second"), [(1e-3, 1e3), (1e-3, 1e6), (1.0, 1e5), (0.0, 1e4), (1e6, 1e-3), (1e2, 1e2)])
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
    assert not (found.radii[:3] > 0).any() and not found.radii.isnan().any() and found.certified_accuracy_at(0.0) <= 0.25


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
