"""Functions of complex matrices by their real forms, against torch's complex arithmetic."""

import pytest
import torch

from orthogonium.linalg import cayley, exponential, polar
from orthogonium.linalg.complex_matrices import complex_form, on_complex, real_form
from orthogonium.methods.bro import block_reflector


def matrices(*shape):
    return torch.randn(*shape, dtype=torch.complex128)


def test_the_real_form_respects_the_algebra():
    a, b = matrices(2, 3, 4), matrices(2, 4, 5)
    torch.testing.assert_close(complex_form(real_form(a)), a, rtol=0, atol=0)
    torch.testing.assert_close(complex_form(real_form(a) @ real_form(b)), a @ b)
    torch.testing.assert_close(complex_form(real_form(a).mT), a.mH, rtol=0, atol=0)


def _polar(w):
    u, _, vh = torch.linalg.svd(w, full_matrices=False)
    return u @ vh


def _cayley(w):
    if w.shape[-2] < w.shape[-1]:
        return _cayley(w.mH).mH
    c = w.shape[-1]
    u, v, eye = w[..., :c, :], w[..., c:, :], torch.eye(c, dtype=w.dtype)
    a = u - u.mH + v.mH @ v
    return torch.cat([(eye - a) @ torch.linalg.inv(eye + a), -2 * v @ torch.linalg.inv(eye + a)], -2)


def _exponential(w):
    rows, columns = w.shape[-2:]
    square = torch.nn.functional.pad(w, (0, max(rows - columns, 0), 0, max(columns - rows, 0)))
    return torch.linalg.matrix_exp(square - square.mH)[..., :rows, :columns]


def _reflector(v):
    return torch.eye(v.shape[-2], dtype=v.dtype) - 2 * v @ torch.linalg.inv(v.mH @ v) @ v.mH


FUNCTIONS = {
    "polar": (polar, _polar),
    "cayley": (cayley, _cayley),
    "exponential": (exponential, _exponential),
    "block reflector": (block_reflector, _reflector),
}


SHAPES = [(2, 3, 3), (5, 2), (1, 1), (2, 5)]


@pytest.mark.parametrize(
    ("name", "shape"),
    # Reflectors have no more columns than rows.
    [(n, shape) for n in FUNCTIONS for shape in SHAPES if n != "block reflector" or shape[-1] <= shape[-2]],
)
def test_functions_of_complex_matrices(name, shape):
    function, expected = FUNCTIONS[name]
    w = matrices(*shape)
    torch.testing.assert_close(on_complex(function, w), expected(w), rtol=1e-10, atol=1e-10)
