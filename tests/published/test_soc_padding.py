"""Adaptive SOC keeps the sizes that scripts rely on, whatever its kernel grows to."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium.errors import GeometryError
from orthogonium.layers import (
    AdaptiveSOCConv2d,
    AdaptiveSOCConvTranspose2d,
    LipschitzConv1d,
    LipschitzConv2d,
    LipschitzConvTranspose2d,
)
from tests.oracle import operator, singular_values


def sizes(layer, size=16):
    return tuple(layer(torch.randn(1, layer.in_channels, size, size)).shape[2:])


# kernel, stride, padding, size: an image of 16 pixels in 0.0.4, where a 3×3 kernel grew to 7×7
PUBLISHED = [
    (3, 1, 3, 16), (3, 1, 1, 12), (3, 1, 0, 10), (5, 1, 6, 16), (1, 1, 0, 16), (2, 2, 0, 8), (3, 2, 3, 8), (3, 2, 1, 6),
    (4, 2, 3, 8), (3, 1, "same", 16), (3, 1, "valid", 10), (3, 2, "valid", 5), (5, 2, 3, 8), (5, 2, 0, 5), (7, 2, 6, 8),
    (6, 3, 3, 5), (7, 4, 3, 4), (9, 2, 9, 8), ((5, 3), 2, 3, 8),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("kernel,stride,padding,expected", PUBLISHED)
def test_sizes_of_the_published_order(kernel, stride, padding, expected, order, mode):
    layer = AdaptiveSOCConv2d(4, 4, kernel, stride, padding, padding_mode=mode, order=order)
    assert sizes(layer) == (expected, expected)


@pytest.mark.parametrize("order,padding", [(3, 3), (4, 3), (4, 4), (8, 3), (8, 8)])
def test_images_are_kept_at_the_published_order_and_at_the_own(order, padding):
    layer = AdaptiveSOCConv2d(2, 2, 3, padding=padding, order=order, bias=False)
    assert sizes(layer, 8) == (8, 8) and layer.covers
    sigma = singular_values(layer, 2, 4, 4)
    assert sigma[0] <= 1 + 1e-6 and sigma[-1] > 0.97


@pytest.mark.parametrize(
    "kernel,stride,padding,output_padding,expected",
    [
        (3, 1, 3, 0, 16),
        (3, 1, 1, 0, 20),
        (3, 1, 0, 0, 22),
        (2, 2, 0, 0, 32),
        (3, 2, 3, 1, 33),
        (4, 2, 3, 0, 32),
        (5, 1, 6, 0, 16),
        (5, 2, 3, 0, 32),
        (7, 2, 6, 0, 32),
        (6, 3, 3, 1, 49),
    ],
)
@pytest.mark.parametrize("order", [3, 4])
def test_transposes(kernel, stride, padding, output_padding, expected, order):
    layer = AdaptiveSOCConvTranspose2d(4, 4, kernel, stride, padding, output_padding, order=order)
    assert sizes(layer) == (expected, expected)


@pytest.mark.parametrize("size", [15, 16, 17])
@pytest.mark.parametrize(
    "kernel,stride,padding",
    [
        (3, 1, 1),
        (3, 1, 0),
        (3, 1, "valid"),
        (5, 1, 2),
        (1, 1, 0),
        (3, 2, 1),
        (4, 2, 1),
        (2, 2, 0),
        (5, 2, 2),
        (5, 3, 2),
        ((3, 1), 1, (1, 0)),
    ],
)
def test_layers_by_the_name_of_their_method_count_as_torch_does(kernel, stride, padding, size):
    layer = LipschitzConv2d(4, 4, kernel, stride, padding, padding_mode="zeros", method="soc")
    assert sizes(layer, size) == sizes(nn.Conv2d(4, 4, kernel, stride, padding), size)
    assert sizes(LipschitzConv2d(4, 4, kernel, stride, padding, method="soc"), size) == sizes(layer, size)


@pytest.mark.parametrize(
    "kernel,stride,padding,output_padding",
    [(3, 1, 1, 0), (3, 2, 1, 1), (3, 2, 1, 0), (4, 2, 1, 0), (2, 2, 0, 0), (5, 2, 2, 1), (3, 2, 0, 1), (5, 3, 1, 2)],
)
def test_transposes_by_the_name_of_their_method(kernel, stride, padding, output_padding):
    arguments = (4, 4, kernel, stride, padding, output_padding)
    layer = LipschitzConvTranspose2d(*arguments, padding_mode="zeros", method="soc")
    assert sizes(layer) == sizes(nn.ConvTranspose2d(*arguments))
    sigma = singular_values(layer, 4, 3, 3)
    assert sigma[0] <= 1 + 1e-6


@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize("kernel,padding,dilation", [(1, 0, 1), (3, 0, 1), (3, 1, 1), (3, 2, 2), (5, 1, 1), (5, 2, 1)])
def test_pixels_see_what_the_windows_of_torch_are_centred_on(kernel, padding, dilation, mode):
    layer = LipschitzConv2d(2, 3, kernel, 1, padding, dilation, bias=False, padding_mode=mode, method="soc").double()
    x, size = torch.randn(1, 2, 7, 7, dtype=torch.float64), 7
    around = x.repeat(1, 1, 11, 11) if mode == "circular" else F.pad(x, (5 * size,) * 4)
    with torch.no_grad():
        everywhere = F.conv2d(around, layer.weight, dilation=dilation)
        y = layer(x)
    grown = layer.weight.shape[-1]
    first = 5 * size - padding - dilation * (grown - kernel) // 2
    window = slice(first, first + y.shape[-1])
    torch.testing.assert_close(y, everywhere[..., window, window], rtol=0, atol=1e-12)
    assert y.shape[-1] == size + 2 * padding - dilation * (kernel - 1)


@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize(
    "kernel,stride,padding,output_padding", [(3, 1, 1, 0), (5, 1, 2, 0), (3, 2, 1, 1), (4, 2, 1, 0), (2, 2, 0, 0)]
)
def test_transposes_are_adjoint_to_the_convolution_with_these_arguments(kernel, stride, padding, output_padding, mode):
    options = {"bias": False, "padding_mode": mode, "method": "soc", "dtype": torch.float64}
    up = LipschitzConvTranspose2d(3, 2, kernel, stride, padding, output_padding, **options)
    down = LipschitzConv2d(2, 3, kernel, stride, padding, **options)
    down.load_state_dict(up.state_dict())
    adjoint = operator(down, 2, 4 * stride, 4 * stride).T
    torch.testing.assert_close(operator(up, 3, 4, 4), adjoint, rtol=0, atol=1e-12)


def test_refusals():
    with pytest.raises(GeometryError, match="padding='same'"):
        LipschitzConv1d(4, 4, 2, padding=0, method="soc")
    with pytest.raises(GeometryError, match="odd kernel_size"):
        LipschitzConvTranspose2d(4, 4, 2, padding=0, padding_mode="zeros", method="soc")
    with pytest.raises(ValueError, match="padding_to"):
        AdaptiveSOCConv2d(4, 4, 3, padding=1, padding_to="image")
