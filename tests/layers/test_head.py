import math
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from orthogonium.layers.head import check_last_linear_layer_type
from orthogonium.layers.linear import OrthoLinear, SpectralLinear, UnitNormLinear

HEADS = [(OrthoLinear, "global"), (SpectralLinear, "global"), (UnitNormLinear, "classwise"), (nn.Linear, "unknown")]


class Nested(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), OrthoLinear(12, 8), nn.ReLU())
        self.classifier = nn.ModuleDict({"deep": nn.Sequential(OrderedDict(out=head, drop=nn.Identity()))})

    def forward(self, x):
        return self.classifier["deep"](self.body(x))


@pytest.mark.parametrize(("head", "expected"), HEADS)
def test_head_is_found_wherever_it_is(head, expected):
    assert check_last_linear_layer_type(head(8, 4)) == expected
    assert check_last_linear_layer_type(nn.Sequential(OrthoLinear(12, 8), head(8, 4))) == expected
    assert check_last_linear_layer_type(Nested(head(8, 4))) == expected
    assert check_last_linear_layer_type(nn.Sequential(nn.Sequential(Nested(head(8, 4))), nn.ReLU())) == expected
    assert check_last_linear_layer_type(torch.compile(Nested(head(8, 4)), backend="eager")) == expected
    assert check_last_linear_layer_type(nn.DataParallel(Nested(head(8, 4)))) == expected


def test_models_without_a_known_head():
    assert check_last_linear_layer_type(nn.Sequential(nn.ReLU())) == "unknown"
    assert check_last_linear_layer_type(nn.Sequential(UnitNormLinear(3, 3), nn.Conv2d(3, 4, 1))) == "unknown"


class HeadFirst(nn.Module):
    """The layer that speaks last is registered first."""

    def __init__(self, head=None, finish=lambda x: x):
        super().__init__()
        self.head = head or nn.Linear(8, 4)
        self.body = OrthoLinear(12, 8)
        self.finish = finish

    def forward(self, x):
        return self.finish(self.head(self.body(x)))


class WritesLater(HeadFirst):
    def forward(self, x):
        y = self.head(self.body(x))
        y.div_(0.01)
        return y


class Branches(HeadFirst):
    def forward(self, x):
        return self.head(x) if x.sum() > 0 else 100 * self.head(x)


class LoRA(OrthoLinear):
    def forward(self, x):
        return super().forward(x) + 10 * x[..., :4]


class Scale(nn.Module):
    def forward(self, w):
        return 100 * w


def test_the_order_of_registration_says_nothing():
    assert check_last_linear_layer_type(HeadFirst()) == "unknown"
    assert check_last_linear_layer_type(HeadFirst(OrthoLinear(8, 4))) == "global"
    assert check_last_linear_layer_type(HeadFirst(UnitNormLinear(8, 4))) == "classwise"


@pytest.mark.parametrize("finish", [
    lambda x: 100 * x, lambda x: x * 100, lambda x: x.mul_(100), lambda x: x / 0.01, lambda x: x + x, lambda x: x.exp(),
    lambda x: torch.softmax(100 * x, 1), lambda x: torch.nn.functional.elu(x, 100.0, inplace=True),
    nn.Softplus(beta=0.1),
    nn.Sequential(nn.Identity(), Scale()), lambda x: (x, x),
])  # fmt: skip
def test_what_is_done_to_the_output_counts(finish):
    assert check_last_linear_layer_type(HeadFirst(OrthoLinear(8, 4), finish)) == "unknown"


def test_other_ways_to_change_the_output():
    head = OrthoLinear(8, 4)
    for model in (WritesLater(head), Branches(head), nn.Sequential(LoRA(8, 4)), nn.ModuleList([head])):
        assert check_last_linear_layer_type(model) == "unknown"
    hooked = nn.Sequential(OrthoLinear(8, 4))
    hooked[0].register_forward_hook(lambda module, inputs, output: 100 * output)
    assert check_last_linear_layer_type(hooked) == "unknown"
    outer = nn.Sequential(OrthoLinear(8, 4))
    outer.register_forward_hook(lambda module, inputs, output: output.mul_(100))
    assert check_last_linear_layer_type(outer) == "unknown"
    patched = OrthoLinear(8, 4)
    patched.forward = lambda x: 100 * x
    assert check_last_linear_layer_type(nn.Sequential(patched)) == "unknown"


def test_the_applied_weight_is_measured():
    for break_it in (lambda p: p.fill_(math.nan), lambda p: p.fill_(math.inf)):
        head = OrthoLinear(8, 4)
        remove_parametrizations(head, "weight")
        break_it(head.weight.data)
        assert check_last_linear_layer_type(nn.Sequential(head)) == "unknown"
    scaled = UnitNormLinear(8, 4)
    register_parametrization(scaled, "weight", Scale())
    assert check_last_linear_layer_type(nn.Sequential(scaled)) == "unknown"


def test_a_layer_used_twice_counts_where_it_is_last():
    shared = UnitNormLinear(4, 4)
    assert check_last_linear_layer_type(nn.Sequential(shared, OrthoLinear(4, 4), shared)) == "classwise"


@pytest.mark.parametrize(("head", "expected"), HEADS)
def test_exported_heads_are_believed_only_while_their_weight_keeps_the_bound(head, expected):
    layer = head(8, 4)
    if head is not nn.Linear:
        remove_parametrizations(layer, "weight")
    assert check_last_linear_layer_type(layer) == expected
    with torch.no_grad():
        layer.weight.mul_(1.1)
    assert check_last_linear_layer_type(layer) == "unknown"


class Louder(nn.Module):
    """Returns five times as much in evaluation."""

    def __init__(self, training_is_louder):
        super().__init__()
        self.head, self.training_is_louder = OrthoLinear(8, 4), training_is_louder

    def forward(self, x):
        y = self.head(x)
        return 5 * y if self.training == self.training_is_louder else y


@pytest.mark.parametrize("training_is_louder", [False, True])
def test_a_forward_pass_that_ends_otherwise_in_another_mode(training_is_louder):
    model = nn.Sequential(Louder(training_is_louder), nn.Dropout())
    for mode in (False, True):
        model.train(mode)
        model[1].eval()
        assert check_last_linear_layer_type(model) == "unknown"
        assert all(m.training == mode for m in model.modules() if m is not model[1]) and not model[1].training
