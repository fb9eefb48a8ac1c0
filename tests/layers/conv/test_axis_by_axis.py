"""Layers convolve axis by axis where that is cheaper: the same function, the same gradients, fewer flops."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from orthogonium.errors import ShapeError
from orthogonium.layers.conv import AOC

SHAPES = [(8, 8, 1), (16, 16, 2), (8, 6, 1), (24, 16, 2), (12, 15, 1)]
KERNELS = {2: [(3, 3), (2, 4), (5, 2)], 3: [(3, 3, 3), (2, 4, 3), (3, 1, 3)]}
SIZES = {2: (7, 7), 3: (5, 5, 5)}


def make(dims, channels, kernel, **options):
    ci, co, groups = channels
    return getattr(AOC, f"AdaptiveOrthoConv{dims}d")(ci, co, kernel, groups=groups, dtype=torch.float64, **options)


def flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # torch's own, with zeros
@pytest.mark.parametrize("border", [("same", "zeros"), ("same", "circular"), ("valid", "zeros"), (1, "zeros")], ids=str)
@pytest.mark.parametrize("channels", SHAPES, ids=str)
@pytest.mark.parametrize("dims", [2, 3])
def test_the_same_function_and_gradients_as_with_the_weight(dims, channels, border):
    padding, mode = border
    for kernel, dilation in itertools.product(KERNELS[dims], (1, 2)):
        layer = make(dims, channels, kernel, dilation=dilation, padding=padding, padding_mode=mode)
        if padding != "same" and any(d > n for d, n in zip(layer.geometry.extent, SIZES[dims], strict=True)):
            continue
        x = torch.randn(1, channels[0], *SIZES[dims], dtype=torch.float64, requires_grad=True)
        results, costs = [], []
        for context in (nullcontext, parametrize.cached):  # the cache of torch is that of the weight: it must be built
            with context():
                costs.append(flops(lambda layer=layer, x=x: layer(x)))
                y = layer(x)
            results.append((y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])))
        torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)
        if padding == "same":  # elsewhere the first convolution gives more pixels than the last
            assert costs[0] < costs[1]


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_orthogonal_in_training(dtype, tolerance):
    """The operator of a layer in training mode, after steps that move its parameters far."""
    layer = AOC.AdaptiveOrthoConv2d(24, 20, 3, bias=False, dtype=dtype)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    for _ in range(20):
        optimizer.zero_grad()
        layer(torch.randn(4, 24, 6, 6, dtype=dtype)).cos().sum().backward()
        optimizer.step()
    impulses = torch.eye(24 * 16, dtype=dtype).view(-1, 24, 4, 4)
    images = torch.cat([layer(part) for part in impulses.split(8)])  # small batches go axis by axis
    sigma = torch.linalg.svdvals(images.detach().flatten(1).double())
    assert (sigma - 1).abs().max() <= tolerance


def test_big_batches_strides_and_lines_use_the_weight():
    """There the factors save nothing: as many flops as with the weight itself."""
    cases = [
        (AOC.AdaptiveOrthoConv2d(8, 8, 3), (16, 8, 16, 16)),
        (AOC.AdaptiveOrthoConv2d(8, 8, 3, stride=2), (1, 8, 4, 4)),
        (AOC.AdaptiveOrthoConv2d(8, 8, 3, stride=2, dilation=2), (1, 8, 4, 4)),
        (AOC.AdaptiveOrthoConv2d(8, 8, (3, 1)), (1, 8, 4, 4)),
        (AOC.AdaptiveOrthoConv2d(2, 16, 3), (1, 2, 4, 4)),  # convolutions of 16 channels would cost more
        (AOC.AdaptiveOrthoConv1d(8, 8, 3), (1, 8, 4)),
    ]
    for layer, shape in cases:
        x = torch.randn(shape)
        y, cost = layer(x), flops(lambda layer=layer, x=x: layer(x))
        with parametrize.cached():
            assert cost == flops(lambda layer=layer, x=x: layer(x))
            torch.testing.assert_close(y, layer(x))


def test_factors_are_cached_in_eval_and_never_stale():
    layer = AOC.AdaptiveOrthoConv2d(8, 8, 3, bias=False).eval()
    x = torch.randn(1, 8, 4, 4)
    raw = next(layer.parameters())
    with torch.no_grad():
        before = layer(x)
        assert flops(lambda: layer(x)) < flops(lambda: nn.Conv2d(8, 8, 3, padding=1)(x))
        raw.data.copy_(torch.randn_like(raw))
        after = layer(x)
        assert (after - before).abs().max() > 0.1
        with parametrize.cached():
            torch.testing.assert_close(after, layer(x))


def test_transforms_compilation_and_images_without_a_batch():
    layer = make(2, (8, 8, 1), 3)
    x = torch.randn(3, 8, 4, 4, dtype=torch.float64)
    expected = layer.train()(x)
    torch.testing.assert_close(layer(x[0]), expected[0])
    parameters = {k: v.detach() for k, v in layer.named_parameters()}
    torch.testing.assert_close(functional_call(layer, parameters, x), expected)

    def loss(p, image):
        return functional_call(layer, p, image).sin().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    whole = torch.autograd.grad(expected.sin().sum(), list(layer.parameters()))
    for g, total in zip(each.values(), whole, strict=True):
        torch.testing.assert_close(g.sum(0), total)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    layer = AOC.AdaptiveOrthoConv2d(8, 8, 3, bias=False)
    x = torch.randn(1, 8, 4, 4)
    expected = layer(x)
    with torch.autocast("cpu", dtype=dtype):
        y = layer(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.05)


def test_what_is_no_image_is_refused_as_ever():
    layer = AOC.AdaptiveOrthoConv2d(8, 8, 3, padding=0)
    for shape in [(1, 7, 4, 4), (8,), (1, 8, 0, 4), (1, 8, 2, 4), (1, 1, 8, 4, 4)]:
        with pytest.raises(ShapeError):
            layer(torch.zeros(shape))


def test_other_parametrizations_have_their_say():
    """A second one, a foreign one, and the cache of torch: the layer applies `layer.weight`."""

    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    x = torch.randn(1, 8, 4, 4)
    layer = AOC.AdaptiveOrthoConv2d(8, 8, 3, bias=False)
    expected = layer(x)
    parametrize.register_parametrization(layer, "weight", Half())
    torch.testing.assert_close(layer(x), expected / 2)
    parametrize.remove_parametrizations(layer, "weight")
    parametrize.register_parametrization(layer, "weight", Half())
    torch.testing.assert_close(layer(x), expected / 4)
    layer = AOC.AdaptiveOrthoConv2d(8, 8, 3, bias=False)
    with parametrize.cached():
        layer(x)
        assert flops(lambda: layer(x)) == flops(lambda: nn.Conv2d(8, 8, 3, padding=1)(x))
