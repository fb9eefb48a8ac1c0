"""Kept weights are laid out once for the processor where images have few pixels: the same function, fewer copies."""

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from orthogonium.layers import AdaptiveOrthoConv1d, AdaptiveOrthoConv2d, AOLConv2d
from orthogonium.layers.conv import blocked
from orthogonium.layers.freeze import freeze
from tests.oracle import singular_values

pytestmark = pytest.mark.skipif(not blocked._AVAILABLE, reason="needs oneDNN on an x86 processor")

KERNELS = [(3, 3, 1), (2, 2, 1), (2, 3, 1), (4, 2, 1), (2, 2, 2), (3, 3, 2)]  # height, width, stride
BORDERS = [("same", "zeros"), ("same", "circular"), (1, "zeros"), (0, "zeros"), ("valid", "circular")]


@pytest.fixture(autouse=True)
def few_channels(monkeypatch):
    """Small operators for the tests."""
    monkeypatch.setattr(blocked, "_CHANNELS", 1)


@pytest.fixture
def calls(monkeypatch):
    """Blocked weights of each call, and whether they were laid out before."""
    calls, convolve = [], blocked._Blocked.convolve

    def spy(self, x, *arguments):
        calls.append((self, x.shape in self._layouts))
        return convolve(self, x, *arguments)

    monkeypatch.setattr(blocked._Blocked, "convolve", spy)
    return calls


def make(*arguments, kind=AdaptiveOrthoConv2d, **options):
    layer = kind(*arguments, **options)
    nn.init.normal_(layer.bias)
    return layer.eval().requires_grad_(False)


def plainly(layer, x):
    """What torch computes with the weight in double precision."""
    return freeze(layer).double()(x.double()).float()


@pytest.mark.parametrize("border", BORDERS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # torch's own
def test_outputs_are_those_of_the_weight(kernel, border, groups, calls):
    height, width, stride = kernel
    padding, mode = border
    layer = make(128, 128, (height, width), stride=stride, padding=padding, padding_mode=mode, groups=groups)
    used = 0
    sizes = [n for n in itertools.product((2, 3, 4), (2, 3, 4)) if padding == "same" or min(n) >= max(height, width)]
    for batch, size in itertools.product((1, 5), sizes):
        x = torch.randn(batch, 128, *size)
        expected = plainly(layer, x)
        calls.clear()
        first, second, third = (layer(x) for _ in range(3))
        assert (first - expected).abs().max() <= 4e-6 * expected.abs().max()  # sums of 1,152 products, in float32
        assert torch.equal(first, second) and torch.equal(first, third)
        assert first.stride() == expected.stride()
        assert all(known for _, known in calls[1:])
        used += len(calls)
    uneven = mode == "zeros" and padding == "same" and 2 in (height, width) and stride == 1
    assert bool(used) != uneven  # oneDNN has no padding that differs from left to right


def test_other_methods(calls):
    layer = make(32, 32, 3, kind=AOLConv2d, padding=1)
    x = torch.randn(2, 32, 2, 2)
    torch.testing.assert_close(layer(x), plainly(layer, x))
    assert calls


def test_singular_values(calls):
    layer = make(64, 64, 3)
    for _ in range(3):
        sigma = singular_values(layer, 64, 2, 2)
    assert len(calls) == 6 and (sigma - 1).abs().max() < 1e-5


def test_no_bias(calls):
    layer = AdaptiveOrthoConv2d(32, 32, 3, bias=False).eval().requires_grad_(False)
    x = torch.randn(2, 32, 2, 2)
    torch.testing.assert_close(layer(x), plainly(layer, x))
    assert calls


def test_shapes_in_any_order(calls):
    layer = make(48, 48, 3, padding_mode="zeros")
    images = [torch.randn(n, 48, height, width) for n, height, width in [(1, 2, 2), (1, 3, 3), (4, 2, 2), (2, 2, 4)]]
    expected = [plainly(layer, x) for x in images]
    for i in (0, 0, 1, 0, 2, 3, 2, 2, 1, 1, 3, 0):
        torch.testing.assert_close(layer(images[i]), expected[i])
        held = {id(blocks) for _, blocks in calls[-1][0]._layouts.values()}
        assert len(held) <= blocked._LAYOUTS


def test_batches_share_a_layout(calls):
    layer = make(256, 256, 3)
    for batch in [1, 2, 3, 5, 8] * 2:
        layer(torch.randn(batch, 256, 4, 4))
    assert [known for _, known in calls] == [False] * 5 + [True] * 5
    assert len({id(blocks) for _, blocks in calls[0][0]._layouts.values()}) <= blocked._LAYOUTS


@pytest.mark.parametrize("bias", [torch.randn(64)[::2], torch.ones(1).expand(32), torch._efficientzerotensor(32)])
def test_any_bias(bias):
    layer = make(32, 32, 3, padding=1, padding_mode="zeros")
    x = torch.randn(2, 32, 2, 2)
    expected = functional.conv2d(x, layer.weight, bias.clone(), padding=1)
    torch.testing.assert_close(functional_call(layer, {"bias": bias}, (x,)), expected)


def test_stale_layouts_are_not_used():
    layer = make(32, 32, 3)
    x = torch.randn(1, 32, 2, 2)
    before = [layer(x) for _ in range(3)][-1]
    layer.parametrizations.weight.original0.data.normal_()
    after = layer(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, plainly(layer, x))
    layer.weight.mul_(2)  # of what the cache serves
    torch.testing.assert_close(layer(x), after)


def test_training_frees_it_and_copies_make_their_own(calls):
    layer = make(32, 32, 3)
    x = torch.randn(1, 32, 2, 2)
    y = [layer(x) for _ in range(3)][-1]
    assert layer.parametrizations.weight[0]._kept.derived is not None
    for copy in (deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert copy.parametrizations.weight[0]._kept is None
        assert torch.equal(copy(x), y)
    layer.train()
    assert layer.parametrizations.weight[0]._kept is None


def refuses(calls, function):
    """What `function` returns without blocks."""
    calls.clear()
    result = function()
    assert not calls
    return result


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_where_more_than_values_matter_torch_convolves(calls):
    layer = make(32, 32, 3)
    x = torch.randn(2, 32, 2, 2)
    y = layer(x)
    assert calls
    tangent = torch.randn_like(x)
    linear = layer(tangent) - layer(torch.zeros_like(x))

    z = x.clone().requires_grad_()
    refuses(calls, lambda: layer(z)).sum().backward()
    assert z.grad is not None
    with forward_ad.dual_level():
        dual = refuses(calls, lambda: layer(forward_ad.make_dual(x, tangent)))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, linear)
    jvp = refuses(calls, lambda: torch.func.jvp(layer, (x,), (tangent,)))
    torch.testing.assert_close(jvp[1], linear)
    each = refuses(calls, lambda: torch.vmap(lambda image: layer(image[None])[0])(x))
    torch.testing.assert_close(each, y)
    with FlopCounterMode(display=False) as flops:
        refuses(calls, lambda: layer(x))
    assert flops.get_total_flops() > 0
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Watch():
        refuses(calls, lambda: layer(x))
    assert torch.conv2d in seen
    with torch.autocast("cpu", torch.bfloat16):
        assert refuses(calls, lambda: layer(x)).dtype == torch.bfloat16
    traced = refuses(calls, lambda: torch.jit.trace(layer, x, check_trace=False))
    torch.testing.assert_close(traced(torch.cat([x, x])), torch.cat([y, y]))
    compiled = refuses(calls, lambda: torch.compile(layer, backend="eager", fullgraph=True)(x))
    torch.testing.assert_close(compiled, y)
    last = x.contiguous(memory_format=torch.channels_last)
    zeros = make(32, 32, 3, padding_mode="zeros")
    assert refuses(calls, lambda: zeros(last)).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(refuses(calls, lambda: layer(x[0])), y[0])
    assert refuses(calls, lambda: layer(x[:0])).shape == (0, 32, 2, 2)


def test_other_numbers_and_sizes(calls):
    for dtype in (torch.float64, torch.bfloat16):
        layer = make(32, 32, 3).to(dtype)
        assert refuses(calls, lambda: layer(torch.randn(1, 32, 2, 2, dtype=dtype))).dtype == dtype  # noqa: B023
    for options in ({"kernel_size": 1}, {"kernel_size": 5}, {"kernel_size": 3, "dilation": 2}):
        layer = make(32, 32, **options)
        refuses(calls, lambda: layer(torch.randn(1, 32, 2, 2)))  # noqa: B023
    layer = make(32, 32, 3)
    refuses(calls, lambda: layer(torch.randn(1, 32, 3, 3)))  # too many pixels
    line = make(32, 32, 5, kind=AdaptiveOrthoConv1d)
    refuses(calls, lambda: line(torch.randn(1, 32, 4)))


def test_few_channels_are_left_to_torch(calls, monkeypatch):
    monkeypatch.setattr(blocked, "_CHANNELS", 64)
    refuses(calls, lambda: make(63, 63, 3)(torch.randn(1, 63, 2, 2)))
    make(64, 64, 3)(torch.randn(1, 64, 2, 2))
    assert calls


@pytest.mark.parametrize("shape", [(1, 31, 4, 4), (1, 32, 2, 2), (32,), (1, 1, 32, 4, 4)], ids=str)
def test_errors_are_those_of_torch(shape):
    messages = []
    for module in (make(32, 32, 3, padding=0, padding_mode="zeros"), nn.Conv2d(32, 32, 3)):
        with pytest.raises(RuntimeError) as error:
            module(torch.randn(shape))
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_inference_mode_then_gradients(calls):
    layer = make(32, 32, 3)
    x = torch.randn(1, 32, 2, 2)
    with torch.inference_mode():
        inferred = [layer(x) for _ in range(3)][-1]
    assert torch.equal(layer(x), inferred) and len(calls) == 4
    layer.requires_grad_(True)
    layer(x).sum().backward()
    assert layer.parametrizations.weight.original0.grad is not None


def test_threads_share_a_layer():
    layer = make(48, 48, 3)
    images = [torch.randn(1 + i % 3, 48, 2, 2 + i % 2) for i in range(12)]
    expected = [plainly(layer, x) for x in images]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for y, z in zip(pool.map(layer, images), expected, strict=True):
                torch.testing.assert_close(y, z)
