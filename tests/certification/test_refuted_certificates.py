"""Classifiers whose certificates were once broken, and others like them: each certificate holds, or there is none."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import layers as ol
from tests.certification.fuzz import pieces
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
