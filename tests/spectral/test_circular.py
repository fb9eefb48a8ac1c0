import pytest
import torch
from torch import nn

from orthogonium.errors import GeometryError
from orthogonium.spectral import circular_singular_values, convolution
from orthogonium.spectral.circular import compress
from tests.spectral.zoo import CONV, WrappedConv, WrappedConvTranspose, oracle_values

D = torch.float64


def assert_all_values(layer, size, **options):
    exact = oracle_values(layer, (layer.in_channels, *size))
    found = circular_singular_values(layer, size, **options).detach()
    assert found.shape == exact.shape
    torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("dims", "k", "d", "groups", "size"),
    [
        (1, 3, 1, 1, (7,)),
        (1, 5, 2, 2, (8,)),
        (2, 3, 1, 1, (4, 5)),
        (2, 3, 2, 2, (6, 5)),
        (3, 3, 1, 1, (3, 2, 4)),
    ],
)
def test_stride_one(dims, k, d, groups, size, compressed):
    layer = CONV[dims](4, 6, k, padding=d * (k - 1) // 2, dilation=d, groups=groups, padding_mode="circular", dtype=D)
    assert_all_values(layer, size, compressed=compressed)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("ci", "co", "k", "s", "d", "groups", "size"),
    [
        (2, 3, 3, 2, 1, 1, (6, 4)),
        (3, 2, (2, 5), (2, 1), 1, 1, (4, 5)),
        (2, 4, 4, 2, 3, 2, (8, 6)),  # coprime stride and dilation
        (1, 3, 3, 4, 2, 1, (8, 4)),  # common factor: half of the pixels are never read
        (2, 40, 2, 3, 1, 1, (6, 3)),  # more outputs than the pixels that are read
        (1, 1, 4, 4, 2, 1, (8, 8)),
    ],
)
def test_strided(ci, co, k, s, d, groups, size, compressed):
    assert_all_values(WrappedConv(ci, co, k, s, d, groups), size, compressed=compressed)


def test_transposed():
    layer = WrappedConvTranspose(4, 2, 3, 2, groups=2)
    assert_all_values(layer, (3, 2))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (3, 1)])
def test_images_smaller_than_the_kernel(size):
    assert_all_values(WrappedConv(2, 3, 7), size)  # a padded FFT would cut the kernel


@pytest.mark.parametrize("layer", [nn.Linear(5, 3, dtype=D), nn.Linear(3, 5, dtype=D)])
def test_dense(layer):
    exact = torch.linalg.svdvals(layer.weight.detach())
    torch.testing.assert_close(circular_singular_values(layer, ()).detach(), exact)


def test_windows_that_tile_the_image_need_no_padding():
    assert_all_values(nn.Conv2d(3, 4, 2, stride=2, dtype=D), (6, 4))
    assert_all_values(nn.Conv2d(3, 4, 1, dtype=D), (3, 4))
    assert_all_values(nn.ConvTranspose2d(4, 3, 2, stride=2, dtype=D), (3, 2))


def test_values_of_each_group():
    layer = WrappedConv(4, 6, 3, groups=2)
    rows = circular_singular_values(layer, (3, 4), per_group=True)
    assert rows.shape == (2, 24)
    for g in range(2):
        part = WrappedConv(2, 3, 3)
        part.weight = nn.Parameter(layer.weight[3 * g : 3 * g + 3].detach())
        torch.testing.assert_close(rows[g].detach(), oracle_values(part, (2, 3, 4)))


def test_the_core_is_small():
    assert compress(torch.randn(1, 64, 3, 3, 3, dtype=D)).shape == (1, 27, 3, 3, 3)
    assert compress(torch.randn(1, 2, 40, 3, 3, dtype=D)).shape == (1, 2, 18, 3, 3)
    low = torch.einsum(
        "or,rskl,si->oikl", torch.randn(8, 2, dtype=D), torch.randn(2, 3, 3, 3, dtype=D), torch.randn(3, 9, dtype=D)
    )
    assert compress(low[None]).shape == (1, 2, 3, 3, 3)
    assert compress(torch.zeros(1, 4, 5, 3, dtype=D)).shape == (1, 1, 1, 3)


def test_differentiable():
    weight = torch.randn(2, 3, 3, dtype=D, requires_grad=True)
    for compressed in (False, True):
        assert torch.autograd.gradcheck(
            lambda w, compressed=compressed: circular_singular_values(
                convolution(w, padding=1, padding_mode="circular"), (5,), compressed=compressed
            )[0],
            (weight,),
        )


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (nn.Conv2d(1, 1, 3, padding=1), (4, 4)),
        (nn.Conv2d(1, 1, 3, padding=2, padding_mode="circular"), (4, 4)),
        (nn.Conv2d(1, 1, 3, 2, padding=1, padding_mode="circular"), (5, 4)),
        (WrappedConv(1, 1, 3, 2), (5, 4)),
    ],
)
def test_only_circular_convolutions(layer, size):
    with pytest.raises(GeometryError, match="Not a circular convolution"):
        circular_singular_values(layer, size)
