"""Sizes come from numpy, too: `y.max() + 1` classes, `np.linspace` widths. torch and 0.0.4 take them."""

import numpy as np
import pytest
import torch
from torch import nn

from orthogonium.errors import GeometryError, ParameterError
from orthogonium.kernels import ConvGeometry
from orthogonium.layers import (
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConvTranspose2d,
    AdaptiveSOCConv2d,
    AOCLipschitzResBlock,
    AOLConv2d,
    OrthoLinear,
    SDPBasedLipschitzDense,
    SDPBasedLipschitzResBlock,
    SLLxAOCLipschitzResBlock,
)
from orthogonium.layers.conv.init import conv_orthogonal_
from orthogonium.layers.conv.singular_values import get_conv_sv
from orthogonium.legacy import BCOP
from orthogonium.model_factory.models_factory import PatchBasedCNN


@pytest.mark.parametrize("kind", [np.int64, np.int32, torch.tensor])
@pytest.mark.parametrize(
    "layer",
    [
        lambda n: AdaptiveOrthoConv2d(n(8), n(8), n(4), stride=n(2), padding=n(1), dilation=n(1), groups=n(2)),
        lambda n: AdaptiveOrthoConv2d(8, 8, (n(3), n(3))),
        lambda n: AdaptiveOrthoConvTranspose2d(n(8), n(8), n(2), n(2), n(0), n(0)),
        lambda n: AdaptiveSOCConv2d(n(8), n(8), n(3), padding=n(3)),
        lambda n: AOLConv2d(n(8), n(8), n(3), padding=n(1), niter=n(1)),
        lambda n: SDPBasedLipschitzResBlock(n(8), n(2)),
        lambda n: SLLxAOCLipschitzResBlock(n(8), n(16), n(2), stride=n(2)),
        lambda n: AOCLipschitzResBlock(n(8), n(2), n(3)),
        lambda n: BCOP(n(8), n(8), n(3)),
    ],
)
def test_convolutions(layer, kind):
    x = torch.randn(2, 8, 6, 6)
    torch.manual_seed(0)
    ours = layer(kind)
    torch.manual_seed(0)
    plain = layer(int)
    torch.testing.assert_close(ours(x), plain(x), rtol=0, atol=0)
    assert repr(ours) == repr(plain)


@pytest.mark.parametrize("kind", [np.int64, torch.tensor])
def test_the_rest(kind):
    n = kind
    assert SDPBasedLipschitzDense(n(8), n(4), n(16))(torch.randn(2, 8)).shape == (2, 4)
    assert OrthoLinear(n(8), n(4))(torch.randn(2, 8)).shape == (2, 4)
    network = PatchBasedCNN((3, n(16), n(16)), dim=n(8), depth=n(1), n_classes=n(5))
    assert network(torch.randn(1, 3, 16, 16)).shape == (1, 5)
    conv = nn.Conv2d(4, 4, 3)
    assert get_conv_sv(conv, n(3), imsize=n(8)) == get_conv_sv(conv, 3, imsize=8)
    assert conv_orthogonal_(torch.empty(8, 4, 2, 2), stride=n(2), groups=n(2)).shape == (8, 4, 2, 2)


@pytest.mark.parametrize("kind", [np.uint8, lambda n: torch.tensor(n, dtype=torch.uint8)], ids=["numpy", "torch"])
def test_products_of_small_integers_do_not_wrap(kind):
    block = SDPBasedLipschitzResBlock(kind(100), kind(3))
    assert repr(block) == repr(SDPBasedLipschitzResBlock(100, 3)) and "300" in repr(block)


def test_geometries_hold_ints():
    geometry = ConvGeometry.of(2, np.int64(8), np.int64(8), np.int64(3), (np.int64(1),) * 2, groups=np.int64(2))
    sizes = (geometry.in_channels, geometry.groups, *geometry.kernel_size, *geometry.stride, *geometry.weight_shape)
    assert {type(n) for n in sizes} == {int}


def test_other_numbers_are_refused():
    for number in (8.0, np.float64(8), "8", torch.tensor(8.0)):
        with pytest.raises(GeometryError, match="in_channels"):
            AdaptiveOrthoConv2d(number, 8, 3)
    with pytest.raises(GeometryError, match="kernel_size"):
        AdaptiveOrthoConv2d(8, 8, np.float64(3))
    with pytest.raises(ParameterError, match="positive integer"):
        SDPBasedLipschitzDense(8, 8, True)
