"""SLL and SLL-AOC: what the fused kernels are, agreement with the block as published, arguments."""

import inspect
import itertools
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium.errors import GeometryError, GuaranteeWarning, ParameterError, ShapeError
from orthogonium.layers.conv import SLL, sll
from orthogonium.layers.conv.aoc import AdaptiveOrthoConv2d
from orthogonium.layers.conv.execution import convolve
from orthogonium.legacy import SDPBasedLipschitzConvLayer
from orthogonium.linalg import QR_ORTHO_PARAMS
from tests.jacobians import ascend, jacobian_norm, jacobians


def plain_convolution(layer, weight):
    """The convolution with the border of `layer`, and a weight of its own."""
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.zero_()
    return layer


@pytest.mark.parametrize("ci, co, g", [(3, 4, 1), (4, 2, 2), (2, 12, 2), (2, 2, 2)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_fused_is_unfused(ci, co, g, dilation):
    """Three modules in series, built from the parts of the constraint, against the block with composed kernels."""
    options = {"groups": g, "dilation": dilation, "dtype": torch.float64}
    for k, s, a in itertools.product([1, 2, 3, 4, (3, 2)], [1, 2, 3, (2, 1)], ["relu", "tanh"]):
        fused = sll.SLLxAOCLipschitzResBlock(ci, co, 2, k, s, activation=a, **options)
        constraint = fused.parametrizations.weight[0].kernel
        raw = list(fused.parametrizations.weight.parameters())
        with torch.no_grad():
            raw[-1].normal_()
        outside = []
        for part in (constraint.pre, constraint.post):
            if part is None:
                outside.append(nn.Identity())
                continue
            count = len(part.raw_shapes) * part.trainable
            values, raw = raw[:count] or [torch.empty(shape).double() for shape in part.raw_shapes], raw[count:]
            geometry = part.geometry
            with warnings.catch_warnings():  # a constant K_post
                warnings.simplefilter("ignore", GuaranteeWarning)
                layer = AdaptiveOrthoConv2d(
                    geometry.in_channels, geometry.out_channels, geometry.kernel_size, geometry.stride, **options
                )
            outside.append(plain_convolution(layer, part.build(*values)))
        core = constraint.residual.geometry
        middle = sll.SDPBasedLipschitzResBlock(
            core.in_channels,
            core.out_channels / core.in_channels,
            core.kernel_size,
            activation=a,
            padding_mode="circular",
            **options,
        )
        with torch.no_grad():
            for p, q in zip(middle.parametrizations.weight.parameters(), raw, strict=True):
                p.copy_(q)
            middle.bias.copy_(fused.bias)
        x = torch.randn(2, ci, 12, 6, dtype=torch.float64)  # every stride divides it
        expected = outside[1](middle(outside[0](x)))
        torch.testing.assert_close(fused(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("branch", [0, 1, 2])
def test_one_pixel_off_would_expand(branch):
    """The alignment of the three convolutions matters, and the Jacobian sees it."""
    block = sll.SLLxAOCLipschitzResBlock(3, 4, 2, dtype=torch.float64)
    x = torch.randn(4, 3, 6, 6).double()
    assert jacobian_norm(block, ascend(block, x)) <= 1 + 1e-11
    wrong = block.borders[branch]
    moved = replace(wrong, left=tuple(v + 1 for v in wrong.left), right=tuple(v - 1 for v in wrong.right))
    block.borders = (*block.borders[:branch], moved, *block.borders[branch + 1 :])
    assert jacobian_norm(block, ascend(block, x)) > 1.05


def test_two_by_two_factors_make_three_by_three_kernels():
    block = sll.SLLxAOCLipschitzResBlock(4, 8, 2)
    assert block.packing.shapes == ((8, 4, 3, 3), (8, 8, 3, 3), (8, 4, 3, 3))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_sll_is_the_published_block(k):
    block, original = sll.SDPBasedLipschitzResBlock(3, 2, k), SDPBasedLipschitzConvLayer(3, 6, k, 1e-12)
    block, original = block.double(), original.double()
    weight, q = block.parametrizations.weight.original0, block.parametrizations.weight.original1
    with torch.no_grad():
        q.normal_()
        original.weight.copy_(weight)
        original.q.copy_(q.exp())
        original.bias.copy_(block.bias)
    x = torch.randn(2, 3, 6, 5).double()
    torch.testing.assert_close(block(x), original(x), rtol=1e-9, atol=1e-9)


def test_depthwise_blocks_have_no_empty_parameters():
    block = sll.SLLxAOCLipschitzResBlock(4, 4, 2, stride=1, groups=4)
    assert all(p.numel() for p in block.parameters()) and len(list(block.parameters())) == 3


def test_groups_are_blocks_side_by_side():
    block = sll.SDPBasedLipschitzResBlock(4, 2, 3, groups=2, dtype=torch.float64)
    halves = [sll.SDPBasedLipschitzResBlock(2, 2, 3, dtype=torch.float64) for _ in range(2)]
    for i, half in enumerate(halves):
        with torch.no_grad():
            for p, q in zip(half.parameters(), block.parameters(), strict=True):
                p.copy_(q.chunk(2)[i])
    x = torch.randn(2, 4, 5, 5).double()
    expected = torch.cat([half(part) for half, part in zip(halves, x.chunk(2, 1), strict=True)], 1)
    torch.testing.assert_close(block(x), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_arguments_are_used(mode):
    """A block is what its formula says, with torch's own convolutions."""
    for k, d, g in [(3, 2, 1), (5, 1, 2), (3, 1, 4)]:
        block = sll.AOCLipschitzResBlock(4, 2, k, d, g, padding_mode=mode, activation="softplus", dtype=torch.float64)
        kernel = block.packing.unpack(block.weight)[0]
        x = torch.randn(2, 4, 12, 12).double()
        pad = d * (k - 1) // 2
        image = F.pad(x, [pad] * 4, mode="circular") if mode == "circular" else F.pad(x, [pad] * 4)
        inner = F.softplus(F.conv2d(image, kernel, block.bias, dilation=d, groups=g))
        zero = torch.zeros_like(x, requires_grad=True)
        image = F.pad(zero, [pad] * 4, mode="circular") if mode == "circular" else F.pad(zero, [pad] * 4)
        (transposed,) = torch.autograd.grad(F.conv2d(image, kernel, dilation=d, groups=g), zero, inner)
        torch.testing.assert_close(block(x), x - 2 * transposed, rtol=1e-11, atol=1e-11)


def test_orthogonal_block_reflects():
    """With all units open the block is x − 2KᵀKx = −x up to a constant."""
    block = sll.AOCLipschitzResBlock(3, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        block.bias.fill_(1e3)
    j = jacobians(block, torch.randn(1, 3, 5, 5).double())[0]
    torch.testing.assert_close(j, -torch.eye(75).double(), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "make", [sll.SDPBasedLipschitzResBlock, sll.AOCLipschitzResBlock, sll.SLLxAOCLipschitzResBlock]
)
def test_trained_toy_uses_the_bound(make):
    """Trained away from the skip connection, the residual branch comes near to reflecting."""
    layer = make(3, 2, kernel_size=3) if make is not sll.SLLxAOCLipschitzResBlock else make(3, 6, 2, stride=2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    x, y = torch.randn(2, 8, 3, 4, 4)

    def skip(difference):
        kernels = layer.packing.unpack(layer.weight)
        if len(kernels) == 2:
            return difference
        return convolve(difference, kernels[2], None, layer.borders[2], layer.dilation, layer.groups)

    for _ in range(60):
        optimizer.zero_grad()
        branch = layer(x) - layer(y) - skip(x - y)
        (-branch.flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)).mean().backward()
        optimizer.step()
    layer.eval().requires_grad_(False)
    points = torch.cat([x, ascend(layer, x)])
    assert 0.9 <= jacobian_norm(layer, points) <= 1 + 1e-5
    assert jacobian_norm(lambda z: layer(z) - skip(z), points) >= 1.8


def test_published_names_and_signatures():
    assert sll.SDPBasedLipschitzConv is sll.SDPBasedLipschitzResBlock
    published = {
        "SDPBasedLipschitzResBlock": ["cin", "inner_dim_factor", "kernel_size", "groups"],
        "SDPBasedLipschitzDense": ["in_features", "out_features", "inner_dim"],
        "SLLxAOCLipschitzResBlock": ["cin", "cout", "inner_dim_factor", "kernel_size", "stride", "groups"],
        "AOCLipschitzResBlock": [
            "in_channels",
            "inner_dim_factor",
            "kernel_size",
            "dilation",
            "groups",
            "bias",
            "padding_mode",
            "ortho_params",
        ],
    }
    for name, arguments in published.items():
        ours = list(inspect.signature(getattr(SLL, name)).parameters)
        assert ours[: len(arguments)] == arguments


def test_inner_channels():
    assert sll.SDPBasedLipschitzResBlock(100, 0.29).packing.shapes[0][0] == 29  # 100 · 0.29 < 29 in floating point
    for factor in (0, -1, float("nan"), float("inf")):
        with pytest.raises(GeometryError, match="inner_dim_factor"):
            sll.SDPBasedLipschitzResBlock(4, factor)


def test_refusals():
    with pytest.raises(GeometryError, match="inner_dim_factor"):
        sll.SDPBasedLipschitzResBlock(4, 0.1)
    with pytest.raises(GeometryError, match="groups=4"):
        sll.SDPBasedLipschitzResBlock(4, 1.5, groups=4)
    with pytest.raises(GeometryError, match="padding_mode"):
        sll.SDPBasedLipschitzResBlock(4, 1, padding_mode="reflect")
    with pytest.raises(GeometryError, match="kernel_size"):
        sll.SLLxAOCLipschitzResBlock(4, 4, 1, kernel_size=0)
    with pytest.raises(GeometryError, match="out_channels"):
        sll.SLLxAOCLipschitzResBlock(4, 5, 1, groups=2)
    with pytest.raises(ParameterError, match="GELU"):
        sll.AOCLipschitzResBlock(4, 1, 3, activation=nn.GELU())
    with pytest.raises(ParameterError, match="niter"):
        sll.SLLxAOCLipschitzResBlock(4, 4, 1, niter=0)
    with pytest.raises(ShapeError, match="4"):
        sll.SDPBasedLipschitzResBlock(4, 1)(torch.randn(1, 3, 5, 5))
    with pytest.raises(TypeError):
        sll.SDPBasedLipschitzResBlock(4, 1, kernelsize=3)
    with pytest.warns(GuaranteeWarning, match="one channel per group"):
        sll.AOCLipschitzResBlock(4, 1, 3, groups=4)


def test_ortho_params_are_used():
    torch.manual_seed(0)
    default = sll.AOCLipschitzResBlock(4, 2, 3)
    torch.manual_seed(0)
    other = sll.AOCLipschitzResBlock(4, 2, 3, ortho_params=QR_ORTHO_PARAMS)
    own, given = (type(b.parametrizations.weight[0].kernel.orthogonal.orthonormalize) for b in (default, other))
    assert own is not given and given is type(QR_ORTHO_PARAMS.build((1, 2, 4)))
