"""Blocks with an inner activation over the grid of geometries, by the norms of their Jacobians."""

import itertools
import random
import warnings

import pytest
import torch

from orthogonium.errors import GuaranteeWarning
from orthogonium.layers.conv import cpl, sandwich, sll
from tests.jacobians import largest_norm

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
MODES = ("zeros", "circular")
SIZES = {1: (13,), 2: (5, 6), 3: (3, 2, 3)}  # odd ones, too, which no stride divides
ACTIVATIONS = ("relu", "leaky_relu", "tanh", "softplus")
CHUNKS = 6


def residual_blocks():
    """(constructor, arguments, channels) of blocks that keep the size of the image."""
    channels = [(3, 1), (4, 2), (3, 3)]
    kernels = [1, 2, 3, 4, (3, 2), (1, 3)]
    for (c, g), k, d, mode in itertools.product(channels, kernels, (1, 2), MODES):
        common = {"kernel_size": k, "dilation": d, "groups": g, "padding_mode": mode}
        yield sll.SDPBasedLipschitzResBlock, {"cin": c, "inner_dim_factor": 2, **common}, c
        yield sll.AOCLipschitzResBlock, {"in_channels": c, "inner_dim_factor": 1 + (k == 2), **common}, c
        yield cpl.CPLConv2d, {"channels": c, "inner_channels": 2 * c if k == 3 else c, **common}, c


def changing_blocks():
    """Blocks with stride and change of channels."""
    channels = [(2, 5, 1), (4, 2, 2), (2, 2, 2), (1, 8, 1)]
    kernels, strides = [1, 2, 3, 4, (3, 2)], [1, 2, 3, (2, 1)]
    for (ci, co, g), k, s, mode in itertools.product(channels, kernels, strides, MODES):
        common = {"kernel_size": k, "stride": s, "groups": g, "padding_mode": mode}
        dilation = 2 if k == 2 else 1
        arguments = {"cin": ci, "cout": co, "inner_dim_factor": 2, "dilation": dilation, **common}
        yield sll.SLLxAOCLipschitzResBlock, arguments, ci
        yield (
            sandwich.SandwichConv2d,
            {"in_channels": ci, "out_channels": co, "dilation": dilation if s == 1 else 1, **common},
            ci,
        )


def other_dimensions():
    for mode in MODES:
        options = {"padding_mode": mode}
        for d, family in ((1, "1d"), (3, "3d")):
            yield getattr(sll, f"SDPBasedLipschitzResBlock{family}"), {"cin": 2, "inner_dim_factor": 2, **options}, 2
            arguments = {"in_channels": 2, "inner_dim_factor": 1, "kernel_size": 2, **options}
            yield getattr(sll, f"AOCLipschitzResBlock{family}"), arguments, 2
            arguments = {"cin": 2, "cout": 3, "inner_dim_factor": 1, "stride": d, **options}
            yield getattr(sll, f"SLLxAOCLipschitzResBlock{family}"), arguments, 2
            arguments = {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "stride": 2, **options}
            yield getattr(sandwich, f"SandwichConv{family}"), arguments, 2
            yield getattr(cpl, f"CPLConv{family}"), {"channels": 2, "kernel_size": 2, "niter": 2, **options}, 2


CONFIGURATIONS = [*residual_blocks(), *changing_blocks()]
random.Random(0).shuffle(CONFIGURATIONS)
CONFIGURATIONS = CONFIGURATIONS[::4] + list(other_dimensions())


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_one_lipschitz_whatever_the_geometry(chunk):
    for index, (cls, arguments, channels) in enumerate(CONFIGURATIONS[chunk::CHUNKS]):
        dtype = (torch.float32, torch.float64)[index % 2]
        activation = ACTIVATIONS[(index // 2) % len(ACTIVATIONS)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)
            layer = cls(**arguments, activation=activation, dtype=dtype)
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(0.3 * torch.randn_like(p))
        norm = largest_norm(layer, torch.randn(2, channels, *SIZES[cls.dims], dtype=dtype))
        assert 0.05 < norm <= 1 + TOLERANCE[dtype], (cls, arguments, activation)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 7)])
def test_images_smaller_than_the_kernel(mode, size):
    options = {"padding_mode": mode, "dtype": torch.float64}
    for layer in (
        sll.SDPBasedLipschitzResBlock(2, 2, 5, **options),
        sll.SLLxAOCLipschitzResBlock(2, 3, 2, 4, 2, **options),
        sandwich.SandwichConv2d(2, 3, 5, 2, **options),
        cpl.CPLConv2d(2, 3, 4, **options),
    ):
        x = torch.randn(2, 2, *size, dtype=torch.float64)
        assert largest_norm(layer, x) <= 1 + 1e-11
        expected = [-(-n // s) for n, s in zip(size, layer.stride, strict=True)]
        assert list(layer(x).shape[2:]) == expected
        assert torch.allclose(layer(x)[0], layer(x[0]))  # an image without batch
