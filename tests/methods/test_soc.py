"""The explicit exponential against the implicit series of the legacy, and against matrix exponentials."""

import math

import pytest
import torch
import torch.nn.functional as F

from orthogonium.kernels import ConvGeometry, identity
from orthogonium.kernels.exponential import SAFE_ORDERS, skew_exponential, smallest_singular_value
from orthogonium.legacy.skew_ortho_conv import soc_series
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS
from orthogonium.methods.soc import SkewExponentialKernel


def whole(half, sizes):
    """All taps `(c, c, *sizes)` from half of them (one group), one by one."""
    c = half.shape[-1]
    kernel = torch.zeros(c, c, *sizes, dtype=half.dtype)
    centre = [n // 2 for n in sizes]
    points = [(i - centre[0], j - centre[1]) for i in range(sizes[0]) for j in range(sizes[1])]
    for (i, j), tap in zip(points[len(points) // 2 :], half[:, 0], strict=True):
        kernel[:, :, centre[0] + i, centre[1] + j] = tap
        kernel[:, :, centre[0] - i, centre[1] - j] = -tap.T
    return kernel


def make(channels, size, order=4, niter=1, groups=1):
    geometry = ConvGeometry.of(2, channels, channels, size, groups=groups)
    return SkewExponentialKernel(geometry, order, niter, DEFAULT_ORTHO_PARAMS)


@pytest.mark.parametrize("size", [(3, 3), (1, 3), (5, 1), (1, 1)])
@pytest.mark.parametrize("order", SAFE_ORDERS)
def test_explicit_kernel_equals_the_implicit_series(size, order):
    constraint = make(3, size, order)
    (raw,) = constraint.initial(None, torch.float64)
    skew = whole(constraint.skew_taps(raw), size)
    x = torch.randn(2, 3, 7, 6).double()
    expected = soc_series(x, skew, order, padding_mode="circular")
    kernel = constraint.build(raw)
    v, h = (n // 2 for n in kernel.shape[2:])
    indices = [torch.arange(-p, n + p) % n for p, n in ((v, 7), (h, 6))]
    wrapped = x[:, :, indices[0]][:, :, :, indices[1]]
    torch.testing.assert_close(F.conv2d(wrapped, kernel), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("niter", [0, 1, 2, 3])
def test_scaled_kernel_is_skew_and_has_norm_at_most_one(niter):
    for _ in range(5):
        constraint = make(4, (3, 3), niter=niter)
        (raw,) = constraint.initial(None, torch.float32)
        for scale in (1e-3, 1.0, 1e10, 1e30):
            kernel = whole(constraint.skew_taps(raw * scale), (3, 3)).double()
            torch.testing.assert_close(kernel, -kernel.transpose(0, 1).flip(2, 3), rtol=1e-6, atol=0)
            symbol = torch.fft.fft2(kernel, s=(24, 24)).permute(2, 3, 0, 1)
            assert torch.linalg.matrix_norm(symbol, 2).max() <= 1 + 1e-7


def test_more_squarings_come_closer_to_norm_one():
    norms = []
    (raw,) = make(6, (3, 3)).initial(None, torch.float64)
    for niter in range(4):
        kernel = whole(make(6, (3, 3), niter=niter).skew_taps(raw), (3, 3))
        norms.append(torch.linalg.matrix_norm(torch.fft.fft2(kernel, s=(24, 24)).permute(2, 3, 0, 1), 2).max().item())
    assert norms == sorted(norms) and norms[0] < 0.7 and norms[-1] > 0.9


def test_small_kernels_are_left_alone_and_zero_gives_the_identity():
    constraint = make(3, (3, 3))
    (raw,) = constraint.initial(None, torch.float64)
    small = raw * 1e-3
    torch.testing.assert_close(constraint.skew_taps(small)[1:], small[1:], rtol=1e-12, atol=0)
    torch.testing.assert_close(constraint.build(raw * 0), identity(3, (9, 9), dtype=torch.float64))


def test_depthwise():
    constraint = make(3, (3, 3), groups=3, order=12)
    (raw,) = constraint.initial(None, torch.float64)
    kernel = constraint.build(raw)
    for group in range(3):
        spectrum = torch.fft.fft2(kernel[group, 0], s=(32, 32)).abs()
        assert (spectrum - 1).abs().max() < 1e-9
    assert (kernel[0] - kernel[1]).norm() > 0.1


@pytest.mark.parametrize(
    "geometry", [(2, 2, 3, 1, 1), (2, 3, 3, 1, 1), (3, 2, 3, 1, 1), (2, 6, 3, 2, 2), (2, 2, 2, 2, 1)]
)
def test_gradients(geometry):
    ci, co, k, s, g = geometry
    constraint = SkewExponentialKernel(ConvGeometry.of(1, ci, co, k, s, groups=g), 4, 1, DEFAULT_ORTHO_PARAMS)
    raw = [p.requires_grad_() for p in constraint.initial(None, torch.float64)]
    assert torch.autograd.gradcheck(constraint.build, raw)


def test_safe_orders_are_exactly_those_that_do_not_expand():
    angles = torch.linspace(1e-2, 1, 400, dtype=torch.float64) * 1j
    for order in range(1, 13):
        series = sum(angles**j / math.factorial(j) for j in range(order + 1))
        largest, smallest = series.abs().max().item(), series.abs().min().item()
        assert (largest <= 1 + 1e-15) == (order in SAFE_ORDERS), order
        if order in SAFE_ORDERS:
            assert smallest == pytest.approx(smallest_singular_value(order), abs=1e-12)


def test_columns_of_the_exponential_are_its_first_ones():
    half = torch.randn(5, 2, 4, 4).double() / 20
    half[0] -= half[0].clone().mT
    full = skew_exponential(half, (3, 3), 4, 4)
    torch.testing.assert_close(skew_exponential(half, (3, 3), 4, 2), full[:, :, :2])
