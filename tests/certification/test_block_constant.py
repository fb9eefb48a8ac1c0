"""Bounds of blocks from their kernels: sound for whatever the kernels are, 1 for those that are as they were built.

The judge is the block itself: its forward with the activation replaced by a fixed diagonal D, as a matrix from impulse
responses, for D that ascend its norm.
"""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from orthogonium.certification.block_constant import block_constant
from orthogonium.certification.block_kernels import NoBoundError
from orthogonium.errors import GuaranteeWarning
from orthogonium.layers import freeze
from orthogonium.layers.conv import cpl, sll
from orthogonium.layers.conv.sandwich import SandwichConv1d, SandwichConv2d, SandwichConv3d
from orthogonium.layers.cpl import CPLLinear
from orthogonium.layers.sandwich import SandwichLinear
from orthogonium.layers.sll import SDPBasedLipschitzDense
from tests.contracts.blocks import BLOCKS
from tests.oracle import operator

SIZES = {1: (7,), 2: (4, 5), 3: (3, 2, 2)}
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
UNIT = (0.0, 1.0)


class Slopes(nn.Module):
    """Multiplies by a diagonal, which is made on the first call: the largest slope at so many of the places."""

    def __init__(self, low, high, share):
        super().__init__()
        self.low, self.high, self.share, self.diagonal = low, high, share, None

    def forward(self, x):
        if self.diagonal is None:
            self.diagonal = torch.where(torch.rand_like(x[0]) < self.share, self.high, self.low).to(x)
        return x * self.diagonal


def steepest(block, shape, slopes=UNIT, steps=3):
    """The largest norm of `S + CDA` found, D at a vertex: the norm is convex in D, so that each step ascends."""
    block = freeze(block).double().requires_grad_(False)
    best = 0.0
    for share in (1.0, 0.5):
        block.activation = Slopes(*slopes, share)
        for _ in range(steps):
            u, s, vh = torch.linalg.svd(operator(Affine(block), *shape))
            best = max(best, s[0].item())
            diagonal = block.activation.diagonal.clone().requires_grad_()
            block.activation.diagonal = diagonal
            v = vh[0].view(1, *shape)
            (u[:, 0] @ (block(v) - block(torch.zeros_like(v))).flatten()).backward()
            block.activation.diagonal = torch.where(diagonal.grad > 0, slopes[1], slopes[0]).double()
    return best


class Affine(nn.Module):
    """In float64, for the oracle, which asks parameters for their dtype."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(x)


def shape_of(block):
    return (block.in_channels, *SIZES[block.dims]) if hasattr(block, "dims") else (block.in_features,)


def perturbed(block, scale=1.0):
    with torch.no_grad():
        for p in block.parameters():
            p.add_(scale * torch.randn_like(p))
    return block


def trained(block):
    """A few steps that move pairs of points apart."""
    optimizer = torch.optim.Adam(block.parameters(), lr=0.05)
    x, y = torch.randn(2, 4, *shape_of(block), dtype=block.weight.dtype)
    for _ in range(5):
        optimizer.zero_grad()
        (-(block(x) - block(y)).flatten(1).norm(dim=1)).mean().backward()
        optimizer.step()
    return block


def edited(block, generator):
    """Frozen, with some entries of the weight, or one of its kernels, multiplied."""
    block = freeze(block)
    with torch.no_grad():
        kernels = block.packing.unpack(block.weight)
        chosen = kernels[int(torch.randint(len(kernels), (1,), generator=generator))]
        kind = int(torch.randint(4, (1,), generator=generator))
        if kind == 0:
            chosen.mul_(4 * torch.rand((), generator=generator))
        elif kind == 1:
            chosen.mul_(torch.rand(chosen.shape, generator=generator, dtype=torch.float64).round())
        elif kind == 2:
            chosen[0].mul_(-3)
        else:
            chosen.add_(0.1 * torch.randn(chosen.shape, generator=generator, dtype=torch.float64))
    return block


@st.composite
def blocks(draw, dtype=torch.float64):
    """A block of any family and geometry."""
    family = draw(st.sampled_from(["SLL", "AOC", "CPL", "SLL-AOC", "Sandwich", "dense"]))
    torch.manual_seed(draw(st.integers(0, 10**6)))
    if family == "dense":
        p, q = draw(st.integers(1, 5)), draw(st.integers(1, 5))
        make = draw(st.sampled_from([SandwichLinear, CPLLinear, SDPBasedLipschitzDense]))
        return make(p, q, 6, dtype=dtype) if make is SDPBasedLipschitzDense else make(p, q, dtype=dtype)
    dims = draw(st.sampled_from([1, 2, 2, 3]))
    ci, co, groups = draw(st.sampled_from([(2, 3, 1), (4, 2, 2), (2, 2, 2), (1, 5, 1), (3, 3, 1)]))
    options = {
        "kernel_size": tuple(draw(st.integers(1, 4 if dims < 3 else 2)) for _ in range(dims)),
        "dilation": draw(st.sampled_from([1, 1, 2])),
        "groups": groups,
        "padding_mode": draw(st.sampled_from(["zeros", "circular"])),
        "dtype": dtype,
    }
    suffix = {1: "1d", 2: "", 3: "3d"}[dims]
    stride = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuaranteeWarning)
        if family == "SLL":
            make = getattr(sll, f"SDPBasedLipschitzResBlock{suffix}")
            return make(ci, draw(st.sampled_from([1, 2])), niter=draw(st.sampled_from([1, 3])), **options)
        if family == "AOC":
            return getattr(sll, f"AOCLipschitzResBlock{suffix}")(ci, draw(st.sampled_from([1, 2])), **options)
        if family == "CPL":
            return {1: cpl.CPLConv1d, 2: cpl.CPLConv2d, 3: cpl.CPLConv3d}[dims](ci, **options)
        if family == "SLL-AOC":
            return getattr(sll, f"SLLxAOCLipschitzResBlock{suffix}")(ci, co, 2, stride=stride, **options)
        options["dilation"] = 1 if max(stride) > 1 else options["dilation"]
        return {1: SandwichConv1d, 2: SandwichConv2d, 3: SandwichConv3d}[dims](ci, co, stride=stride, **options)


def fast(examples):
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )


def wider_middle(block):
    constraint = block.parametrizations.weight[0].kernel
    pre = getattr(constraint, "pre", None)
    return pre is not None and pre.geometry.out_channels > pre.geometry.in_channels


@given(st.data())
@fast(60)
def test_blocks_that_are_as_built_have_one(data):
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    block = data.draw(blocks(dtype))
    change = data.draw(st.sampled_from([lambda b: b, trained, perturbed]))
    block = change(block)
    bound = block_constant(block, shape_of(block), UNIT)
    assert bound.value <= 1 + TOLERANCE[dtype], bound
    if not wider_middle(block):
        assert block_constant(freeze(block), shape_of(block), UNIT).value <= 1 + TOLERANCE[dtype]
    assert bound.value >= steepest(block, shape_of(block)) * (1 - 1e-12)


@given(st.data())
@fast(60)
def test_other_kernels_are_bounded_as_what_they_are(data):
    block = perturbed(data.draw(blocks()), data.draw(st.sampled_from([0.0, 0.5])))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    slopes = data.draw(st.sampled_from([UNIT, (0.2, 1.0), (-0.13, 1.13), (-1.0, 1.0), (-1.0, -0.5), (0.0, 3.0)]))
    change = data.draw(st.sampled_from(["edited", "edited twice", "half", "slopes only"]))
    if change == "half":
        block = block.to(torch.bfloat16)
    for _ in range({"edited": 1, "edited twice": 2}.get(change, 0)):
        block = edited(block, generator)
    bound, true = block_constant(block, shape_of(block), slopes).value, steepest(block, shape_of(block), slopes)
    assert true * (1 - 1e-12) <= bound <= 60 * true + 1e-3


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_contract_blocks(name, dtype):
    block = BLOCKS[name].make(dtype=dtype)
    for state in (block, trained(block), freeze(block)):
        assert 0.9 < block_constant(state, shape_of(block), UNIT).value <= 1 + TOLERANCE[dtype]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", BLOCKS)
def test_numbers_that_are_none(name, bad):
    block = freeze(BLOCKS[name].make())
    with torch.no_grad():
        block.weight[-1] = bad
    with pytest.raises(NoBoundError, match="NaN"):
        block_constant(block, shape_of(block), UNIT)


def test_nan_parameters():
    block = cpl.CPLConv2d(3)
    with torch.no_grad():
        next(block.parametrizations.parameters()).fill_(float("nan"))
    with pytest.raises(NoBoundError, match="NaN"):
        block_constant(block, (3, 4, 4), UNIT)


@pytest.mark.parametrize("branch", [0, 1, 2])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_one_pixel_off(branch, mode):
    """The offsets count: the same kernels, read elsewhere, are another operator."""
    block = sll.SLLxAOCLipschitzResBlock(2, 3, 2, padding_mode=mode, dtype=torch.float64)
    wrong = block.borders[branch]
    moved = replace(wrong, left=tuple(v + 1 for v in wrong.left), right=tuple(v - 1 for v in wrong.right))
    block.borders = (*block.borders[:branch], moved, *block.borders[branch + 1 :])
    true = steepest(block, (2, 4, 6))
    assert 1.05 < true <= block_constant(block, (2, 4, 6), UNIT).value < 3.2


def test_convolutions_that_do_not_fit():
    block = sll.SDPBasedLipschitzResBlock(2, 2)
    first = block.borders[0]
    block.borders = (replace(first, left=(3, 3)), block.borders[1])
    with pytest.raises(NoBoundError, match="pixels"):
        block_constant(block, (2, 4, 4), UNIT)
    block = SandwichConv2d(2, 3, 3, 2)
    block.borders = (block.borders[0], replace(block.borders[1], left=(5, 5), right=(5, 5)))
    with pytest.raises(NoBoundError, match="repeat"):
        block_constant(block, (2, 4, 4), UNIT)
    for shape in [(3, 4, 4), (2, 4)]:
        with pytest.raises(NoBoundError, match="channels|axes"):
            block_constant(sll.SDPBasedLipschitzResBlock(2, 2), shape, UNIT)
    with pytest.raises(NoBoundError, match="channels"):
        block_constant(CPLLinear(3), (4,), UNIT)


@pytest.mark.parametrize("branches", [(0,), (0, 1)])
def test_padding_modes_that_are_not_known(branches):
    block = sll.SDPBasedLipschitzResBlock(2, 2)
    block.borders = tuple(replace(b, mode="reflect") if i in branches else b for i, b in enumerate(block.borders))
    with pytest.raises(NoBoundError, match="reflect"):
        block_constant(block, (2, 4, 4), UNIT)


@pytest.mark.parametrize("slopes", [(1.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_slopes_that_are_none(slopes):
    with pytest.raises(NoBoundError, match="Slopes"):
        block_constant(CPLLinear(3), (3,), slopes)


@pytest.mark.parametrize("exponent", [-180, 180])
def test_numbers_far_apart(exponent):
    """Inner channels may be scaled on one side and back on the other: the function is the same."""
    for block in (freeze(CPLLinear(3, 4).double()), freeze(SandwichLinear(3, 4).double())):
        with torch.no_grad():
            inner, outer = block.packing.unpack(block.weight)
            inner[0] *= 10.0**exponent
            outer[:, 0] *= 10.0**-exponent
        assert 0.9 < block_constant(block, (3,), UNIT).value <= 1 + 1e-9


def test_numbers_too_far_apart():
    block = freeze(CPLLinear(3, 4).double())
    with torch.no_grad():
        inner, outer = block.packing.unpack(block.weight)
        inner *= 1e300
        outer *= 1e300
    with pytest.raises(NoBoundError, match="too far apart|overflow"):
        block_constant(block, (3,), UNIT)


def test_silent_channels():
    """Rows of A and columns of C that meet only zeros contribute nothing, whatever their size."""
    for make in (lambda: CPLLinear(3, 5), lambda: SDPBasedLipschitzDense(3, 3, 5), lambda: SandwichLinear(3, 5)):
        block = freeze(make().double())
        with torch.no_grad():
            inner, outer = block.packing.unpack(block.weight)
            inner[0], inner[1], outer[:, 1] = 0, 1e6, 0
            outer[:, 0] = 1e6
        assert steepest(block, (3,)) <= block_constant(block, (3,), UNIT).value <= 1 + 1e-9
        with torch.no_grad():
            block.weight.zero_()
        zero = block_constant(block, (3,), UNIT).value
        assert zero < 1e-50 if isinstance(block, SandwichLinear) else 1 <= zero <= 1 + 1e-9


@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (1, 1)])
def test_scales_of_frozen_sandwiches(kernel, stride):
    """Ψ is found from the kernels alone, up to the largest it can be, e^±5."""
    block = SandwichConv2d(3, 6, kernel, stride, dtype=torch.float64)
    with torch.no_grad():
        list(block.parametrizations.parameters())[-1].copy_(torch.tensor([30.0, -30.0, 5.0, -2.0, 0.0, 1.0]))
    assert block_constant(freeze(block), (3, 4, 4), UNIT).value <= 1 + 1e-9


def test_factors_of_fused_blocks_are_hints_only():
    """K_pre widens here. With other kernels than those of its parametrization the block is bounded as what it is."""

    class Louder(nn.Module):
        def forward(self, weight):
            return 2 * weight

    block = sll.SLLxAOCLipschitzResBlock(1, 8, 2, kernel_size=1, dtype=torch.float64)
    assert wider_middle(block)
    assert block_constant(block, (1, 4, 4), UNIT).value <= 1 + 1e-9
    nn.utils.parametrize.register_parametrization(block, "weight", Louder(), unsafe=True)
    assert block_constant(block, (1, 4, 4), UNIT).value >= steepest(plain(block), (1, 4, 4)) > 1.9


def plain(block):
    """A copy with the weight that the block applies."""
    block = copy.deepcopy(block)
    nn.utils.parametrize.remove_parametrizations(block, "weight")
    return block


def test_edited_and_rounded_as_reported():
    """A frozen CPL layer with edited weights, blocks in bfloat16, GELU inside."""
    block = freeze(cpl.CPLConv2d(4, dtype=torch.float64))
    with torch.no_grad():
        block.weight.mul_(3)
    assert block_constant(block, (4, 5, 5), UNIT).value >= steepest(block, (4, 5, 5)) > 5
    half = sll.AOCLipschitzResBlock(8, 2, 3).to(torch.bfloat16)
    assert 1.2 > block_constant(half, (8, 4, 4), UNIT).value >= steepest(half, (8, 4, 4)) > 1 + 1e-4
    gelu = SDPBasedLipschitzDense(4, 4, 8, dtype=torch.float64)
    slopes = (-0.13, 1.13)
    assert 1.5 > block_constant(gelu, (4,), slopes).value >= steepest(gelu, (4,), slopes)


def test_image_size_plays_no_role():
    block = SandwichConv2d(2, 3, 3, 2)
    values = {block_constant(block, (2, *size), UNIT).value for size in [(1, 1), (4, 5), (224, 224)]}
    assert len(values) == 1
