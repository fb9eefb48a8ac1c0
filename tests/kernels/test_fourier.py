"""Symbols on a grid against block convolutions, which know nothing of frequencies."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from orthogonium.kernels import adjoint, block_conv
from orthogonium.kernels.fourier import gram, hermitian_taps, kernel_of, product, symbol

SIZES = [(3,), (2,), (3, 2), (1, 3), (2, 3, 1), (1, 1)]


@pytest.mark.parametrize("sizes", SIZES)
def test_products_of_symbols_are_compositions(sizes):
    inner, outer = torch.randn(2, 3, 4, *sizes).double(), torch.randn(2, 5, 3, *sizes).double()
    grid = [2 * n - 1 for n in sizes]
    product_kernel = kernel_of(product(symbol(outer, grid), symbol(inner, grid)), grid)
    expected = block_conv(inner.flatten(0, 1), outer.flatten(0, 1), groups=2)
    # The first tap of the symbols is at 0, that of the kernel in the middle: taps come rolled by the middle.
    axes = tuple(range(3, 3 + len(sizes)))
    rolled = product_kernel.roll([-(n // 2) for n in grid], axes)
    torch.testing.assert_close(rolled, expected.unflatten(0, (2, -1)))


@pytest.mark.parametrize("sizes", SIZES)
def test_gram_is_the_autocorrelation(sizes):
    kernel = torch.randn(1, 3, 4, *sizes).double()
    grid = [2 * n - 1 for n in sizes]
    half = hermitian_taps(gram(symbol(kernel, grid)), grid)
    expected = block_conv(adjoint(kernel[0]), kernel[0])  # (3, 3, *grid)
    flat = expected.flatten(2).permute(2, 0, 1)
    torch.testing.assert_close(half[:, 0], flat[len(flat) // 2 :])


@pytest.mark.parametrize("scales", [(1.0, 1.0), (1.0, 1e-4), (1e-4, 1.0), (0.0, 1.0)])
def test_gram_of_parts_of_unequal_size(scales):
    """Whichever part is larger, nothing cancels; in float32, to a few roundings of the norm."""
    torch.manual_seed(0)
    x = torch.complex(*(s * torch.randn(3, 2, 8, 24, dtype=torch.float64) for s in scales))
    real, imaginary = gram((x.real.float(), x.imag.float()))
    expected = x @ x.mH
    error = torch.complex(real.double(), imaginary.double()) - expected
    assert error.abs().max() < 1e-6 * expected.abs().max()


def test_gram_takes_two_products():
    """And its derivative three."""
    real, imaginary = (torch.randn(13, 1, 8, 16).requires_grad_() for _ in range(2))
    one = 13 * 2 * 8 * 8 * 16
    with FlopCounterMode(display=False) as counter:
        both = torch.stack(gram((real, imaginary)))
    assert counter.get_total_flops() == 2 * one
    with FlopCounterMode(display=False) as counter:
        both.backward(torch.randn_like(both))
    assert counter.get_total_flops() == 3 * one


@pytest.mark.parametrize("sizes", [(3,), (2, 2)])
def test_gradients(sizes):
    grid = [2 * n - 1 for n in sizes]
    kernel = torch.randn(1, 2, 3, *sizes).double().requires_grad_()

    def autocorrelation(x):
        return hermitian_taps(gram(symbol(x, grid)), grid)

    assert torch.autograd.gradcheck(autocorrelation, kernel)
    assert torch.autograd.gradgradcheck(autocorrelation, kernel)
