"""The series of skew kernels, applied to images term by term: the same function and derivatives as by their sum."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from orthogonium.layers.conv import execution, soc
from orthogonium.layers.conv.padding import tile


@pytest.fixture(autouse=True)
def any_number_of_channels(monkeypatch):
    monkeypatch.setattr(execution, "FEWEST_IN_SERIES", 1)


SERIES = [  # channels, kernel, stride, dilation, image
    ((8, 8, 1), (3, 3), 1, 1, (6, 5)),
    ((4, 8, 1), (3, 3), 1, 2, (7, 6)),
    ((8, 4, 1), (3, 3), 1, 1, (6, 6)),
    ((8, 12, 4), (3, 3), 2, 1, (7, 6)),
    ((4, 8, 1), (5, 3), (2, 1), 1, (6, 4)),
    ((6, 6, 6), (3,), 1, 1, (7,)),
    ((4, 4, 2), (3, 3, 3), 1, 1, (4, 3, 3)),
    ((4, 4, 1), (2, 2), 3, 1, (7, 7)),
]


def soc_layer(channels, kernel, stride=1, dilation=1, dtype=torch.float64, **options):
    ci, co, groups = channels
    layer = getattr(soc, f"AdaptiveSOCConv{len(kernel)}d")
    layer = layer(ci, co, kernel, stride=stride, dilation=dilation, groups=groups, dtype=dtype, **options)
    nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize("case", SERIES)
@pytest.mark.parametrize("options", [{}, {"order": 3, "lipschitz": 2.5}])
@pytest.mark.parametrize("batched", [True, False])
def test_series_are_the_same_as_their_sum(case, options, batched):
    channels, kernel, stride, dilation, size = case
    layer = soc_layer(channels, kernel, stride, dilation, **options)
    x = torch.randn(*[3] * batched, channels[0], *size, dtype=torch.float64, requires_grad=True)
    tiled = tile(x.detach(), layer.stride)
    assert execution.select_execution(layer, tiled).name == "series"
    results = []
    for context in (nullcontext, parametrize.cached):
        with context():
            y = layer(x)
        probe = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(0))
        inputs = [x, *layer.parameters()]
        first = torch.autograd.grad((y * probe).sum() + y.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
        results.append((y, *first, *second))
    for in_turn, at_once in zip(*results, strict=True):
        scale = max(1.0, at_once.abs().max().item())
        torch.testing.assert_close(in_turn, at_once, rtol=0, atol=1e-11 * scale)


def test_where_series_are_not_taken(monkeypatch):
    x = torch.randn(2, 8, 6, 6)

    def name(layer, x=x):
        return execution.select_execution(layer, x).name

    layer = soc_layer((8, 8, 1), (3, 3), dtype=torch.float32)
    assert name(layer) == "series"
    assert name(soc_layer((8, 8, 1), (3, 3), dtype=torch.float32, padding_mode="zeros")) == "padded"
    assert name(soc_layer((8, 4, 1), (1, 1), stride=2, dtype=torch.float32)) == "padded"
    with torch.autocast("cpu", torch.bfloat16):
        assert name(layer) == "padded"
    with torch.no_grad():
        assert name(layer.eval()) == "padded"  # the weight is kept
    layer.train()
    monkeypatch.setattr(execution, "MOST_NUMBERS", 100)
    assert name(layer) == "padded"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_series_in_transforms_and_compilers():
    layer = soc_layer((4, 4, 1), (3, 3))
    x = torch.randn(5, 4, 6, 6, dtype=torch.float64)
    expected = layer(x)
    torch.testing.assert_close(torch.func.vmap(layer)(x), expected)
    tangent = torch.randn_like(x)
    value, slope = torch.func.jvp(layer, (x,), (tangent,))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slope, layer(x + tangent) - expected)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), expected)
    torch.testing.assert_close(checkpoint(layer, x, use_reentrant=False), expected)


def test_another_build_is_not_passed_over():
    layer = soc_layer((4, 4, 1), (3, 3))
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    kernel = layer.parametrizations.weight[0].kernel
    build = kernel.build
    kernel.build = lambda *raw: 0.5 * build(*raw)
    bias = layer.bias.view(-1, 1, 1)
    halved = layer(x) - bias
    del kernel.build
    torch.testing.assert_close(halved, 0.5 * (layer(x) - bias))


def test_narrow_layers_build_their_weight(monkeypatch):
    monkeypatch.undo()
    names = [
        execution.select_execution(soc_layer((c, c, 1), (3, 3)), torch.randn(2, c, 6, 6).double()).name for c in (8, 16)
    ]
    assert names == ["padded", "series"]
