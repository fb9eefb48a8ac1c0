"""The factors of a product along an axis, from its rounded taps; cuts that noise spoils are replaced by others."""

import math

import pytest
import torch

from orthogonium.methods.bcop.composition import compose
from orthogonium.methods.bcop.inverse import decompose, factorize


def bases_of(*shape):
    return torch.linalg.qr(torch.randn(*shape, dtype=torch.float64).mT).Q.mT


def product(bases, rest):  # (n, r, c), (t, c, m), from the definition of a factor
    for basis in reversed(bases):
        projected = basis.mT @ (basis @ rest)
        first, second = torch.cat((projected, 0 * rest[:1])), torch.cat((0 * rest[:1], rest - projected))
        rest = first + second
    return rest


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize(("c", "m", "taps"), [(6, 6, 1), (7, 7, 1), (8, 20, 2), (8, 2, 1)])
def test_exact_taps_are_recovered(n, c, m, taps):
    rest = torch.randn(taps, c, m, dtype=torch.float64)
    x = product(bases_of(n, c // 2, c), rest)
    found = factorize(x, n, noise=1e-24, rank=c // 2)
    assert len(found.bases) == n and found.rest.shape == rest.shape
    assert found.lost < 1e-16
    torch.testing.assert_close(product(found.bases, found.rest), x, rtol=0, atol=1e-8)


def test_the_loss_is_the_error_of_the_product():
    x = product(bases_of(4, 3, 6), torch.linalg.qr(torch.randn(1, 6, 6, dtype=torch.float64)).Q)
    x += 1e-3 * torch.randn_like(x)
    found = factorize(x, 4, noise=0.0, rank=3)
    error = (product(found.bases, found.rest) - x).square().sum().item()
    assert math.isclose(error, found.lost, rel_tol=1e-6)


@pytest.mark.parametrize("sizes", [(5, 5), (7, 7)])
def test_every_float32_kernel_is_built_again(sizes):
    """40 kernels. Where one cut alone is tried, a few of size 5 and every third of size 7 are not recovered to 1e-5."""
    rounded = compose(bases_of(40, sum(sizes), 4, 8), sizes).float()
    bases, _ = decompose(rounded, sizes, rotate=True)
    torch.testing.assert_close(compose(bases, sizes).float(), rounded, rtol=0, atol=1e-5)
