import math

import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.global_pooling import (
    GlobalL2NormPool,
    GlobalMaxPool,
    ScaledAdaptiveAvgPool,
    ScaledGlobalAvgPool,
    adaptive_avg_constant,
)
from tests.jacobians import singular_values, worst_ratio

GLOBAL = [ScaledGlobalAvgPool, GlobalL2NormPool, GlobalMaxPool]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 3), (1, 2, 2, 3, 2)], ids=str)
@pytest.mark.parametrize("pool", GLOBAL)
def test_orthonormal_rows(pool, shape, dtype):
    x = torch.randn(shape, dtype=dtype)
    assert pool()(x).shape == shape[:2]
    assert pool(keepdim=True)(x).shape == (*shape[:2], *[1] * (len(shape) - 2))
    assert (singular_values(pool(), x) - 1).abs().max() < 1e-6
    assert pool().guarantee.kind == "orthogonal"


@pytest.mark.parametrize("pool", [*GLOBAL, lambda: ScaledAdaptiveAvgPool(3)])
def test_searched_inputs_are_never_moved_apart(pool):
    x, y = torch.randn(2, 2, 3, 5, 4, dtype=torch.float64)
    assert worst_ratio(pool(), x, y, steps=30) <= 1 + 1e-12


def test_values():
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    assert torch.allclose(ScaledGlobalAvgPool()(x), 4 * x.mean(dim=(2, 3)))
    assert torch.allclose(GlobalL2NormPool()(x), x.flatten(2).norm(dim=2))
    assert torch.allclose(GlobalMaxPool()(x), x.amax(dim=(2, 3)))
    assert torch.allclose(ScaledAdaptiveAvgPool(2)(x), 2 * nn.AdaptiveAvgPool2d(2)(x))


def test_ties_and_zeros():
    assert (singular_values(GlobalMaxPool(), torch.zeros(1, 2, 6)) - 1).abs().max() < 1e-6
    x = torch.zeros(1, 2, 6, requires_grad=True)
    GlobalL2NormPool()(x).sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("size", [5, 7, 8, 12])
@pytest.mark.parametrize("output", [1, 2, 3, 5, 9])
def test_adaptive_constant_is_the_norm_of_torchs_layer(size, output):
    """Also for sizes that do not divide, and for outputs larger than inputs."""
    norm = singular_values(nn.AdaptiveAvgPool1d(output), torch.zeros(1, 1, size, dtype=torch.float64)).max().item()
    assert adaptive_avg_constant(size, output) == pytest.approx(norm, abs=1e-12)


@pytest.mark.parametrize(
    ("shape", "output"), [((1, 2, 7), 3), ((1, 1, 6, 7), (3, 2)), ((1, 1, 4, 6), 2), ((1, 1, 4, 3, 5), 2)]
)
def test_adaptive_pooling_has_norm_exactly_one(shape, output):
    layer = ScaledAdaptiveAvgPool(output)
    assert singular_values(layer, torch.zeros(shape, dtype=torch.float64)).max().item() == pytest.approx(1, abs=1e-12)


def test_bad_arguments_are_rejected():
    for layer in (ScaledGlobalAvgPool(), GlobalL2NormPool(), GlobalMaxPool()):
        with pytest.raises(ShapeError, match="rank ≥ 3"):
            layer(torch.randn(2, 3))
    with pytest.raises(ParameterError, match="≥ 1"):
        ScaledAdaptiveAvgPool((2, 0))
    with pytest.raises(ShapeError, match="as many as output_size"):
        ScaledAdaptiveAvgPool((2, 2))(torch.randn(2, 3, 8))


def test_printed_form():
    assert repr(GlobalMaxPool(keepdim=True)) == "GlobalMaxPool(keepdim=True)"
    assert repr(ScaledAdaptiveAvgPool(3)) == "ScaledAdaptiveAvgPool(3)"


@pytest.mark.parametrize("pool", [*GLOBAL, lambda: ScaledAdaptiveAvgPool(3)])
def test_compiles_in_one_graph(pool):
    torch.compiler.reset()
    x = torch.randn(2, 3, 5, 7)
    assert torch.allclose(torch.compile(pool(), backend="eager", fullgraph=True)(x), pool()(x))
    assert torch.allclose(torch.export.export(pool(), (x,)).module()(x), pool()(x))


def test_half_precision():
    x = 300 * torch.rand(2, 4, 8, dtype=torch.float16)
    for pool in GLOBAL:
        assert pool()(x).dtype == torch.float16
    assert torch.isfinite(GlobalL2NormPool()(x)).all()
    assert math.isclose(GlobalMaxPool()(x).max().item(), x.max().item())
