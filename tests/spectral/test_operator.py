import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.spectral import geometry_of, operator_matrix, operator_singular_values
from tests.spectral.zoo import oracle_matrix, random_conv, rng

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")


def test_matrix_of_any_layer():
    random = rng(0)
    for _ in range(30):
        layer, size = random_conv(random, bias=True)
        shape = (layer.in_channels, *size)
        matrix = operator_matrix(layer, shape)
        torch.testing.assert_close(matrix, oracle_matrix(layer, shape))
        torch.testing.assert_close(operator_matrix(geometry_of(layer), shape), matrix)


def test_applies_as_a_matrix():
    fn = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.PixelUnshuffle(2), nn.AvgPool2d(2)).double()
    matrix = operator_matrix(fn, (2, 8, 8))
    x = torch.randn(5, 2, 8, 8, dtype=torch.float64)
    expected = (fn(x) - fn(torch.zeros_like(x))).flatten(1)
    torch.testing.assert_close(x.flatten(1) @ matrix.T, expected.detach())


def test_many_impulses_are_sent_in_pieces():
    batches = []

    def fn(x):
        batches.append(len(x))
        return 2 * x

    torch.testing.assert_close(operator_matrix(fn, (2100,)), 2 * torch.eye(2100))
    assert max(batches) * 2100 <= 2**22


def test_inherits_dtype_and_takes_another():
    layer = nn.Linear(3, 2)
    assert operator_matrix(layer, (3,)).dtype == torch.float32
    assert operator_matrix(layer.bfloat16(), (3,)).dtype == torch.bfloat16
    assert operator_matrix(torch.tanh, (3,), dtype=torch.float64).dtype == torch.float64
    assert operator_singular_values(layer, (3,)).shape == (2,)


def test_needs_a_batch():
    with pytest.raises(ShapeError, match="batch"):
        operator_matrix(lambda x: x.repeat(2, 1), (3,))
    with pytest.raises(ParameterError, match="function"):
        operator_matrix(3, (3,))
