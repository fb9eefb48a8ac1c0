"""Kernels on the lattice: products as operators, norms from above and how sharp they are."""

import math

import pytest
import torch
import torch.nn.functional as F

from orthogonium.certification.lattice import (
    adjoint,
    correlate,
    eigenvalue_bound,
    modulus_norm,
    norm,
    small_norm,
)
from orthogonium.layers.conv.aoc import AdaptiveOrthoConv2d

KERNELS = [(1, 3, 4, 1), (2, 3, 2, 3), (1, 4, 4, 2, 3), (3, 1, 1, 3, 3), (1, 2, 5, 2, 1, 2)]


def on_circle(kernel, sizes=8):  # (g, m, n, *k) → (g, frequencies, m, n)
    """The matrices of the circular convolution at each frequency."""
    dims = tuple(range(3, kernel.dim()))
    return torch.fft.fftn(kernel, [sizes] * len(dims), dims).flatten(3).movedim(3, 1)


def true_norm(kernel):
    return torch.linalg.matrix_norm(on_circle(kernel, 32), ord=2).amax(1)


@pytest.mark.parametrize("shape", KERNELS)
def test_correlate_is_the_product(shape):
    left, right = torch.randn(shape).double(), torch.randn(shape).double()[..., :1]
    for other in (left.flip(1), right):
        product = correlate(left, other)
        assert product.shape[3:] == tuple(a + b - 1 for a, b in zip(left.shape[3:], other.shape[3:], strict=True))
        expected = on_circle(left) @ on_circle(adjoint(other))  # both count from their first tap
        torch.testing.assert_close(on_circle(product), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", KERNELS)
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e150])
def test_norms_from_above(shape, scale):
    for kernel in (torch.randn(shape).double(), torch.rand(shape).double(), torch.zeros(shape).double()):
        true = true_norm(kernel) * scale
        kernel = kernel * scale
        for bound in (norm, modulus_norm, small_norm):
            assert (bound(kernel) >= true * (1 - 1e-12)).all()
        assert (
            norm(kernel) <= 1.03 * true + 1e-140 * (true == 0).double()
        ).all()  # 1% for the grid, the rest for the circle of the judge
        assert (norm(kernel, enough=1.0) >= true * (1 - 1e-12)).all()


def test_norm_is_sharp_for_orthogonal_kernels():
    for ci, co in [(4, 4), (4, 6), (6, 3)]:
        weight = AdaptiveOrthoConv2d(ci, co, 3, dtype=torch.float64).weight.detach()
        assert 1 - 1e-12 <= norm(weight[None]) <= 1 + 1e-11


@pytest.mark.parametrize("shape", [(1, 3, 3, 3), (1, 2, 3, 3, 3), (2, 2, 1, 2, 4), (1, 1, 2, 2, 1, 3)])
def test_effort_for_a_goal(shape):
    """A goal that the norm misses by 1e-8 is proved, one that it exceeds by 1e-8 is not."""
    kernel = torch.randn(shape).double()
    kernel = kernel / peak(kernel).view(-1, *[1] * (kernel.dim() - 1))
    assert (norm(kernel * (1 - 1e-8), enough=1.0) <= 1).all()
    assert (norm(kernel * (1 + 1e-8), enough=1.0) > 1).all()
    assert (norm(kernel) > 1).all()


def peak(kernel):
    """The norm, by ascent from the best of many frequencies."""
    lags = torch.cartesian_prod(*(torch.arange(k).double() for k in kernel.shape[3:])).reshape(-1, kernel.dim() - 3)
    taps = kernel.flatten(3).movedim(3, 1).to(torch.complex128)  # (g, t, m, n)

    def norms(frequencies):  # (F, dims) → (g, F)
        waves = torch.polar(torch.ones(len(frequencies), len(lags)).double(), frequencies @ lags.T)
        return torch.linalg.matrix_norm(torch.einsum("ft,gtmn->gfmn", waves, taps), ord=2)

    best = []
    for group in range(len(kernel)):
        w, width = 2 * math.pi * torch.rand(4000, lags.shape[1]).double(), 0.5
        for _ in range(60):
            centre = w[norms(w)[group].argmax()]
            w, width = torch.cat([centre[None], centre + width * torch.randn(200, len(centre)).double()]), width * 0.7
        best.append(norms(centre[None])[group, 0])
    return torch.stack(best)


def test_largest_eigenvalue():
    x = torch.randn(5, 12, 12).double()
    for matrices in (x @ x.mT, x.abs() + x.mT.abs(), torch.zeros_like(x), torch.eye(12).double().expand(2, 12, 12)):
        true = torch.linalg.eigvalsh(matrices)[:, -1]
        bound = eigenvalue_bound(matrices)
        assert (bound >= true).all() and (bound <= true * (1 + 1e-10) + 1e-200).all()


def test_not_finite():
    kernel = F.pad(torch.full((2, 1, 1, 1), math.nan).double(), [0, 1])
    assert norm(kernel).isinf().all()
