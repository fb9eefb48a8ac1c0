import math

import pytest
import torch
import torch.nn.functional as F

from orthogonium.errors import GeometryError, ParameterError
from orthogonium.legacy import SOC
from orthogonium.legacy.skew_ortho_conv import fantastic_four, skew_kernel, soc_series, unfoldings
from tests.legacy.oracle import operator, singular_values

MODES = ["zeros", "circular"]


def conv(kernel, mode):
    v, h = kernel.shape[-2] // 2, kernel.shape[-1] // 2
    return lambda x: F.conv2d(F.pad(x, (h, h, v, v), mode="constant" if mode == "zeros" else mode), kernel)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(3, 3), (1, 5), (5, 3)])
def test_operator_is_skew_and_the_series_its_exponential(mode, size):
    kernel = skew_kernel(torch.randn(3, 3, *size).double()) / 4
    matrix = operator(conv(kernel, mode), (3, 5, 5), torch.float64)
    assert torch.allclose(matrix, -matrix.T)
    series = operator(lambda x: soc_series(x, kernel, 40, mode), (3, 5, 5), torch.float64)
    assert torch.allclose(series, torch.linalg.matrix_exp(matrix), atol=1e-11)
    assert torch.allclose(series @ series.T, torch.eye(75).double(), atol=1e-11)


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_series_stops_after_its_terms(terms):
    kernel = torch.full((1, 1, 1, 1), 2.0)
    expected = sum(2.0**i / math.factorial(i) for i in range(terms + 1))
    assert soc_series(torch.ones(1, 1, 1, 1), kernel, terms).item() == pytest.approx(expected)


def test_unfoldings_hold_every_entry_where_they_should():
    kernel = torch.randn(2, 3, 4, 5)
    a, b, c, d = unfoldings(kernel)
    assert [tuple(m.shape) for m in (a, b, c, d)] == [(8, 15), (10, 12), (40, 3), (2, 60)]
    o, i, s, t = 1, 2, 3, 4
    assert kernel[o, i, s, t] == a[o * 4 + s, i * 5 + t] == b[o * 5 + t, i * 4 + s]
    assert kernel[o, i, s, t] == c[(o * 4 + s) * 5 + t, i] == d[o, (i * 4 + s) * 5 + t]


def test_fantastic_four_is_an_upper_bound_only_with_its_root():
    without_root = 0
    for _ in range(20):
        kernel = torch.randn(4, 3, 3, 3).double()
        norms = [singular_values(conv(kernel, mode), (3, 8, 8), torch.float64).max() for mode in MODES]
        bound = fantastic_four(kernel)
        assert fantastic_four(kernel, num_iters=5) <= bound * (1 + 1e-6)
        assert fantastic_four(conv_filter=kernel, num_iters=500) == pytest.approx(bound.item(), rel=1e-3)
        assert max(norms) <= bound * (1 + 1e-12)
        without_root += bool(max(norms) > bound / 3)
    assert without_root == 20


def test_published_scaling_misses_the_root():
    layer = SOC(6, 6).double().eval()
    norm = singular_values(conv(layer.kernel().detach(), "circular"), (6, 8, 8), torch.float64).max()
    assert 1 < norm <= 2.1


def test_training_series_expands_as_documented():
    layer = SOC(6, 6).double()
    sigma = singular_values(layer, (6, 6, 6), torch.float64)
    assert 1e-5 < sigma.max() - 1 <= 5e-3


def test_rare_updates_leave_the_vectors_alone():
    layer = SOC(3, 3, update_freq=3)
    x = torch.randn(1, 3, 4, 4)
    vectors = []
    for _ in range(5):
        with torch.no_grad():
            layer.weight.add_(torch.randn_like(layer.weight))
        layer(x)
        vectors.append(layer.norms[0].v.clone())
    same = [torch.equal(a, b) for a, b in zip(vectors[:-1], vectors[1:], strict=True)]
    assert same == [True, True, False, True]


def test_refusals():
    with pytest.raises(GeometryError, match="odd"):
        SOC(3, 3, 4)
    with pytest.raises(GeometryError, match="padding"):
        SOC(3, 3, 3, padding=0)
    with pytest.raises(ParameterError, match="padding_mode"):
        SOC(3, 3, padding_mode="reflect")
    with pytest.raises(ParameterError, match="correction"):
        SOC(3, 3, correction=0)
    with pytest.raises(ParameterError, match="eval_terms"):
        SOC(3, 3, eval_terms=0)
