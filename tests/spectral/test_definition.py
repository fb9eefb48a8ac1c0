import copy

import pytest
import torch
from torch import nn

from orthogonium.errors import GeometryError, ShapeError
from orthogonium.spectral import check_geometry, convolution, geometry_of
from orthogonium.spectral.definition import apply, frobenius
from tests.spectral.zoo import WrappedConv, WrappedConvTranspose, oracle_matrix, random_conv, rng

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")


@pytest.mark.parametrize("seed", range(4))
def test_definition_agrees_with_torch(seed):
    random = rng(seed)
    for _ in range(50):
        layer, size = random_conv(random, bias=False)
        x = torch.randn(2, layer.in_channels, *size, dtype=torch.float64)
        torch.testing.assert_close(apply(geometry_of(layer), x), layer(x))


def test_definition_agrees_with_stated_layers():
    for k, s, d in [(3, 2, 1), (5, 3, 2), (1, 2, 1), (2, 4, 3), (4, 1, 1)]:
        check_geometry(WrappedConv(4, 2, k, s, d, groups=2), (4, 7, 9))
        check_geometry(WrappedConvTranspose(4, 2, k, s, d, groups=2), (4, 3, 4))


def test_lies_are_found():
    class Liar(WrappedConv):
        def spectral_geometry(self):
            return {"weight": 0.9 * self.weight}

    with pytest.raises(GeometryError, match="not the convolution"):
        check_geometry(Liar(2, 2, 3), (2, 5, 5))

    class Shifted(WrappedConv):
        def spectral_geometry(self):
            return {"padding": ((0, 2), (1, 1))}

    with pytest.raises(GeometryError, match="not the convolution"):
        check_geometry(Shifted(2, 2, 3), (2, 5, 5))


@pytest.mark.parametrize("seed", range(3))
def test_frobenius_norm_without_the_operator(seed):
    random = rng(seed)
    for _ in range(40):
        layer, size = random_conv(random)
        matrix = oracle_matrix(layer, (layer.in_channels, *size))
        torch.testing.assert_close(frobenius(geometry_of(layer), size).sum(), matrix.square().sum())


def test_frobenius_norm_of_stated_layers():
    for layer in (WrappedConv(2, 2, 3, 2), WrappedConv(2, 2, 5, 3, 2), WrappedConvTranspose(2, 2, 3, 2)):
        matrix = oracle_matrix(layer, (2, 4, 5))
        torch.testing.assert_close(frobenius(geometry_of(layer), (4, 5)).sum(), matrix.square().sum().detach())


def test_float32_layers_pass_their_own_check():
    layer = nn.Conv2d(16, 16, 3, padding=1)
    check_geometry(layer, (16, 8, 8))
    check_geometry(copy.deepcopy(layer).double(), (16, 8, 8))


def test_sizes_that_do_not_fit():
    with pytest.raises(ShapeError, match="No window fits"):
        apply(convolution(torch.ones(1, 1, 5)), torch.zeros(1, 1, 3))
    with pytest.raises(ShapeError, match="reflect padding"):
        apply(convolution(torch.ones(1, 1, 5), padding=3, padding_mode="reflect"), torch.zeros(1, 1, 3))
    with pytest.raises(ShapeError, match="circular padding"):
        apply(convolution(torch.ones(1, 1, 5), padding=4, padding_mode="circular"), torch.zeros(1, 1, 3))
    with pytest.raises(ShapeError, match="2 spatial sizes"):
        apply(convolution(torch.ones(1, 1, 1, 1)), torch.zeros(1, 1, 3))
    with pytest.raises(ShapeError, match="channels"):
        apply(convolution(torch.ones(1, 1, 1)), torch.zeros(1, 2, 3))
