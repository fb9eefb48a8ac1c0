"""Functions of complex matrices: their values by torch's complex arithmetic, and their derivatives by real forms."""

import pytest
import torch
from torch.func import vmap

from orthogonium.errors import ShapeError
from orthogonium.linalg import bjorck, cayley, cholesky, exponential, polar, qr
from orthogonium.linalg.complex_matrices import complex_form, real_form
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


EXPECTED = {polar: _polar, cayley: _cayley, exponential: _exponential}
SHAPES = [(2, 3, 3), (5, 2), (1, 1), (2, 5), (2, 2, 7), (7, 2)]

functions = pytest.mark.parametrize("function", EXPECTED, ids=lambda f: f.__name__)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def through_real_form(function, w):
    return complex_form(function(real_form(w)))


@functions
@shapes
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.complex128, 1e-10), (torch.complex64, 2e-6)], ids=str)
def test_values(function, shape, dtype, tolerance):
    w = matrices(*shape)
    found = function(w.to(dtype))
    assert found.dtype == dtype
    w = w.to(dtype).to(torch.complex128)
    torch.testing.assert_close(found.to(w.dtype), EXPECTED[function](w), rtol=0, atol=tolerance)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
@functions
@shapes
def test_derivatives(function, shape):
    w, v, u = (matrices(*shape) for _ in range(3))
    w.requires_grad_()
    found = []
    for f in (function, lambda w: through_real_form(function, w)):
        (first,) = torch.autograd.grad(f(w), w, v, create_graph=True)
        found.append((first, *torch.autograd.grad(first, w, u), torch.func.jvp(f, (w.detach(),), (v,))[1]))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10 * expected.abs().max().item())


@functions
def test_derivatives_in_single_precision(function):
    w, v = (matrices(4, 6, 6).to(torch.complex64) for _ in range(2))
    found = [
        torch.autograd.grad(function(x), x, v.to(x.dtype))[0]
        for x in (w.requires_grad_(), w.detach().to(torch.complex128).requires_grad_())
    ]
    torch.testing.assert_close(found[0].to(torch.complex128), found[1], rtol=0, atol=1e-5 * found[1].abs().max().item())


@functions
def test_batches_of_functions_and_gradients(function):
    w, v = matrices(3, 4, 4).requires_grad_(), matrices(5, 3, 4, 4)
    y = function(w)
    torch.testing.assert_close(vmap(function)(w), y)
    each = torch.stack([torch.autograd.grad(y, w, g, retain_graph=True)[0] for g in v])
    torch.testing.assert_close(torch.autograd.grad(y, w, v, is_grads_batched=True)[0], each)


@functions
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_any_scale(function, scale):
    if function is polar and not scale:
        pytest.skip("Zero has no polar factor.")
    w = function(scale * matrices(2, 4, 4))
    torch.testing.assert_close(w @ w.mH, torch.eye(4, dtype=w.dtype).expand(2, 4, 4), rtol=0, atol=1e-12)


@pytest.mark.parametrize("function", [polar, cayley], ids=lambda f: f.__name__)
def test_moduli_beyond_the_largest_number(function):
    w = torch.complex(torch.tensor([[1.0, 0.9], [-0.8, 1.0]]), torch.tensor([[1.0, -1.0], [0.9, 0.8]]))
    torch.testing.assert_close(function(3e38 * w), function(1e6 * w), rtol=0, atol=1e-5)


@pytest.mark.parametrize("function", [cholesky, qr, bjorck])
def test_functions_of_real_matrices_alone_say_so(function):
    with pytest.raises(ShapeError, match="floating point"):
        function(matrices(3, 3))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[-1] <= shape[-2]], ids=str)
def test_block_reflectors_by_the_real_form(shape):
    v = matrices(*shape)
    torch.testing.assert_close(through_real_form(block_reflector, v), _reflector(v), rtol=1e-10, atol=1e-10)
