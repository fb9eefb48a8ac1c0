"""Weights along axes that are built beforehand: the same gradients, with one build, and the weight as their product."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import orthogonium
from orthogonium import build_once, build_together
from orthogonium.building import builds
from orthogonium.layers import AdaptiveOrthoConv2d, AdaptiveOrthoConv3d, AdaptiveOrthoConvTranspose2d
from orthogonium.layers.conv import execution
from orthogonium.layers.parametrization import Constraint
from orthogonium.methods.aoc import OrthogonalKernel
from tests.building.passes import (
    DIGITS,
    accumulate,
    assert_once_is_plain,
    assert_same_gradients,
    assert_same_in_a_block,
    gradients,
    loss_of,
    move,
    plain_gradients,
)
from tests.layers.conv.executions import go_along_axes


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(builds, "_FEWEST_IN_PARTS", 1)
    go_along_axes(monkeypatch)


@pytest.fixture
def built(monkeypatch):
    """What was built: names of methods of the kernel."""
    found = []

    def count(name, build):
        monkeypatch.setattr(OrthogonalKernel, name, lambda *arguments: found.append(name) or build(*arguments))

    count("build", OrthogonalKernel.build)
    count("along_axes", OrthogonalKernel.along_axes)
    return found


def images(*shape, count=4, dtype=torch.float64):
    return [torch.randn(2, *shape, dtype=dtype) for _ in range(count)]


def two_and_one(**options):
    """Two equal layers, which are built in one batch, and another one."""
    equal = [AdaptiveOrthoConv2d(6, 6, 3, **options) for _ in range(2)]
    return move(nn.Sequential(*equal, AdaptiveOrthoConv2d(6, 8, 3, **options)).double())


LAYERS = {
    "square": lambda: AdaptiveOrthoConv2d(6, 6, 3),
    "wider": lambda: AdaptiveOrthoConv2d(4, 6, 3),
    "narrower": lambda: AdaptiveOrthoConv2d(6, 4, 3),
    "groups": lambda: AdaptiveOrthoConv2d(8, 8, 3, groups=2),
    "5×5, dilated": lambda: AdaptiveOrthoConv2d(6, 6, 5, dilation=2, padding_mode="circular"),
    "2×3": lambda: AdaptiveOrthoConv2d(6, 6, (2, 3), padding="valid", padding_mode="zeros"),
    "constant": lambda: AdaptiveOrthoConv2d(6, 6, 3, lipschitz=2.5),
    "3-D, constant": lambda: AdaptiveOrthoConv3d(4, 4, 3, lipschitz=0.5),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients(name, count, dtype, built):
    class Sum(nn.ModuleList):
        def forward(self, x):
            return sum((i + 1) * layer(x) for i, layer in enumerate(self))

    model = move(Sum([LAYERS[name]() for _ in range(count)]).to(dtype))
    layer = model[0]
    inputs = images(layer.in_channels, *[9] * layer.dims, dtype=dtype)
    expected = plain_gradients(model, inputs)
    built.clear()
    with build_once(model):
        accumulate(model, inputs)
    assert built == ["along_axes"]
    assert_same_gradients(gradients(model), expected, DIGITS[dtype])


def test_a_network_in_batches(built):
    model, inputs = two_and_one(), images(6, 7, 7)
    assert_once_is_plain(model, inputs, 1e-12)
    built.clear()
    with build_once(model):
        accumulate(model, inputs)
    assert built == ["along_axes"] * 2


@pytest.mark.parametrize("name", LAYERS)
def test_the_weight_is_their_product(name):
    layer = move(LAYERS[name]().double())
    raw = layer.parametrizations.weight.original0
    with torch.no_grad():
        expected = layer.weight.clone()
    grad = torch.randn_like(expected)
    (expected_grad,) = torch.autograd.grad(layer.weight, raw, grad)
    with build_once(layer):
        weight = layer.weight
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-13)
        assert weight.is_contiguous()
        weight.backward(grad)
    torch.testing.assert_close(raw.grad, expected_grad, rtol=0, atol=1e-12)


def test_both_in_one_block():
    """Along axes, with the weight by hand, and both in one graph."""
    model, (x, y, z) = two_and_one(padding_mode="zeros"), images(6, 7, 7, count=3)

    def passes(model):
        loss_of(model, x).backward()
        F.conv2d(y, model[0].weight, padding=1).sin().sum().backward()
        (model[0](z) * F.conv2d(z, model[0].weight, padding=1)).sin().sum().backward()

    assert_same_in_a_block(model, passes, 1e-12)


def test_images_that_need_the_weight(monkeypatch, built):
    model, inputs = two_and_one(), images(6, 7, 7)
    expected = plain_gradients(model, inputs)
    monkeypatch.setattr(execution, "FEWEST_SAVED", 10**9)
    built.clear()
    with build_once(model):
        assert execution.select_execution(model[0], inputs[0]).name == "padded"
        accumulate(model, inputs)
    assert built == ["along_axes"] * 2
    assert_same_gradients(gradients(model), expected, 1e-12)


def test_autocast(built):
    """The weight is the product in full precision, then cast: as without the block."""
    model, x = two_and_one().float(), torch.randn(2, 6, 7, 7)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        with build_once(model):
            found = model(x)
            torch.testing.assert_close(model[0].weight, model[0].weight.double().float(), rtol=0, atol=0)
    torch.testing.assert_close(found, expected, rtol=0, atol=2**-7 * expected.abs().max().item())
    assert model[0].weight.dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints(reentrant):
    model = two_and_one()
    inputs = [x.requires_grad_() for x in images(6, 7, 7)]
    expected = plain_gradients(model, inputs)
    with build_once(model):
        for x in inputs:
            y = checkpoint(model, x, use_reentrant=reentrant)
            loss_of(lambda _, y=y: y, x).backward()
    assert_same_gradients(gradients(model), expected, 1e-12)


def test_derivatives_with_respect_to_inputs():
    model, (x,) = two_and_one(), images(6, 7, 7, count=1)
    expected = torch.func.grad(lambda x: loss_of(model, x))(x)
    penalty = torch.func.grad(lambda x: torch.func.grad(lambda x: loss_of(model, x))(x).square().sum())(x)
    with build_once(model):
        found = torch.func.grad(lambda x: loss_of(model, x))(x)
        torch.testing.assert_close(found, expected)
        second = torch.func.grad(lambda x: torch.func.grad(lambda x: loss_of(model, x))(x).square().sum())(x)
        torch.testing.assert_close(second, penalty)


def test_compiled(built):
    model, inputs = two_and_one(), images(6, 7, 7)
    expected = plain_gradients(model, inputs)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    built.clear()
    with build_once(model):
        accumulate(compiled, inputs)
    assert built == ["along_axes"] * 2
    assert_same_gradients(gradients(model), expected, 1e-12)


def test_transposed_layers_are_built_whole(built):
    model = move(AdaptiveOrthoConvTranspose2d(6, 6, 3, padding=1).double())
    inputs = images(6, 7, 7)
    expected = plain_gradients(model, inputs)
    built.clear()
    with build_once(model):
        accumulate(model, inputs)
    assert built == ["build"]
    assert_same_gradients(gradients(model), expected, 1e-12)


def test_inverses():
    layer = move(AdaptiveOrthoConv2d(6, 6, 3, padding_mode="circular").double())
    (x,) = images(6, 7, 7, count=1)
    with build_once(layer):
        torch.testing.assert_close(orthogonium.inverse(layer)(layer(x)), x)


class _Negative(Constraint):
    def build(self, raw, by=None):
        return -super().build(raw, by)


def _replace_kernel_build(constraint):
    constraint.kernel.build = lambda *raw, build=constraint.kernel.build: -build(*raw)


def _replace_build(constraint):
    constraint.build = lambda raw, by=None, build=constraint.build: -build(raw, by)


@pytest.mark.parametrize(
    "change", [_replace_kernel_build, _replace_build, lambda constraint: setattr(constraint, "__class__", _Negative)]
)
@pytest.mark.parametrize("places", [(0, 1, 2), (1,)])
def test_weights_with_a_build_of_their_own_are_built_by_it(change, places):
    model = two_and_one()
    for place in places:
        change(model[place].parametrizations.weight[0])
    assert_once_is_plain(model, images(6, 7, 7), 1e-12)


def test_together(built):
    model, inputs = two_and_one(), images(6, 7, 7)
    expected = plain_gradients(model, inputs)
    handle = build_together(model)
    built.clear()
    accumulate(model, inputs)
    assert built == ["along_axes"] * 8  # the batch, and the last layer by itself
    assert_same_gradients(gradients(model), expected, 1e-12)
    handle.remove()


def test_large_kernels_are_built_in_parts_and_small_ones_whole(monkeypatch, built):
    monkeypatch.undo()
    for channels, name in ((64, "build"), (128, "along_axes")):
        layer = AdaptiveOrthoConv2d(channels, channels, 3)
        source = builds.sources(layer)[0]
        assert builds.go_along_axes(source) == (name == "along_axes")
        half = builds.sources(AdaptiveOrthoConv2d(channels, channels, 3, dtype=torch.bfloat16))[0]
        assert not builds.go_along_axes(half)
