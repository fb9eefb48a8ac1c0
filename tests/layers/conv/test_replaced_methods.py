"""Where a constraint or its kernel builds otherwise than its class says, layers apply that weight, in training too."""

import pytest
import torch

from orthogonium.layers.conv import aoc, execution, soc
from tests.layers.conv.executions import count_in_turn


@pytest.fixture(autouse=True)
def few_channels(monkeypatch):
    count_in_turn(monkeypatch)


def replace_build(constraint):
    build = constraint.build
    constraint.build = lambda *arguments: build(*arguments) / 2


def replace_forward(constraint):
    forward = constraint.forward
    constraint.forward = lambda *raw: forward(*raw) / 2


def replace_class(constraint):
    class Half(type(constraint)):
        def build(self, *arguments):
            return super().build(*arguments) / 2

    constraint.__class__ = Half


def replace_build_of_the_kernel(constraint):
    replace_build(constraint.kernel)


def hook_the_gradient(constraint):
    constraint.register_full_backward_hook(lambda module, inputs, outputs: tuple(g / 2 for g in inputs))


REPLACED = [replace_build, replace_forward, replace_class, replace_build_of_the_kernel]


@pytest.mark.parametrize("replace", REPLACED)
@pytest.mark.parametrize("cls", [aoc.AdaptiveOrthoConv2d, soc.AdaptiveSOCConv2d])
def test_what_builds_the_weight_instead_has_its_say(replace, cls):
    layer, x = cls(16, 16, 3, bias=False), torch.randn(1, 16, 4, 4)
    assert execution.select_execution(layer, x).name in ("factors in turn", "series")
    expected = layer(x) / 2
    replace(layer.parametrizations.weight[0])
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("cls", [aoc.AdaptiveOrthoConv2d, soc.AdaptiveSOCConv2d])
def test_hooks_of_gradients_have_their_say(cls):
    layer, x = cls(16, 16, 3, bias=False), torch.randn(1, 16, 4, 4)
    raw = list(layer.parameters())
    expected = torch.autograd.grad(layer(x).square().sum() + layer(x).sum(), raw)
    hook_the_gradient(layer.parametrizations.weight[0])
    found = torch.autograd.grad(layer(x).square().sum() + layer(x).sum(), raw)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs / 2, rtol=1e-3, atol=1e-4)
