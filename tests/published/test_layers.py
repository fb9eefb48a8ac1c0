"""Layers as scripts for 0.0.4 build, inspect and set them."""

import copy
import pickle

import pytest
import torch
from torch import nn

from orthogonium import layers
from orthogonium.layers import (
    AdaptiveOrthoConv1d,
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConvTranspose2d,
    BatchCentering2D,
    BcopRkoConv2d,
    BcopRkoConvTranspose2d,
    FastBlockConv1d,
    FastBlockConv2d,
    FastBlockConvTranspose2D,
    OrthoLinear,
    RKOConv2d,
    RkoConvTranspose2d,
)

PARTS = {"bcop": (FastBlockConv2d, FastBlockConvTranspose2D), "rko": (RKOConv2d, RkoConvTranspose2d)}
PARTS["both"] = (BcopRkoConv2d, BcopRkoConvTranspose2d)


@pytest.mark.parametrize(
    "kernel_size,stride,expected",
    [
        (3, 1, "bcop"),
        (2, 1, "bcop"),
        (1, 1, "rko"),
        (2, 2, "rko"),
        (3, 2, "both"),
        (5, 3, "both"),
        ((1, 2), (1, 2), "rko"),
    ],
)
@pytest.mark.parametrize("channels", [(8, 8), (8, 4)])
def test_an_adaptive_layer_is_the_part_that_it_consists_of(kernel_size, stride, expected, channels):
    conv = AdaptiveOrthoConv2d(*channels, kernel_size, stride)
    transpose = AdaptiveOrthoConvTranspose2d(*channels[::-1], kernel_size, stride)
    for layer, own in ((conv, 0), (transpose, 1)):
        for twin in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            for name, classes in PARTS.items():
                assert isinstance(twin, classes[own]) == (name == expected)
                assert not isinstance(twin, classes[1 - own])
    assert isinstance(conv, AdaptiveOrthoConv2d) and not isinstance(conv, FastBlockConv1d)
    assert isinstance(conv, nn.Conv2d) and isinstance(transpose, nn.ConvTranspose2d)


def test_named_parts_are_themselves_only():
    assert isinstance(FastBlockConv2d(4, 4, 3), FastBlockConv2d)
    assert not isinstance(FastBlockConv2d(4, 4, 3), AdaptiveOrthoConv2d | RKOConv2d | BcopRkoConv2d)
    assert not isinstance(nn.Conv2d(4, 4, 3), FastBlockConv2d)
    assert isinstance(AdaptiveOrthoConv1d(4, 4, 3), FastBlockConv1d)
    assert not isinstance(OrthoLinear(4, 4), RKOConv2d) and not isinstance(None, RKOConv2d)
    assert not issubclass(AdaptiveOrthoConv2d, FastBlockConv2d)


@pytest.mark.parametrize("channels", [(512, 256), (512, 64), (64, 512), (64, 64)])
def test_a_matrix_for_each_pixel_stores_as_many_numbers_as_its_weight(channels):
    with torch.device("meta"):
        layer = AdaptiveOrthoConv2d(*channels, kernel_size=1, bias=False)
    assert sum(p.numel() for p in layer.parameters()) == channels[0] * channels[1]


def test_centering_by_the_running_mean_is_a_translation_in_training_too():
    center = BatchCentering2D(3, momentum=0.1, subtract="running")
    x = (torch.randn(4, 3, 5, 5) + 3).requires_grad_()
    running = torch.zeros(3)
    for _ in range(2):
        y = center(x)
        running = 0.9 * running + 0.1 * x.detach().mean((0, 2, 3))
        torch.testing.assert_close(y, x - running.view(1, 3, 1, 1))
        cotangent = torch.randn_like(x)
        assert torch.equal(torch.autograd.grad(y, x, cotangent)[0], cotangent)
    torch.testing.assert_close(center.eval()(x), y)
    assert center.train()(torch.randn(1, 3, 1, 1)).shape == (1, 3, 1, 1)
    assert str(center.guarantee) == "all singular values 1, always (a translation)"
    with pytest.raises(ValueError, match="'batch' or the 'running'"):
        BatchCentering2D(3, subtract="sample")


def test_keywords_of_forward():
    images = torch.randn(1, 4, 4, 4)
    for activation in (
        layers.Abs(),
        layers.SoftHuber(),
        layers.MaxMin(),
        layers.HouseHolder(4),
        layers.HouseHolder_Order_2(4),
    ):
        assert torch.equal(activation(z=images), activation(images))
    blocks = [
        layers.SDPBasedLipschitzResBlock(4, 2),
        layers.SLLxAOCLipschitzResBlock(4, 8, 2),
        layers.AOCLipschitzResBlock(4, 2, 3),
        layers.BatchCentering2D(4).eval(),
        layers.LayerCentering2D(4),
        layers.ChannelShuffle(2, 2),
        layers.AdditiveResidual(nn.Identity()),
    ]
    for block in blocks:
        assert torch.equal(block(x=images), block(images))
    dense = layers.SDPBasedLipschitzDense(4, 4, 8)
    assert torch.equal(dense(x=images[..., 0, :]), dense(images[..., 0, :]))
