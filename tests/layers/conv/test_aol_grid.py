"""AOL convolutions over a grid of geometries, by SVD of the operator: no parameters make any of them expand."""

import itertools
import random

import pytest
import torch

from orthogonium.errors import GeometryError, ParameterError
from orthogonium.layers.conv import aol
from tests.oracle import operator, singular_values

CONV = {1: aol.AOLConv1d, 2: aol.AOLConv2d, 3: aol.AOLConv3d}
TRANSPOSE = {1: aol.AOLConvTranspose1d, 2: aol.AOLConvTranspose2d, 3: aol.AOLConvTranspose3d}
LIMIT = 1 + 1e-6
CHUNKS = 8


def grid():
    """Channels, groups, kernel, stride, dilation."""
    lines = list(itertools.product((1, 2, 3), (1, 2, 5), (1, 2), (1, 2, 3, 4), (1, 2, 3), (1, 2)))
    for ci, co, g, k, s, d in random.Random(0).sample(lines, 150):
        yield ci * g, co * g, g, (k,), (s,), (d,)
    planes = [(1, 1), (2, 2), (3, 3), (3, 1), (2, 3)]
    for (ci, co, g), k, s, d in random.Random(1).sample(
        list(
            itertools.product(
                [(2, 2, 1), (4, 2, 1), (1, 5, 1), (3, 3, 3), (4, 8, 2)],
                planes,
                [(1, 1), (2, 2), (2, 1)],
                [(1, 1), (2, 1)],
            )
        ),
        70,
    ):
        yield ci, co, g, k, s, d
    for (ci, co, g), k, s in itertools.product(
        [(1, 2, 1), (2, 1, 1), (2, 4, 2)], [(1, 2, 3), (2, 2, 2)], [(1,) * 3, (2,) * 3]
    ):
        yield ci, co, g, k, s, (1, 1, 1)


CONFIGURATIONS = list(grid())
random.Random(2).shuffle(CONFIGURATIONS)


def draw(layer, scale=1.0):
    """Parameters without any structure that could help: normal kernel, normal q."""
    with torch.no_grad():
        for p in layer.parametrizations.parameters():
            p.normal_(0, scale)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_never_expands(chunk):
    for index, (ci, co, g, k, s, d) in enumerate(CONFIGURATIONS[chunk::CHUNKS]):
        case = (ci, co, g, k, s, d)
        dims = len(k)
        dtype = torch.float64 if index % 3 == 0 else torch.float32
        options = {"stride": s, "dilation": d, "groups": g, "dtype": dtype, "niter": 1 + index % 3}
        size = [max(c * (b - 1) + 1, 4 if dims < 3 else 3) + index % 2 for b, c in zip(k, d, strict=True)]
        border = {"padding": "same", "padding_mode": "circular"} if index % 2 else {"padding": tuple(a // 2 for a in k)}
        conv = CONV[dims](ci, co, k, **options, **border)
        assert singular_values(conv, ci, *size)[0] <= LIMIT, case
        draw(conv)
        assert singular_values(conv, ci, *size)[0] <= LIMIT, case
        if index % 2 == 0:
            transpose = TRANSPOSE[dims](co, ci, k, **options)
            draw(transpose)
            assert singular_values(transpose, co, *[3] * dims)[0] <= LIMIT, case


@pytest.mark.parametrize("niter", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_never_expands_in_training(niter, dtype):
    """Ascent on the norm itself, where the bound is tightest."""
    for ci, co, g, s in [(3, 3, 1, 1), (4, 4, 4, 1), (2, 6, 1, 2)]:
        conv = aol.AOLConv2d(
            ci, co, 3, s, "same", groups=g, bias=False, padding_mode="circular", niter=niter, dtype=dtype
        )
        optimizer = torch.optim.Adam(conv.parameters(), lr=0.02)
        x = torch.randn(1, ci, 4, 4, dtype=dtype)
        for _ in range(30):
            optimizer.zero_grad()
            (-conv(x).square().sum()).backward()
            optimizer.step()
            with torch.no_grad():  # power iteration: the input that grows most
                y = torch.autograd.functional.vjp(conv, x, conv(x))[1]
                x = y / y.norm()
        assert 0.75 < singular_values(conv, ci, 4, 4)[0] <= LIMIT  # the bound is used


@pytest.mark.parametrize("stride,groups", [(1, 1), (2, 1), (1, 3)])
def test_each_step_is_at_least_as_tight(stride, groups):
    gains = []
    for channels in [(3, 3), (6, 3), (3, 12)]:
        for _ in range(5):
            norms = []
            kernel = None
            for niter in (1, 2, 3, 4):
                conv = aol.AOLConv2d(*channels, 3, stride, groups=groups, bias=False, niter=niter, dtype=torch.float64)
                original = conv.parametrizations.weight
                if kernel is None:
                    draw(conv)
                    kernel = [p.detach().clone() for p in original.parameters()]
                with torch.no_grad():
                    for p, q in zip(original.parameters(), kernel, strict=True):
                        p.copy_(q)
                norms.append(singular_values(conv, channels[0], 7, 7)[0].item())
            assert all(b >= a - 1e-9 for a, b in itertools.pairwise(norms)), norms
            gains.append(norms[-1] - norms[0])
    assert sum(gains) / len(gains) > 0.04


def test_strides_count_only_the_lags_they_reach():
    """Windows that do not overlap: an orthonormal matrix is an orthonormal kernel, and is left alone."""
    rows = torch.linalg.qr(torch.randn(12, 5)).Q.T.reshape(5, 3, 2, 2)
    conv = aol.AOLConv2d(3, 5, 2, stride=2, bias=False)
    with torch.no_grad():
        conv.parametrizations.weight.original0.copy_(rows)
        torch.testing.assert_close(conv.weight, rows, atol=1e-4, rtol=1e-4)
    columns = torch.linalg.qr(torch.randn(20, 8)).Q.reshape(20, 2, 2, 2)
    conv = aol.AOLConv2d(2, 20, 2, stride=2, bias=False)
    with torch.no_grad():
        conv.parametrizations.weight.original0.copy_(columns)
        torch.testing.assert_close(conv.weight, columns, atol=1e-4, rtol=1e-4)


def test_phases_have_scales_of_their_own():
    """Stride 2, more outputs than phases of inputs: each phase can be scaled by itself, and the loud one is."""
    conv = aol.AOLConv1d(1, 6, 2, stride=2, bias=False)
    with torch.no_grad():
        conv.parametrizations.weight.original0.copy_(
            torch.linalg.qr(torch.randn(6, 2)).Q.view(6, 1, 2) * torch.tensor([1.0, 100.0])
        )
    assert (singular_values(conv, 1, 8) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("channels,stride", [((64, 64), 1), ((64, 32), 1), ((32, 64), 2)])
def test_starts_nearly_orthogonal(channels, stride):
    conv = aol.AOLConv2d(*channels, 3, stride, "same", padding_mode="circular", bias=False)
    sigma = singular_values(conv, channels[0], 2, 2)
    assert sigma[-1] > 0.95 and sigma[0] <= LIMIT


def test_groups_are_a_direct_sum():
    conv = aol.AOLConv2d(4, 6, 3, padding=1, groups=2, bias=False, niter=2)
    draw(conv)
    raw, q = conv.parametrizations.weight.original0, conv.parametrizations.weight.original1
    for index in range(2):
        single = aol.AOLConv2d(2, 3, 3, padding=1, bias=False, niter=2)
        with torch.no_grad():
            single.parametrizations.weight.original0.copy_(raw[3 * index : 3 * index + 3])
            single.parametrizations.weight.original1.copy_(q[index : index + 1])
        torch.testing.assert_close(single.weight, conv.weight[3 * index : 3 * index + 3])


def test_transpose_is_the_adjoint():
    conv = aol.AOLConv2d(2, 3, 3, stride=2, padding=1, bias=False)
    transpose = aol.AOLConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1, bias=False)
    transpose.load_state_dict(conv.state_dict())
    torch.testing.assert_close(operator(conv, 2, 6, 6), operator(transpose, 3, 3, 3).T)


def test_published_names_and_refusals():
    assert aol.AOLConv2D is aol.AOLConv2d and aol.AOLConvTranspose2D is aol.AOLConvTranspose2d
    with pytest.raises(ParameterError, match="niter"):
        aol.AOLConv2d(2, 2, 3, niter=0)
    with pytest.raises(GeometryError, match="reflect"):
        aol.AOLConv2d(2, 2, 3, padding_mode="reflect")
    with pytest.raises(TypeError, match="nitre"):
        aol.AOLConv2d(2, 2, 3, nitre=2)
