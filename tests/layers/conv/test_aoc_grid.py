"""Adaptive orthogonal convolutions over the grid of geometries, by SVD of the operator.

Which geometries must be accepted is decided by another argument than the library's: an orthogonal operator has full
rank, and a random kernel has the largest rank that its geometry allows. So a geometry is feasible iff the circular
convolution with a random kernel has full rank.
"""

import itertools
import math
import random
import warnings

import pytest
import torch

from orthogonium.errors import GeometryError, GuaranteeWarning
from orthogonium.kernels import ConvGeometry, select_method
from orthogonium.layers.conv.aoc import (
    AdaptiveOrthoConv1d,
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConv3d,
    AdaptiveOrthoConvTranspose1d,
    AdaptiveOrthoConvTranspose2d,
    AdaptiveOrthoConvTranspose3d,
)
from tests.oracle import plain_conv, singular_values

CONV = {1: AdaptiveOrthoConv1d, 2: AdaptiveOrthoConv2d, 3: AdaptiveOrthoConv3d}
TRANSPOSE = {1: AdaptiveOrthoConvTranspose1d, 2: AdaptiveOrthoConvTranspose2d, 3: AdaptiveOrthoConvTranspose3d}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
CHUNKS = 24


def image_size(kernel, stride, dilation):
    """A multiple of the stride that the kernel does not wrap around."""
    axes = zip(kernel, stride, dilation, strict=True)
    return tuple(s * -(-max(d * (k - 1) + 1, s) // s) for k, s, d in axes)


def grid():
    """Channels, groups, kernel, stride, dilation of small convolutions in one, two and three dimensions."""
    for ci, co, g in itertools.product((1, 2, 3, 4), (1, 2, 3, 5, 8), (1, 2)):
        for k, s, d in itertools.product((1, 2, 3, 4, 5), (1, 2, 3, 4), (1, 2, 3)):
            yield ci * g, co * g, g, (k,), (s,), (d,)
    for ci, co, g in [
        (2, 2, 1),
        (3, 3, 1),
        (4, 2, 1),
        (2, 5, 1),
        (1, 4, 1),
        (4, 24, 4),
        (6, 4, 2),
        (2, 9, 1),
        (3, 1, 1),
    ]:
        kernels = [(1, 1), (2, 2), (3, 3), (3, 1), (2, 3), (4, 4)]
        for k, s, d in itertools.product(kernels, [(1, 1), (2, 2), (2, 1), (3, 3)], [(1, 1), (2, 2), (1, 2)]):
            if math.prod(image_size(k, s, d)) <= 81:
                yield ci, co, g, k, s, d
    for ci, co, g in [(1, 2, 1), (2, 1, 1), (2, 2, 1), (2, 4, 2), (1, 9, 1)]:
        kernels = [(1, 1, 1), (2, 2, 2), (3, 3, 3), (1, 2, 3), (2, 1, 1)]
        for k, s in itertools.product(kernels, [(1, 1, 1), (2, 2, 2), (1, 2, 1)]):
            yield ci, co, g, k, s, (1, 1, 1)


CONFIGURATIONS = list(grid())
random.Random(0).shuffle(CONFIGURATIONS)


def feasible(ci, co, g, k, s, d):
    """Full rank of a random circular convolution, window by window and without any kernel algebra of ours."""
    size = image_size(k, s, d)
    dims = len(k)
    conv = plain_conv(dims)(ci, co, k, s, 0, d, g, bias=False, dtype=torch.float64)

    def circular(x):
        for axis, (a, b, c) in enumerate(zip(k, s, d, strict=True)):
            dim = axis + 2
            x = torch.cat([x, x.narrow(dim, 0, max(c * (a - 1) + 1 - b, 0))], dim)
        return conv(x)

    inputs = ci * math.prod(size)
    with torch.no_grad():
        matrix = circular(torch.eye(inputs, dtype=torch.float64).view(inputs, ci, *size)).flatten(1)
    return torch.linalg.matrix_rank(matrix).item() == min(matrix.shape)


def test_the_grid_is_large():
    accepted = 0
    for ci, co, g, k, s, d in CONFIGURATIONS:
        try:
            select_method(ConvGeometry.of(len(k), ci, co, k, s, d, g))
        except GeometryError:
            continue
        accepted += 1
    assert accepted >= 1500 and len(CONFIGURATIONS) - accepted >= 300


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_orthogonal_wherever_possible(chunk):
    for index, (ci, co, g, k, s, d) in enumerate(CONFIGURATIONS[chunk::CHUNKS]):
        dtype = torch.float64 if index % 4 == 0 else torch.float32
        options = {"stride": s, "dilation": d, "groups": g, "dtype": dtype}
        case = (ci, co, g, k, s, d)
        size = image_size(k, s, d)
        if not feasible(ci, co, g, k, s, d):
            with pytest.raises(GeometryError, match="kernel"):
                CONV[len(k)](ci, co, k, **options)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)
            conv = CONV[len(k)](ci, co, k, **options)
        sigma = singular_values(conv, ci, *size)
        assert (sigma - 1).abs().max() <= TOLERANCE[dtype], case
        if index % 3 == 0:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GuaranteeWarning)
                transpose = TRANSPOSE[len(k)](co, ci, k, padding="same", padding_mode="circular", **options)
            sigma = singular_values(transpose, co, *(n // t for n, t in zip(size, s, strict=True)))
            assert (sigma - 1).abs().max() <= TOLERANCE[dtype], case


OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=3.0, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=0.3),
    lambda p: torch.optim.AdamW(p, lr=0.3, weight_decay=0.3),
    lambda p: torch.optim.SGD(p, lr=3.0, momentum=0.9, weight_decay=1e-2),
]


@pytest.mark.parametrize("chunk", range(8))
def test_orthogonal_after_training(chunk):
    """Fifty steps, large enough to move the raw parameters by more than their norm."""
    moved_far = total = 0
    for index, (ci, co, g, k, s, d) in enumerate(CONFIGURATIONS[chunk : 8 * 40 : 8]):
        try:
            plan = select_method(ConvGeometry.of(len(k), ci, co, k, s, d, g))
        except GeometryError:
            continue
        dtype = torch.float64 if index % 2 else torch.float32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)
            conv = CONV[len(k)](ci, co, k, stride=s, dilation=d, groups=g, bias=False, dtype=dtype)
        raw = [p for p in conv.parameters() if p.numel()]
        if not raw:
            continue
        start = [p.detach().clone() for p in raw]
        optimizer = OPTIMIZERS[index % len(OPTIMIZERS)](raw)
        target = torch.randn_like(conv.weight)
        for _ in range(50):
            optimizer.zero_grad()
            (conv.weight * target).sum().backward()
            optimizer.step()
        sigma = singular_values(conv, ci, *image_size(k, s, d))
        assert (sigma - 1).abs().max() <= TOLERANCE[dtype], (ci, co, g, k, s, d, plan)
        total += 1
        moved_far += any((p - q).norm() > q.norm() for p, q in zip(raw, start, strict=True))
    assert moved_far >= total // 2 >= 8
