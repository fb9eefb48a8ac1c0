import math

import pytest
import torch

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.legacy import ConvexPotentialLayerConv, ConvexPotentialLayerLinear
from tests.legacy.oracle import jacobian_norm, singular_values


def gap_free_rate(dimension, iterations):
    """Relative error of power iteration when singular values may coincide: log(d)/2n, up to a small constant."""
    return math.log(dimension) / iterations


def open_units(layer):
    """The worst case: with every ReLU open the Jacobian is I − 2WᵀW/β."""
    with torch.no_grad():
        layer.bias.fill_(1e3)
    return layer.eval()


def test_dense_estimate_is_from_below_and_converges():
    layer = ConvexPotentialLayerLinear(6, 9).double()
    true = torch.linalg.matrix_norm(layer.weight.detach(), ord=2)
    estimate = layer.eval().norm.of(layer.weight[None])
    assert true * (1 - gap_free_rate(6, 100)) <= estimate <= true * (1 + 1e-12)


def test_underestimates_expand_as_documented():
    layer = open_units(ConvexPotentialLayerLinear(6, 9).double())
    layer.norm.eval_steps = 0
    w = layer.weight.detach()
    layer.norm.v = torch.linalg.svd(w).Vh[1].reshape(1, 6, 1)  # the second singular vector instead of the first
    sigma = torch.linalg.svdvals(w)
    expected = 2 * (sigma[0] / sigma[1]) ** 2 - 1
    assert expected > 1.05
    assert jacobian_norm(layer, torch.randn(1, 6).double()) == pytest.approx(expected.item())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_convolution_with_all_units_open(k):
    layer = open_units(ConvexPotentialLayerConv(2, 4, k, input_size=6).double())
    assert jacobian_norm(layer, torch.randn(1, 2, 6, 6).double()) <= 1 + 2e-2
    assert jacobian_norm(layer, torch.randn(1, 2, 4, 5).double()) <= 1 + 2e-2


def test_convolution_estimates_the_norm_of_its_operator():
    layer = ConvexPotentialLayerConv(2, 4, input_size=6, eval_niter=2000).double().eval()
    true = singular_values(layer._conv, (2, 6, 6), torch.float64).max()
    with torch.no_grad():
        estimate = layer.norm(layer._conv, layer._adjoint).item()
    assert true * (1 - gap_free_rate(72, 2000)) <= estimate <= true * (1 + 1e-12)


def test_training_follows_the_weights():
    layer = ConvexPotentialLayerLinear(6, 9).double()
    with torch.no_grad():
        layer.weight.copy_(torch.randn_like(layer.weight))
    for _ in range(200):
        layer(torch.randn(1, 6).double())
    true = torch.linalg.matrix_norm(layer.weight.detach(), ord=2)
    assert (layer.weight.detach() @ layer.norm.v[0]).norm() >= true * (1 - gap_free_rate(6, 200))


def test_refusals():
    with pytest.raises(ShapeError, match="input_size"):
        ConvexPotentialLayerConv(2, 4, input_size=6)(torch.randn(1, 2, 7, 6))
    with pytest.raises(ParameterError, match="niter"):
        ConvexPotentialLayerLinear(3, 3, niter=0)
