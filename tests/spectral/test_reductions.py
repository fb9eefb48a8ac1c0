import math

import pytest
import torch

from orthogonium.spectral import convolution
from orthogonium.spectral.definition import apply
from orthogonium.spectral.reductions import reductions
from tests.spectral.zoo import oracle_values


def norm(conv, size):
    return oracle_values(lambda x: apply(conv, x), (conv.in_channels, *size))[0].item()


@pytest.mark.parametrize(
    ("size", "pad", "factor"), [((4, 4), 4, 3.0), ((4, 4), 2, 2.0), ((9, 9), 1, 2.0), ((5, 5), 0, 1.0)]
)
def test_circular_windows_that_go_around_more_than_once(size, pad, factor):
    conv = convolution(
        torch.ones(1, 1, 1, 1), padding=pad, padding_mode="circular"
    )  # copies pixels, norm 1 on the circle
    found = reductions(conv, size)[0].factor
    assert found == pytest.approx(factor)
    assert norm(conv, size) == pytest.approx(factor)  # attained


@pytest.mark.parametrize(("mode", "pad", "factor"), [("reflect", 2, 2.0), ("replicate", 3, 4.0), ("zeros", 5, 1.0)])
def test_copied_pixels(mode, pad, factor):
    conv = convolution(torch.ones(1, 1, 1, 1), padding=pad, padding_mode=mode)
    assert reductions(conv, (6, 7))[0].factor == pytest.approx(factor)
    assert norm(conv, (6, 7)) == pytest.approx(factor)


def test_reflection_from_both_sides_of_a_small_image():
    conv = convolution(torch.ones(1, 1, 1), padding=2, padding_mode="reflect")
    assert reductions(conv, (4,))[0].factor == pytest.approx(math.sqrt(3))
    assert norm(conv, (4,)) == pytest.approx(math.sqrt(3))
    assert reductions(conv, (6,))[0].factor == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize(("k", "pad"), [(1, 1), (2, 3), (3, 1), (5, 2)])
def test_the_factor_for_every_size_covers_each(mode, k, pad):
    conv = convolution(torch.ones(1, 1, k), padding=pad, padding_mode=mode)
    every = reductions(conv)[0].factor
    for n in range(max(pad + 1, k - 2 * pad), 14):
        assert every >= reductions(conv, (n,))[0].factor


def test_which_layers_are_circular_convolutions():
    def exact(size, **geometry):
        return reductions(convolution(torch.ones(1, 1, 3), **geometry), size)[0].same_spectrum

    assert exact((5,), padding=1, padding_mode="circular")
    assert exact((6,), padding=3, dilation=3, padding_mode="circular")
    assert exact((6,), stride=3)  # the windows tile the image
    assert exact((6,), stride=2, padding="same", padding_mode="circular")
    assert not exact((5,), padding=1)
    assert not exact((5,), padding=2, padding_mode="circular")
    assert not exact((7,), stride=2, padding=1, padding_mode="circular")
    assert not exact((7,), stride=2, padding="same", padding_mode="circular")
    assert not exact((7,), stride=3)
