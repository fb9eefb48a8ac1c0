import pytest
import torch
import torch.nn.functional as F

from orthogonium.errors import GeometryError, ParameterError, ShapeError
from orthogonium.legacy import Cayley, CayleyLinear
from orthogonium.legacy.cayley_ortho_conv import (
    cayley,
    cayley_fft,
    frequency_response,
    from_frequencies,
    to_frequencies,
)
from tests.legacy.oracle import operator, singular_values


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (2, 6, 1), (2, 1, 6)])
def test_all_singular_values_are_one(shape, dtype):
    sigma = torch.linalg.svdvals(cayley(3 * torch.randn(shape, dtype=dtype)))
    assert (sigma - 1).abs().max() < 1e-13


def test_square_case_is_the_classical_transform():
    w = torch.randn(4, 4).double()
    a, eye = w - w.T, torch.eye(4).double()
    assert torch.allclose(cayley(w), (eye - a) @ torch.linalg.inv(eye + a))


@pytest.mark.parametrize("scale", [1, 100])
def test_float32_survives_large_scales(scale):
    w = torch.randn(32, 16)
    assert (torch.linalg.svdvals(cayley(scale * w / w.norm())) - 1).abs().max() < 1e-5


def test_gradient():
    assert torch.autograd.gradcheck(cayley, torch.randn(5, 3).double().requires_grad_())


@pytest.mark.parametrize("size", [(6, 6), (5, 7), (3, 4)])
@pytest.mark.parametrize("k", [(3, 3), (2, 3), (1, 2)])
def test_frequencies_are_those_of_the_circular_convolution(k, size):
    kernel, x = torch.randn(4, 3, *k).double(), torch.randn(2, 3, *size).double()
    pads = ((k[1] - 1) // 2, k[1] // 2, (k[0] - 1) // 2, k[0] // 2)
    expected = F.conv2d(F.pad(x, pads, mode="circular"), kernel)
    assert torch.allclose(from_frequencies(frequency_response(kernel, size) @ to_frequencies(x), size), expected)


@pytest.mark.parametrize("size", [(4, 4), (5, 4)])
def test_layer_commutes_with_shifts(size):
    x, kernel = torch.randn(1, 2, *size).double(), torch.randn(3, 2, 3, 3).double()
    shifted = cayley_fft(x.roll((1, 2), (2, 3)), kernel)
    assert torch.allclose(shifted, cayley_fft(x, kernel).roll((1, 2), (2, 3)))


def test_convolution_equals_the_transform_of_its_operator():
    # the Cayley transform of the whole circulant matrix, no Fourier transform involved
    kernel = torch.randn(2, 2, 3, 3).double()
    circulant = operator(lambda x: F.conv2d(F.pad(x, (1,) * 4, mode="circular"), kernel), (2, 4, 4), torch.float64)
    result = operator(lambda x: cayley_fft(x, kernel), (2, 4, 4), torch.float64)
    assert torch.allclose(result, cayley(circulant), atol=1e-12)


def test_one_layer_serves_every_image_size():
    layer = Cayley(3, 3, 3).double()
    for size in [(3, 3), (4, 7), (8, 8)]:
        assert (singular_values(layer, (3, *size), torch.float64) - 1).abs().max() < 1e-12


def test_scale_is_a_parameter():
    layer = CayleyLinear(4, 4)
    x = torch.randn(5, 4)
    layer(x).square().sum().backward()
    before = layer(x)
    with torch.no_grad():
        layer.matrix.weight.mul_(10)
    assert torch.allclose(layer(x), before, atol=1e-5)
    with torch.no_grad():
        layer.matrix.alpha.mul_(2)
    assert not torch.allclose(layer(x), before, atol=1e-2)


def test_refusals():
    for refused in ({"groups": 3}, {"dilation": 2}, {"padding_mode": "zeros"}):
        with pytest.raises(GeometryError, match="circular padding only"):
            Cayley(3, 3, 3, **refused)
    with pytest.raises(ParameterError, match="in_channels"):
        Cayley(0, 3, 3)
    with pytest.raises(ShapeError, match="larger than the image"):
        Cayley(3, 3, 5)(torch.randn(1, 3, 4, 4))
    with pytest.raises(ShapeError, match="stride 2"):
        Cayley(3, 3, 4, stride=2)(torch.randn(1, 3, 5, 5))
    with pytest.raises(ParameterError, match="out_features"):
        CayleyLinear(3, 2.0)
