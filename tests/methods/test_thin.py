"""Kernels with many more inputs than outputs: the kernels of AOC, from as many raw numbers as they have entries."""

import math

import pytest
import torch

from orthogonium.kernels import ConvGeometry
from orthogonium.layers import AdaptiveOrthoConv2d, AdaptiveOrthoConvTranspose2d
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, QR_ORTHO_PARAMS
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.batches import build_stacked, kind
from orthogonium.methods.thin import ThinKernel, is_thin
from tests.oracle import singular_values

THIN = [
    (2, 32, 3, 3, 1, 1),
    (2, 64, 8, 3, 1, 1),
    (2, 64, 2, 5, 1, 1),
    (2, 64, 4, 3, 1, 2),
    (2, 41, 2, (3, 5), 1, 1),
    (2, 40, 2, (1, 5), 1, 1),
    (1, 33, 3, 5, 1, 1),
    (3, 40, 2, 2, 1, 1),
    (3, 64, 1, (3, 1, 2), 1, 1),
]


def kernels(dims, *sizes):
    ci, co, k, s, groups = sizes
    geometry = ConvGeometry.of(dims, ci, co, k, s, groups=groups)
    return ThinKernel(geometry, DEFAULT_ORTHO_PARAMS), OrthogonalKernel(geometry, DEFAULT_ORTHO_PARAMS)


def built(kernel):
    return kernel.build(*kernel.initial("cpu", torch.float64))


@pytest.mark.parametrize("sizes", THIN)
def test_projectors_of_half_the_rank_reach_no_other_kernels(sizes):
    thin, half = kernels(*sizes)
    assert is_thin(thin.geometry)
    assert sum(math.prod(shape) for shape in thin.raw_shapes) == math.prod(thin.weight_shape)
    for source, target in ((half, thin), (thin, half)):
        weight = built(source)
        torch.testing.assert_close(target.build(*target.invert(weight)), weight, rtol=0, atol=1e-10)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 5, 7, (1, 3), (3, 5), (5, 3)])
@pytest.mark.parametrize("channels", [(512, 256), (512, 128), (512, 64), (512, 32), (512, 8), (48, 4), (20, 4)])
def test_no_more_than_two_numbers_for_each_weight(channels, kernel_size, groups):
    with torch.device("meta"):
        for layer in (
            AdaptiveOrthoConv2d(*channels, kernel_size, groups=groups, bias=False),
            AdaptiveOrthoConvTranspose2d(*channels[::-1], kernel_size, groups=groups, bias=False),
        ):
            assert sum(p.numel() for p in layer.parameters()) <= 2 * layer.weight.numel()


@pytest.mark.parametrize("channels", [512, 64, 8])
def test_strided_kernels(channels):
    with torch.device("meta"):
        for stride in (2, (2, 1), (1, 2)):
            layer = AdaptiveOrthoConv2d(512, channels, 3, stride, bias=False)
            assert sum(p.numel() for p in layer.parameters()) <= 2 * layer.weight.numel()


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("params", [DEFAULT_ORTHO_PARAMS, QR_ORTHO_PARAMS])
@pytest.mark.parametrize(
    "options", [{}, {"dilation": 2}, {"stride": 2}, {"groups": 2, "kernel_size": (2, 3)}, {"kernel_size": (1, 5)}]
)
def test_all_singular_values_are_1_also_after_steps(options, params, dtype, tolerance):
    sizes = {"in_channels": 40, "out_channels": 2, "kernel_size": 3, **options}
    layer = AdaptiveOrthoConv2d(**sizes, bias=False, ortho_params=params, dtype=dtype)
    assert isinstance(layer.parametrizations.weight[0].kernel, ThinKernel)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for step in range(3):
        sigma = singular_values(layer, 40, 6, 6)
        assert (sigma - 1).abs().max() <= tolerance, step
        optimizer.zero_grad()
        (layer(torch.randn(2, 40, 6, 6, dtype=dtype)) * torch.randn(2, 1, 1, dtype=dtype)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("sizes", [(2, 256, 2, 3, 1, 1), (2, 256, 2, 3, 2, 1)])
def test_random_kernels_begin_with_their_energy_in_the_middle(sizes):
    """Those of rank ⌊c/2⌋ have a quarter of it in the middle tap and 1/16 in a corner."""
    thin, half = kernels(*sizes)
    energies = []
    for kernel in (thin, half):
        energy = torch.stack([built(kernel).square().sum((0, 1)) for _ in range(160)]).mean(0)
        energies.append(energy / energy.sum())
    torch.testing.assert_close(*energies, rtol=0, atol=0.05)


def test_many_are_built_at_once():
    thin, _ = kernels(2, 32, 3, 3, 1, 1)
    other, _ = kernels(2, 32, 3, 3, 1, 1)
    assert kind(thin) is not None and kind(thin) == kind(other)
    raws = [thin.initial("cpu", torch.float64) for _ in range(3)]
    stacked = build_stacked(thin, *(torch.stack(raw) for raw in zip(*raws, strict=True)))
    torch.testing.assert_close(stacked, torch.stack([thin.build(*raw) for raw in raws]), rtol=0, atol=1e-13)
