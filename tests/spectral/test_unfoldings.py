import math

import torch

from orthogonium.spectral import convolution, unfolding_bound
from tests.spectral.test_gram import lattice_norm

D = torch.float64


def test_at_most_the_root_of_the_taps_too_large():
    for _ in range(20):
        weight = torch.randn(3, 4, 3, 2, dtype=D)
        exact = lattice_norm(weight, 64)
        assert exact * (1 - 1e-3) <= unfolding_bound(convolution(weight)) <= math.sqrt(6) * exact


def test_the_root_is_needed():
    weight = torch.randn(4, 4, 3, 3, dtype=D)
    assert unfolding_bound(convolution(weight)) / 3 < lattice_norm(weight, 64)


def test_the_smallest_of_all_unfoldings_counts():
    # rank one between (rows, first axis) and (columns, second axis): only that unfolding and its norm are small
    weight = torch.einsum("ax,by->abxy", torch.randn(5, 3), torch.randn(4, 2)).double()
    matrix = weight.permute(0, 2, 1, 3).reshape(15, 8)
    norms = [
        torch.linalg.matrix_norm(weight.permute(order).reshape(rows, -1), 2)
        for order, rows in [((0, 1, 2, 3), 5), ((0, 2, 1, 3), 15), ((0, 3, 1, 2), 10), ((0, 2, 3, 1), 30)]
    ]
    assert min(norms) < 0.999 * torch.linalg.matrix_norm(matrix, 2)
    torch.testing.assert_close(unfolding_bound(convolution(weight)), math.sqrt(6) * min(norms), rtol=1e-5, atol=0)


def test_three_dimensions_and_stride():
    weight = torch.ones(1, 1, 2, 2, 2, dtype=D)
    torch.testing.assert_close(unfolding_bound(convolution(weight)).item(), 8.0, rtol=1e-5, atol=0)
    strided = unfolding_bound(convolution(weight, stride=2)).item()  # windows do not overlap
    torch.testing.assert_close(strided, math.sqrt(8), rtol=1e-5, atol=0)
