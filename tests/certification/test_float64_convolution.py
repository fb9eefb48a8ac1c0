"""Convolutions of float64 images as one product, against torch's."""

from __future__ import annotations

import itertools

import pytest
import torch

from orthogonium.certification.float64_convolution import convolution


@pytest.mark.parametrize(
    ("dims", "stride", "padding", "dilation", "groups", "bias"),
    [
        *itertools.product((1, 2, 3), (1, 2), (0, 1), (1,), (1,), (True, False)),
        (2, 1, 0, 2, 1, True),
        (2, 2, 1, 1, 2, True),
    ],
)
def test_is_the_convolution(dims, stride, padding, dilation, groups, bias):
    """Of more samples than are gathered at a time; also where torch's own is called."""
    x = torch.randn(35, 4, *(7, 6, 5)[:dims], dtype=torch.float64)
    weight = torch.randn(6, 4 // groups, *(3, 2, 3)[:dims], dtype=torch.float64)
    b = torch.randn(6, dtype=torch.float64) if bias else None
    arguments = (x, weight, b, [stride] * dims, [padding], [dilation], False, [0] * dims, groups)
    expected = torch.ops.aten.convolution.default(*arguments)
    found = convolution(*arguments)
    assert found.shape == expected.shape and found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
