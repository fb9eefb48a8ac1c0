"""The originals with the arguments of 0.0.4."""

import pytest
import torch

from orthogonium.legacy.block_ortho_conv import BCOP
from orthogonium.legacy.cayley_ortho_conv import Cayley, CayleyLinear
from orthogonium.legacy.skew_ortho_conv import SOC

IMAGES = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("padding", [None, 0, 1, 7, "same"])
@pytest.mark.parametrize("layer", [BCOP, Cayley])
def test_images_keep_their_size_whatever_the_padding(layer, padding):
    made = layer(8, 8, 3, 1, padding)
    assert made(IMAGES).shape == (2, 8, 8, 8)


def test_positional_arguments_of_bcop():
    layer = BCOP(8, 16, 3, 2, None, "circular", False, 0.5, 12, 2, True)
    assert layer.bias is None and layer.orthonormalize.iters == 12 and layer.orthonormalize.order == 2
    assert layer(IMAGES).shape == (2, 16, 4, 4)
    assert torch.allclose(BCOP(8, 8, 3, bjorck_order=2, bias=False)(IMAGES).norm(), IMAGES.norm(), rtol=1e-4)


def test_soc_updates_its_norms_every_200_calls():
    layer = SOC(8, 8, 3, padding="same")
    assert {norm.every for norm in layer.norms} == {200}
    assert SOC(8, 8, 3, stride=2, update_freq=5)(IMAGES).shape == (2, 8, 4, 4)


def test_cayley_takes_the_arguments_of_a_convolution():
    layer = Cayley(8, 8, 3, stride=1, padding="same", dilation=1, groups=1, bias=False, padding_mode="circular")
    assert torch.allclose(layer(IMAGES).norm(), IMAGES.norm(), rtol=1e-4)
    assert CayleyLinear(8, 4)(torch.randn(2, 8)).shape == (2, 4)
