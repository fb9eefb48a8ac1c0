"""Adaptive SOC over a grid of geometries, by SVD of the operator."""

import itertools
import math
import random
from functools import partial

import pytest
import torch
from torch import nn

from orthogonium.errors import GeometryError, GuaranteeWarning, ParameterError
from orthogonium.layers.conv import soc
from orthogonium.linalg import CAYLEY_ORTHO_PARAMS, BatchedQROrthogonalization, OrthoParams
from tests.layers.conv.test_aoc_grid import feasible
from tests.oracle import operator, singular_values

CONV = {1: soc.AdaptiveSOCConv1d, 2: soc.AdaptiveSOCConv2d, 3: soc.AdaptiveSOCConv3d}
TRANSPOSE = {
    1: soc.AdaptiveSOCConvTranspose1d,
    2: soc.AdaptiveSOCConvTranspose2d,
    3: soc.AdaptiveSOCConvTranspose3d,
}
# What the truncated exponential loses at most, from the eigenvalue ±i of a skew operator of norm 1.
GAP = {3: 2.82e-2, 4: 6.2e-3, 7: 1.6e-5, 8: 2.3e-6, 11: 1.3e-9, 12: 1.4e-10}
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-12}
CHUNKS = 8


def grid():
    """Channels, groups, kernel, stride, dilation."""
    lines = list(itertools.product((1, 2, 4), (1, 2, 3, 8), (1, 2), (1, 2, 3, 4, 5), (1, 2, 3), (1, 2)))
    for ci, co, g, k, s, d in random.Random(0).sample(lines, 150):
        yield ci * g, co * g, g, (k,), (s,), (d,)
    planes = list(
        itertools.product(
            [(2, 2, 1), (4, 2, 1), (2, 5, 1), (3, 3, 3), (4, 8, 2), (1, 9, 1)],
            [(1, 1), (2, 2), (3, 3), (3, 1), (4, 3)],
            [(1, 1), (2, 2), (2, 1)],
            [(1, 1), (2, 1)],
        )
    )
    for (ci, co, g), k, s, d in random.Random(1).sample(planes, 70):
        yield ci, co, g, k, s, d
    for (ci, co, g), k, s in itertools.product(
        [(1, 1, 1), (2, 1, 1), (2, 4, 2)], [(1, 3, 3), (2, 2, 2)], [(1,) * 3, (2,) * 3]
    ):
        yield ci, co, g, k, s, (1, 1, 1)


CONFIGURATIONS = list(grid())
random.Random(2).shuffle(CONFIGURATIONS)


def check(layer, channels, size, order, dtype, case):
    sigma = singular_values(layer, channels, *size)
    assert sigma[0] <= 1 + ROUNDING[dtype], case
    assert sigma[-1] >= 1 - GAP[order] - 2 * ROUNDING[dtype], case


@pytest.mark.filterwarnings("ignore::orthogonium.errors.GuaranteeWarning")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nearly_orthogonal_wherever_possible(chunk):
    for index, (ci, co, g, k, s, d) in enumerate(CONFIGURATIONS[chunk::CHUNKS]):
        case = (ci, co, g, k, s, d)
        dims = len(k)
        order = (4, 3, 8)[index % 3] if dims < 3 else 3
        dtype = torch.float64 if index % 2 else torch.float32
        options = {"stride": s, "dilation": d, "groups": g, "dtype": dtype, "order": order, "niter": index % 2}
        if not feasible(ci, co, g, k, s, d):
            with pytest.raises(GeometryError, match="kernel"):
                CONV[dims](ci, co, k, **options)
            continue
        size = [b * math.ceil((7 if dims == 1 else 4) / b) for b in s]
        check(CONV[dims](ci, co, k, **options), ci, size, order, dtype, case)
        if index % 3 == 0:
            transpose = TRANSPOSE[dims](co, ci, k, padding="same", padding_mode="circular", **options)
            check(transpose, co, [n // b for n, b in zip(size, s, strict=True)], order, dtype, case)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("order", GAP)
def test_every_order_before_and_after_training(order, dtype):
    for ci, co, g, s in [(3, 3, 1, 1), (3, 3, 3, 1), (2, 8, 2, 2)]:
        conv = soc.AdaptiveSOCConv2d(ci, co, 3, s, groups=g, bias=False, dtype=dtype, order=order, niter=2)
        check(conv, ci, (6, 6), order, dtype, (ci, co, g, s))
        optimizer = torch.optim.Adam(conv.parameters(), lr=0.3)
        target = torch.randn_like(conv.weight)
        start = conv.weight.detach().clone()
        for _ in range(10):
            optimizer.zero_grad()
            (conv.weight * target).sum().backward()
            optimizer.step()
        assert (conv.weight - start).norm() > 0.1 * start.norm()
        check(conv, ci, (6, 6), order, dtype, (ci, co, g, s))


def test_zero_padding_does_not_expand():
    for stride, padding in [(1, "same"), (2, "same"), (1, 3), (2, 5), (1, "valid")]:
        conv = soc.AdaptiveSOCConv1d(3, 3, 3, stride, padding, padding_mode="zeros", bias=False)
        assert singular_values(conv, 3, 12)[0] <= 1 + 1e-6
    transpose = soc.AdaptiveSOCConvTranspose1d(3, 3, 3, 2, padding=4, output_padding=1)
    assert singular_values(transpose, 3, 12)[0] <= 1 + 1e-6


def test_any_image_size():
    """Strides that do not divide the image, and images smaller than the grown kernel."""
    conv = soc.AdaptiveSOCConv2d(2, 4, 3, stride=2, bias=False)
    for size in [(1, 1), (5, 4), (7, 3)]:
        assert singular_values(conv, 2, *size)[0] <= 1 + 1e-6


@pytest.mark.parametrize("kernel,stride,skew,grown", [(3, 1, 3, 9), (5, 1, 5, 17), (1, 1, 1, 1), (2, 1, 3, 9)])
def test_sizes_at_stride_one(kernel, stride, skew, grown):
    conv = soc.AdaptiveSOCConv2d(4, 4, kernel, stride)
    assert conv.skew_kernel_size == (skew, skew)
    assert conv.kernel_size == conv.geometry.kernel_size == tuple(conv.weight.shape[2:]) == (grown, grown)


@pytest.mark.parametrize("kernel,stride,skew,grown", [(3, 2, 3, 10), (4, 2, 3, 10), (2, 2, 1, 2), (5, 3, 3, 11)])
def test_sizes_with_stride(kernel, stride, skew, grown):
    conv = soc.AdaptiveSOCConv1d(2, 3, kernel, stride)
    assert conv.skew_kernel_size == (skew,) and conv.kernel_size == (grown,)
    assert conv.weight.shape == (3, 2, grown)


@pytest.mark.parametrize("stride", [1, 2])
def test_same_keeps_the_image(stride):
    for mode in ("circular", "zeros"):
        conv = soc.AdaptiveSOCConv2d(3, 3, 3, stride, padding="same", padding_mode=mode, order=3)
        assert conv(torch.randn(1, 3, 16, 16)).shape[-2:] == (16 // stride, 16 // stride)


def test_transpose_is_the_adjoint():
    conv = soc.AdaptiveSOCConv1d(3, 4, 3, stride=2, bias=False)
    transpose = soc.AdaptiveSOCConvTranspose1d(4, 3, 3, stride=2, padding="same", padding_mode="circular", bias=False)
    transpose.load_state_dict(conv.state_dict())
    torch.testing.assert_close(operator(conv, 3, 8), operator(transpose, 4, 4).T)


class _Recorded(nn.Module):
    calls: list = []

    def __init__(self, weight_shape, tag):
        super().__init__()
        self.orthogonalize, self.tag = BatchedQROrthogonalization(weight_shape), tag

    def forward(self, w):
        self.calls.append(self.tag)
        return self.orthogonalize(w)


def test_ortho_params_are_used():
    params = OrthoParams(orthogonalizer=partial(_Recorded, tag="mine"))
    conv = soc.AdaptiveSOCConv2d(3, 3, 3, stride=2, ortho_params=params)
    assert conv.weight is not None and "mine" in _Recorded.calls
    conv = soc.AdaptiveSOCConv2d(3, 12, 2, stride=2, ortho_params=CAYLEY_ORTHO_PARAMS)
    assert (singular_values(conv, 3, 4, 4) - 1).abs().max() < 1e-2


def test_statements_and_refusals():
    conv = soc.AdaptiveSOCConv2d(2, 2, 3)
    assert conv.guarantee.kind == "lipschitz" and "6.1e-03" in str(conv.guarantee)
    for order in (0, 1, 2, 5, 6, 9, 10, 13, 4.0001):
        with pytest.raises(ParameterError, match="order"):
            soc.AdaptiveSOCConv2d(2, 2, 3, order=order)
    with pytest.raises(ParameterError, match="niter"):
        soc.AdaptiveSOCConv2d(2, 2, 3, niter=-1)
    with pytest.raises(TypeError, match="terms"):
        soc.AdaptiveSOCConv2d(2, 2, 3, terms=4)
    with pytest.warns(GuaranteeWarning, match="shift"):
        soc.AdaptiveSOCConv2d(2, 2, 1, groups=2)
