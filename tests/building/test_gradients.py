"""Weights that are built once, or together, give the gradients of weights that are built as always."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

from orthogonium import build_once
from orthogonium.building.builds import batches, sources
from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
from orthogonium.linalg import BJORCK_ORTHO_PARAMS, OrthoParams
from orthogonium.linalg.triangular import BatchedCholeskyOrthogonalization
from tests.building.passes import (
    DIGITS,
    accumulate,
    assert_once_is_plain,
    assert_same_gradients,
    gradients,
    move,
    plain_gradients,
)
from tests.contracts.blocks import BLOCKS
from tests.contracts.table import LAYERS
from tests.models.cases import SMALL, small

CASES = {**LAYERS, **BLOCKS}
dtypes = pytest.mark.parametrize("dtype", DIGITS, ids=lambda d: str(d)[6:])


class Sum(nn.ModuleList):
    """Each layer applied to the same input: the outputs side by side."""

    def forward(self, x):
        return torch.stack([layer(x) for layer in self])


def three(name, dtype):
    """Three layers of one kind, and four inputs."""
    layers = Sum([CASES[name].make() for _ in range(3)])
    inputs = [CASES[name].input(layers[0]).to(dtype) for _ in range(4)]
    return move(layers.to(dtype)), inputs


@dtypes
@pytest.mark.parametrize("name", CASES)
def test_layers(name, dtype):
    layers, inputs = three(name, dtype)
    # The polar factor itself is exact to 3e-5 in float32, by the order of its sums: its steps lift what rounding
    # leaves.
    polar = dtype == torch.float32 and "POLAR" in name
    assert_once_is_plain(layers, inputs, 2e-4 if polar else DIGITS[dtype])


@dtypes
@pytest.mark.parametrize("name", SMALL)
def test_models(name, dtype):
    model, shape = small(name)
    model = move(model.to(dtype)).train()
    assert_once_is_plain(model, [torch.randn(3, *shape, dtype=dtype) for _ in range(4)], DIGITS[dtype])


@pytest.mark.parametrize("name", CASES)
def test_equal_layers_are_one_batch(name):
    layers, _ = three(name, torch.float32)
    assert batches(sources(layers)) == [[0, 1, 2]]


@pytest.mark.parametrize("name", ["AOC", "AOC-residual"])
def test_builds_of_four_passes(name, monkeypatch):
    layers, inputs = three(name, torch.float32)
    kernel = type(layers[0].parametrizations.weight[0].kernel)
    built, build = [], kernel.build
    monkeypatch.setattr(kernel, "build", lambda self, *raw: built.append(len(raw[0])) or build(self, *raw))
    accumulate(layers, inputs)
    assert len(built) == 12
    built.clear()
    with build_once(layers):
        accumulate(layers, inputs)
    assert len(built) == 1


def test_options_sizes_and_frozen_layers_make_batches():
    layers = nn.ModuleList([OrthoLinear(4, 4), OrthoLinear(4, 3), OrthoLinear(4, 4, bias=False), OrthoLinear(4, 4)])
    layers.append(OrthoLinear(4, 4, ortho_params=OrthoParams(orthogonalizer=BatchedCholeskyOrthogonalization)))
    layers[3].parametrizations.weight.original.requires_grad_(False)
    layers.append(OrthoLinear(4, 4, lipschitz=2.0))
    layers.append(OrthoLinear(4, 4).eval())  # a user's orthogonalizer may depend on it
    assert batches(sources(layers)) == [[0, 2], [1], [3], [4], [5], [6]]
    layers[6].train()
    assert batches(sources(layers)) == [[0, 2, 6], [1], [3], [4], [5]]


def test_options_that_change_make_other_batches():
    layers = Sum([OrthoLinear(4, 4, ortho_params=BJORCK_ORTHO_PARAMS) for _ in range(3)]).double()
    assert batches(sources(layers)) == [[0, 1, 2]]
    kernels = [layer.parametrizations.weight[0].kernel for layer in layers]
    kernels[1].orthogonalize.orthogonalizer.niters += 1
    assert batches(sources(layers)) == [[0, 2], [1]]
    kernels[0].orthogonalize = BatchedCholeskyOrthogonalization((4, 4))
    assert batches(sources(layers)) == [[0], [1], [2]]
    kernels[1].orthogonalize.orthogonalizer.niters -= 1
    assert batches(sources(layers)) == [[0], [1, 2]]
    assert_once_is_plain(layers, [torch.randn(5, 4).double() for _ in range(4)], 1e-12)


@pytest.mark.parametrize("name", ["AOC", "AOC-residual", "OrthoLinear-DEFAULT"])
def test_layers_with_constants(name):
    layers, inputs = three(name, torch.float64)
    for layer in layers:
        layer.parametrizations.weight[0].lipschitz = 3.0
    assert batches(sources(layers)) == [[0, 1, 2]]
    assert_once_is_plain(layers, inputs, 1e-12)


class _Mixing(BatchedCholeskyOrthogonalization):
    """An orthogonalizer of a user: of a batch, the first matrix decides the sign of all."""

    def forward(self, w):
        first = w.detach().reshape(-1, *w.shape[-2:])[0].sum().sign()
        return first * super().forward(w)


def test_what_is_not_known_to_be_batched_is_built_one_by_one():
    layers = Sum([OrthoLinear(4, 4, ortho_params=OrthoParams(orthogonalizer=_Mixing)) for _ in range(3)])
    assert batches(sources(layers)) == [[0], [1], [2]]
    assert_once_is_plain(layers.double(), [torch.randn(5, 4).double() for _ in range(4)], 1e-12)


class _Private(BatchedCholeskyOrthogonalization):
    """An orthogonalizer of a user, with an option that its name keeps private."""

    batched = True

    def __init__(self, weight_shape, factor):
        super().__init__(weight_shape)
        self._factor = factor

    def forward(self, w):
        return self._factor * super().forward(w)


@pytest.mark.parametrize(
    "factors,expected",
    [((1.0, 1.0, 0.5), [[0, 1], [2]]), ([torch.ones(4, 1), torch.ones(4, 1), 0.5 * torch.ones(4, 1)], [[0], [1], [2]])],
    ids=["number", "tensor"],
)
def test_private_options_are_options(factors, expected):
    params = [OrthoParams(orthogonalizer=partial(_Private, factor=factor)) for factor in factors]
    layers = Sum([OrthoLinear(4, 4, ortho_params=own) for own in params]).double()
    assert batches(sources(layers)) == expected
    assert_once_is_plain(layers, [torch.randn(5, 4).double() for _ in range(4)], 1e-12)


@pytest.mark.parametrize("place", ["kernel.orthogonalize.orthogonalizer", "kernel.orthogonalize"])
def test_what_has_hooks_is_built_one_by_one(place):
    layers = Sum([OrthoLinear(4, 4, ortho_params=BJORCK_ORTHO_PARAMS) for _ in range(3)])
    hook = layers[1].parametrizations.weight[0].get_submodule(place).register_forward_hook(lambda m, x, y: -y)
    assert batches(sources(layers)) == [[0, 2], [1]]
    hook.remove()
    assert batches(sources(layers)) == [[0, 1, 2]]
    part = layers[1].parametrizations.weight[0].get_submodule(place)
    part.forward = lambda w, forward=part.forward: -forward(w)
    assert batches(sources(layers)) == [[0, 2], [1]]


def test_unused_layers_get_no_gradient():
    layers, inputs = three("AOC-strided", torch.float64)
    expected = plain_gradients(layers[:2], inputs)
    with build_once(layers):
        accumulate(layers[:2], inputs)
    assert_same_gradients(gradients(layers[:2]), expected, 1e-12)
    assert all(p.grad is None for p in layers[2].parameters())


def test_gradients_add_up_over_blocks():
    layers, inputs = three("AOC", torch.float64)
    expected = plain_gradients(layers, inputs)
    for part in (inputs[:1], inputs[1:]):
        with build_once(layers):
            accumulate(layers, part)
    assert_same_gradients(gradients(layers), expected, 1e-12)


def test_frozen_layers():
    layers, inputs = three("AOC", torch.float64)
    layers[1].requires_grad_(False)
    layers[2].parametrizations.requires_grad_(False)
    assert_once_is_plain(layers, inputs, 1e-12)


def test_layers_with_few_pixels_use_the_weight_of_the_block():
    """Else they would apply the factors of their kernel in turn, which are built at each pass."""
    layers = Sum([AdaptiveOrthoConv2d(64, 64, 3) for _ in range(2)]).double()
    assert_once_is_plain(layers, [torch.randn(1, 64, 4, 4).double() for _ in range(4)], 1e-12)


def test_training_with_and_without():
    torch.manual_seed(1)
    model = nn.Sequential(AdaptiveOrthoConv2d(3, 8, 3, stride=2), nn.ReLU(), AdaptiveOrthoConv2d(8, 8, 3), nn.Flatten())
    model.append(OrthoLinear(8 * 9, 5))
    once = deepcopy(model.double())
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (model, once)]
    for _ in range(10):
        inputs = [torch.randn(4, 3, 6, 6).double() for _ in range(3)]
        accumulate(model, inputs)
        with build_once(once):
            accumulate(once, inputs)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(model.parameters(), once.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=0, atol=1e-9)
