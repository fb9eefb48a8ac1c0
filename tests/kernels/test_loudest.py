"""The loudest frequency of a grid is the loudest: by eigenvalues at all of them."""

import pytest
import torch
from torch.func import vmap

from orthogonium.kernels.fourier import symbol, symbol_at
from orthogonium.kernels.frequency_bound import squared_norm_bound
from orthogonium.kernels.loudest import loudest_frequency
from orthogonium.layers import AdaptiveOrthoConv2d


def norms(kernel, grid):  # (frequencies, g)
    real, imaginary = symbol(kernel.double(), grid)
    return torch.linalg.matrix_norm(real if imaginary is None else torch.complex(real, imaginary), ord=2)


KERNELS = {
    "normal": lambda: torch.randn(1, 8, 8, 3, 3),
    "wide groups": lambda: torch.randn(3, 2, 5, 2, 3),
    "in 1-D": lambda: torch.randn(2, 4, 4, 5),
    "in 3-D": lambda: torch.randn(1, 3, 3, 2, 1, 2),
    "one tap": lambda: torch.randn(2, 4, 4),
    "one channel": lambda: torch.randn(4, 1, 1, 3, 3),
    "silent at frequency 0": lambda: torch.randn(1, 4, 4, 1) * torch.tensor([1.0, -1.0]),
    "the average": lambda: torch.ones(1, 2, 2, 3, 3),
    "orthogonal": lambda: AdaptiveOrthoConv2d(6, 6, 3).weight.detach()[None],
    "of rank 1": lambda: (torch.randn(6, 1) @ torch.randn(1, 6))[None, :, :, None, None] * torch.randn(3, 3),
    # Many values of 0.8 everywhere, and one that is larger near one frequency.
    "quiet but for one": lambda: torch.stack([torch.eye(8) * 0.8, torch.diag(torch.eye(8)[0]) * 0.3], -1)[None],
    "zero and not": lambda: torch.randn(2, 3, 3, 3) * torch.tensor([0.0, 1.0]).view(2, 1, 1, 1),
}


@pytest.mark.parametrize("points", [12, 100])  # a grid looked at in one part, or in up to twenty
@pytest.mark.parametrize("name", KERNELS)
def test_it_is_the_loudest(name, points):
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        kernel = KERNELS[name]().to(dtype)
        grid = [points * (k - 1) + 1 for k in kernel.shape[3:]]
        found, all_of_them = loudest_frequency(kernel, grid), norms(kernel, grid)
        there = all_of_them.gather(0, found[None])[0]
        torch.testing.assert_close(there, all_of_them.amax(0), rtol=1e-7, atol=0)
        real, imaginary = symbol_at(kernel.double(), grid, found)
        value = torch.linalg.matrix_norm(real if imaginary is None else torch.complex(real, imaginary), ord=2)[0]
        torch.testing.assert_close(value, there)


@pytest.mark.parametrize("name", KERNELS)
def test_transforms_find_the_same_bound(name):
    """Where values cannot be looked at, Gram iteration finds a frequency that is as loud."""
    torch.manual_seed(0)
    kernel = KERNELS[name]()
    groups = len(kernel)

    def bound(x):
        return squared_norm_bound(x.flatten(0, 1), 9, groups, 12)

    torch.testing.assert_close(vmap(bound)(kernel[None])[0], bound(kernel), rtol=1e-3, atol=1e-30)


def test_values_that_are_not_finite_stay_so():
    kernel = torch.randn(4, 4, 3, 3)
    kernel[0, 0, 0, 0] = torch.nan
    assert squared_norm_bound(kernel).isnan().all()
