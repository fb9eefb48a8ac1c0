import math

import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.pooling import (
    L2NormPool1d,
    L2NormPool2d,
    L2NormPool3d,
    ScaledAvgPool1d,
    ScaledAvgPool2d,
    ScaledAvgPool3d,
    ScaledMaxPool1d,
    ScaledMaxPool2d,
    ScaledMaxPool3d,
    avg_pool_constant,
    max_pool_constant,
)
from tests.jacobians import singular_values, worst_ratio

AVG, NORM, MAX = "avg", "l2", "max"
POOLS = {
    AVG: {1: ScaledAvgPool1d, 2: ScaledAvgPool2d, 3: ScaledAvgPool3d},
    NORM: {1: L2NormPool1d, 2: L2NormPool2d, 3: L2NormPool3d},
    MAX: {1: ScaledMaxPool1d, 2: ScaledMaxPool2d, 3: ScaledMaxPool3d},
}
SIZES = {1: (9,), 2: (6, 7), 3: (4, 4, 5)}
# kernel, stride, padding
WINDOWS = [(2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0), (4, 2, 2), (3, 3, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kernel", "stride", "padding"), WINDOWS)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", POOLS)
def test_one_lipschitz_and_orthogonal_where_it_says_so(kind, dims, kernel, stride, padding, dtype):
    layer = POOLS[kind][dims](kernel, stride, padding)
    x = torch.randn(1, 2, *SIZES[dims], dtype=dtype)
    values = singular_values(layer, x)
    assert layer(x).dtype == dtype
    assert values.max() <= 1 + 1e-6
    overlaps = kernel > stride
    assert (layer.guarantee.kind == "orthogonal") == (not overlaps and not (kind == AVG and padding))
    if layer.guarantee.kind == "orthogonal":
        assert (values - 1).abs().max() < 1e-6


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (2, 2), (3, 1), (3, 2), (5, 2), (5, 3), (2, 5), (7, 3)])
def test_average_constant_is_the_norm_on_the_circle(kernel, stride):
    """Built entry by entry on a circle of 12 strides; zero-padded and cropped ones cannot be larger."""
    n = 12 * stride
    matrix = torch.zeros(12, n, dtype=torch.float64)
    for i in range(12):
        for j in range(kernel):
            matrix[i, (i * stride + j) % n] += 1 / kernel
    norm = torch.linalg.matrix_norm(matrix, ord=2).item()
    assert avg_pool_constant(kernel, stride) == pytest.approx(norm, abs=1e-12)
    assert avg_pool_constant((kernel, kernel), stride) == pytest.approx(norm**2, abs=1e-12)


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1), (5, 3)])
def test_average_constant_is_approached_on_long_inputs(kernel, stride):
    """So the scale could not be larger."""
    layer = ScaledAvgPool1d(kernel, stride)
    assert 0.98 < singular_values(layer, torch.zeros(1, 1, 60, dtype=torch.float64)).max() <= 1 + 1e-12


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1), (4, 3), (2, 1), (3, 4)])
def test_max_constant_is_attained_by_a_spike(kernel, stride, dilation):
    """One large pixel wins every window it lies in."""
    torch_layer = nn.MaxPool1d(kernel, stride, dilation=dilation)
    scaled = ScaledMaxPool1d(kernel, stride, dilation=dilation)
    largest = 0.0
    for position in range(10, 22):
        x = torch.rand(1, 1, 32, dtype=torch.float64)
        x[0, 0, position] = 9
        largest = max(largest, singular_values(torch_layer, x).max().item())
        assert singular_values(scaled, x).max() <= 1 + 1e-12
    assert largest == pytest.approx(max_pool_constant(kernel, stride, dilation), abs=1e-12)


def test_l2_constant_is_attained_by_a_spike():
    x = torch.zeros(1, 1, 7, 7, dtype=torch.float64)
    x[0, 0, 4, 4] = 1
    assert singular_values(L2NormPool2d(3, 2), x).max() == pytest.approx(1, abs=1e-12)
    assert max_pool_constant((3, 3), (2, 2)) == 2


def test_constants_by_hand():
    assert avg_pool_constant(3, 2) == pytest.approx(math.sqrt(5) / 3)
    assert avg_pool_constant((4, 4)) == 0.25
    assert avg_pool_constant(3, 1) == 1
    assert max_pool_constant((3, 3), (2, 1)) == pytest.approx(math.sqrt(6))
    assert max_pool_constant(3, 2, dilation=2) == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("kind", POOLS)
def test_searched_inputs_are_never_moved_apart(kind):
    layer = POOLS[kind][2](3, 2, 1)
    x, y = torch.randn(2, 2, 1, 7, 7, dtype=torch.float64)
    assert worst_ratio(layer, x, y, steps=30) <= 1 + 1e-12


def test_values():
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    assert torch.allclose(ScaledAvgPool2d(2)(x), 2 * nn.AvgPool2d(2)(x))
    assert torch.allclose(ScaledAvgPool2d(3, 1, 1)(x), nn.AvgPool2d(3, 1, 1)(x))
    assert torch.allclose(ScaledMaxPool2d(2)(x), nn.MaxPool2d(2)(x))
    assert torch.allclose(ScaledMaxPool2d(3, 2, 1, ceil_mode=True)(x), nn.MaxPool2d(3, 2, 1, ceil_mode=True)(x) / 2)
    assert torch.allclose(L2NormPool2d(2)(x), nn.LPPool2d(2, 2)(x))
    assert torch.allclose(L2NormPool2d(2)(x).norm(), x.norm())
    assert torch.allclose(L2NormPool2d((2, 3), (1, 3))(x), nn.LPPool2d(2, (2, 3), (1, 3))(x) / math.sqrt(2))
    assert ScaledAvgPool2d(2)(x[0]).shape == (3, 3, 3)


def test_l2_pooling_of_zeros_has_a_finite_gradient_and_stays_non_expansive():
    layer = L2NormPool2d(2)
    x = torch.zeros(1, 1, 4, 4, requires_grad=True)
    layer(x).sum().backward()
    assert layer(x).abs().max() < 1e-15
    assert torch.isfinite(x.grad).all()
    for size in (1e-25, 1e-22, 1e-19, 1e-16):
        assert singular_values(layer, size * torch.randn(1, 1, 4, 4)).max() <= 1 + 1e-5


@pytest.mark.parametrize("kind", POOLS)
def test_half_precision(kind):
    x = 300 * torch.rand(2, 4, 8, 8, dtype=torch.float16)  # squares overflow float16
    y = POOLS[kind][2](2)(x)
    assert y.dtype == torch.float16 and torch.isfinite(y).all()


def test_bad_arguments_are_rejected():
    with pytest.raises(ParameterError, match="kernel_size needs one int or 2"):
        ScaledAvgPool2d((2, 2, 2))
    with pytest.raises(ParameterError, match="≥ 1"):
        L2NormPool1d(0)
    with pytest.raises(ParameterError, match="kernel_size/2"):
        ScaledMaxPool2d(3, padding=2)
    with pytest.raises(ParameterError, match="dilation"):
        ScaledMaxPool1d(2, dilation=0)
    with pytest.raises(ShapeError, match="2 spatial axes"):
        ScaledAvgPool2d(2)(torch.randn(3, 4))


def test_printed_form():
    assert repr(ScaledAvgPool2d(2)) == "ScaledAvgPool2d(kernel_size=(2, 2), stride=(2, 2))"
    assert repr(ScaledMaxPool1d(3, 2, 1, 2, True)) == (
        "ScaledMaxPool1d(kernel_size=(3,), stride=(2,), padding=(1,), dilation=(2,), ceil_mode=True)"
    )


def test_compiles_in_one_graph():
    torch.compiler.reset()
    model = nn.Sequential(ScaledAvgPool2d(3, 1, 1), L2NormPool2d(2), ScaledMaxPool2d(3, 2, 1))
    x = torch.randn(2, 3, 16, 16)
    assert torch.allclose(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))
