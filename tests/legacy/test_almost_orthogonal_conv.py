import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium.errors import GeometryError
from orthogonium.legacy import AOLConv2d, AOLLinear
from orthogonium.legacy.almost_orthogonal_conv import aol_rescale, gram_row_sums
from tests.legacy.oracle import operator, singular_values


@pytest.mark.parametrize("k", [(1, 1), (3, 3), (2, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_row_sums_dominate_the_gram_operator(k, weighted):
    kernel = torch.randn(4, 3, *k).double()
    q = torch.rand(4).double() + 0.1 if weighted else None
    matrix = operator(lambda x: F.conv2d(F.pad(x, (k[1],) * 2 + (k[0],) * 2), kernel), (3, 5, 5), torch.float64)
    t = gram_row_sums(kernel, q).repeat_interleave(len(matrix) // 4)
    assert torch.linalg.eigvalsh(torch.diag(t) - matrix @ matrix.T).min() >= -1e-10


def test_best_q_is_the_perron_vector():
    w = torch.randn(5, 4).double()
    values, vectors = torch.linalg.eigh((w @ w.T).abs())
    t = gram_row_sums(w[..., None, None], vectors[:, -1].abs())
    assert torch.allclose(t, values[-1].expand(5))


@pytest.mark.parametrize("groups", [1, 2])
def test_random_kernels_become_contractions(groups):
    layer = AOLConv2d(4, 6, 3, padding=1, groups=groups).double()
    for _ in range(5):
        nn.init.normal_(layer.weight, std=3)
        sigma = singular_values(layer, (4, 6, 6), torch.float64).max()
        assert 0.3 < sigma <= 1 + 1e-12


def test_orthogonal_input_is_left_alone():
    sigma = singular_values(AOLConv2d(4, 4, 3, padding=1).double(), (4, 5, 5), torch.float64)
    assert sigma.min() > 1 - 1e-6
    assert singular_values(AOLLinear(4, 6).double(), (4,), torch.float64).min() > 1 - 1e-6


def test_zero_channels_stay_finite():
    weight = torch.zeros(3, 2, 3, 3, requires_grad=True)
    rescaled = aol_rescale(weight)
    rescaled.sum().backward()
    assert torch.equal(rescaled, torch.zeros_like(weight))
    assert torch.isfinite(weight.grad).all()


def test_same_signature_as_torch():
    layer = AOLConv2d(4, 6, (3, 1), stride=(2, 1), padding=(1, 0), dtype=torch.float64)
    assert isinstance(layer, nn.Conv2d) and layer.weight.dtype == torch.float64
    assert layer(torch.randn(1, 4, 6, 5).double()).shape == (1, 6, 3, 5)


@pytest.mark.parametrize("padding", [1, 0, "same"])
def test_circular_padding_that_keeps_or_shrinks_the_image(padding):
    layer = AOLConv2d(3, 3, 3, padding=padding, padding_mode="circular").double()
    nn.init.normal_(layer.weight)
    assert singular_values(layer, (3, 5, 5), torch.float64).max() <= 1 + 1e-12


def test_refusals():
    with pytest.raises(GeometryError, match="more pixels"):
        AOLConv2d(3, 3, 3, padding=2, padding_mode="circular")
    with pytest.raises(GeometryError, match="more pixels"):
        AOLConv2d(3, 3, (3, 1), padding=(1, 1), padding_mode="circular")
    with pytest.raises(GeometryError, match="repeats pixels"):
        AOLConv2d(3, 3, 3, padding=1, padding_mode="reflect")
