"""Kernels on circles and phases of strides, by definition."""

import pytest
import torch

from orthogonium.kernels.circle import from_frequencies, to_frequencies, wrap_taps
from orthogonium.kernels.phases import stack_phases, unstack_phases


@pytest.mark.parametrize("taps,first,size", [(3, 1, 5), (4, 1, 4), (7, 3, 3), (2, 0, 1)])
def test_taps_wrap_around(taps, first, size):
    kernel = torch.randn(2, taps)
    expected = torch.zeros(2, size)
    for j in range(taps):
        expected[:, (j - first) % size] += kernel[:, j]
    torch.testing.assert_close(wrap_taps(kernel, (first,), (size,)), expected)


@pytest.mark.parametrize("sizes", [(5,), (4, 3), (1, 6), (2, 3, 4)])
def test_frequencies_and_back(sizes):
    x = torch.randn(2, 3, *sizes, dtype=torch.float64)
    y = to_frequencies(x, len(sizes))
    assert y.shape == (*sizes[:-1], sizes[-1] // 2 + 1, 2, 3)
    torch.testing.assert_close(y[(0,) * len(sizes)].real, x.flatten(2).sum(-1))
    torch.testing.assert_close(from_frequencies(y, sizes), x)


@pytest.mark.parametrize("strides,sizes", [((2,), (6,)), ((2, 3), (4, 9)), ((1, 2, 2), (3, 2, 4))])
def test_phases_and_back(strides, sizes):
    x = torch.randn(2, 3, 4, *sizes)
    stacked = stack_phases(x, strides)
    torch.testing.assert_close(unstack_phases(stacked, strides), x, rtol=0, atol=0)
