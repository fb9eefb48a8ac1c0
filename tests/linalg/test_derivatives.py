"""Derivatives of the orthogonalizers: in float32 against float64, of second order, and taken in unusual ways."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import orthogonium.linalg as linalg
from orthogonium.errors import DerivativeError
from orthogonium.linalg import cayley, cholesky, exponential, polar, qr

EXACT = {"cholesky": cholesky, "qr": qr, "polar": polar, "cayley": cayley, "exponential": exponential}
exact = pytest.mark.parametrize("name", EXACT)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
# Not those whose gradient is inexact by design: one pass of Cholesky, and the gradient of the identity.
PRESETS = ["DEFAULT", "POLAR", "BJORCK", "EXP", "CAYLEY", "QR"]


def gradient(function, w, target):
    w = w.detach().to(target.dtype).requires_grad_()
    return torch.autograd.grad((function(w) * target).sum(), w)[0].double()


def error(function, w):
    """Of the float32 gradient, relative to that in float64."""
    target = torch.randn(w.shape, dtype=torch.float64)
    expected = gradient(function, w, target)
    return (gradient(function, w, target.float()) - expected).norm() / expected.norm()


def trained(function, w):
    w, target = w.clone().requires_grad_(), torch.randn_like(w)
    optimizer = torch.optim.Adam([w], lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        (function(w) * target).sum().backward()
        optimizer.step()
    return w.detach()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (48, 48), (96, 24)], ids=str)
def test_gradients_in_float32(preset, shape):
    function = getattr(linalg, f"{preset}_ORTHO_PARAMS").build(shape)
    start = linalg.random_orthogonal(shape)
    for w in (start, torch.randn(shape), trained(function, start)):
        assert error(function, w) <= 1e-4


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_gradients_at_any_scale_in_float32(preset, scale):
    function = getattr(linalg, f"{preset}_ORTHO_PARAMS").build((6, 4))
    assert error(function, scale * torch.randn(6, 4)) <= 1e-4


@pytest.mark.parametrize("preset", PRESETS)
def test_gradients_of_large_matrices_in_float32(preset):
    u, v = linalg.random_orthogonal((2, 256, 256))
    of_condition_1e3 = u * torch.linspace(1e-3, 1, 256) @ v
    for w in (linalg.random_orthogonal((512, 512)), of_condition_1e3):
        assert error(getattr(linalg, f"{preset}_ORTHO_PARAMS").build(w.shape), w) <= 1e-4


@pytest.mark.parametrize("name", ["cholesky", "qr", "polar"])
@pytest.mark.parametrize("exponent", [3, 4, 5, 6])
@pytest.mark.parametrize("shape", [(40, 40), (30, 60)], ids=str)
def test_transforms_of_ill_conditioned_matrices_in_float32(name, shape, exponent):
    """Gradients by `torch.func` and of `create_graph` take other operators than plain ones, and are as exact.

    But for those of Cholesky by `torch.func`, which cannot see that float64 is called for.
    """
    u, v = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64))[0] for n in shape)
    sigma = torch.logspace(0, -exponent, shape[0], dtype=torch.float64)
    w, target = (u * sigma @ v[: shape[0]]), torch.randn(shape, dtype=torch.float64)
    function = EXACT[name]
    expected = gradient(function, w.float().double(), target)
    one = w.float().requires_grad_()
    (twice,) = torch.autograd.grad((function(one) * target.float()).sum(), one, create_graph=True)
    transformed = torch.func.grad(lambda x: (function(x) * target.float()).sum())(w.float())
    error = lambda g: (g - expected).norm() / expected.norm()  # noqa: E731
    assert error(gradient(function, w, target.float())) <= 1e-6
    assert error(twice.detach()) <= 1e-6
    assert error(transformed) <= (10**exponent * torch.finfo(torch.float32).eps if name == "cholesky" else 1e-6)


@exact
@pytest.mark.parametrize("shape", [(2, 3, 3), (4, 2), (2, 4), (1, 3), (1, 1)], ids=str)
def test_second_derivatives(name, shape):
    w = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(EXACT[name], w)


@exact
def test_second_derivatives_at_repeated_singular_values(name):
    """Where layers start: derivatives of eigenvectors do not exist there, those of the factor do."""
    w = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0].requires_grad_()
    assert torch.autograd.gradgradcheck(EXACT[name], w)


@exact
def test_second_derivatives_in_float32(name):
    w, v = torch.randn(2, 6, 9, dtype=torch.float64)
    expected = torch.autograd.functional.hvp(lambda x: EXACT[name](x).sin().sum(), w, v)[1]
    result = torch.autograd.functional.hvp(lambda x: EXACT[name](x).sin().sum(), w.float(), v.float())[1]
    assert (result - expected).norm() / expected.norm() <= 1e-3


@exact
def test_third_derivatives(name):
    w, v = torch.randn(2, 2, 3, dtype=torch.float64)
    loss = lambda x: EXACT[name](x).sin().sum()  # noqa: E731
    expected = torch.autograd.functional.hvp(lambda x: torch.func.jvp(loss, (x,), (v,))[1], w, v)[1]
    h = 1e-4
    second = [torch.autograd.functional.hvp(loss, w + t * v, v)[1] for t in (h, -h)]
    torch.testing.assert_close(expected, (second[0] - second[1]) / (2 * h), rtol=1e-5, atol=1e-6)


@exact
def test_hessians(name):
    w = torch.randn(2, 3, dtype=torch.float64)
    loss = lambda x: EXACT[name](x).sin().sum()  # noqa: E731
    expected = torch.autograd.functional.hessian(loss, w)
    torch.testing.assert_close(torch.autograd.functional.hessian(loss, w, vectorize=True), expected)
    torch.testing.assert_close(torch.func.hessian(loss)(w), expected)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacrev(loss))(w), expected)
    batch = torch.stack((w, 2 * w - 1))
    torch.testing.assert_close(torch.vmap(torch.func.hessian(loss))(batch)[0], expected)


def test_polar_forwards_twice_in_batches():
    loss = lambda x: torch.vmap(polar)(x).sin().sum()  # noqa: E731
    w, v = torch.randn(2, 2, 2, 3, dtype=torch.float64)
    expected = torch.autograd.functional.hessian(lambda x: polar(x).sin().sum(), w)
    twice = torch.func.jacfwd(torch.func.jacfwd(lambda x: polar(x).sin().sum()))
    torch.testing.assert_close(twice(w), expected)
    with pytest.raises(DerivativeError, match="backwards"):
        torch.func.jvp(lambda x: torch.func.jvp(loss, (x,), (v,))[1], (w,), (v,))


@exact
def test_tangents_that_only_come_with_the_gradient(name):
    """The value has no tangent: only what it is multiplied by has one."""
    w, c, v = torch.randn(3, 3, 4, dtype=torch.float64)
    with forward_ad.dual_level():
        w = w.requires_grad_()
        (g,) = torch.autograd.grad((EXACT[name](w) * forward_ad.make_dual(c, v)).sum(), w)
        tangent = forward_ad.unpack_dual(g).tangent
    torch.testing.assert_close(tangent, torch.autograd.grad((EXACT[name](w) * v).sum(), w)[0])


@exact
def test_autocast_of_the_value_does_not_reach_second_derivatives(name):
    w, v = torch.randn(2, 8, 8)

    def loss(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return EXACT[name](x).sin().sum()

    expected = torch.autograd.functional.hvp(lambda x: EXACT[name](x).sin().sum(), w, v)[1]
    torch.testing.assert_close(torch.autograd.functional.hvp(loss, w, v)[1], expected)


@exact
def test_activation_checkpoints(name):
    w = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    loss = lambda x: EXACT[name](x).sin().sum()  # noqa: E731
    expected = torch.autograd.grad(loss(w), w)[0]
    torch.testing.assert_close(torch.autograd.grad(checkpoint(loss, w, use_reentrant=False), w)[0], expected)
    (g,) = torch.autograd.grad(checkpoint(loss, w, use_reentrant=False), w, create_graph=True)
    (plain,) = torch.autograd.grad(loss(w), w, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(g.sum(), w)[0], torch.autograd.grad(plain.sum(), w)[0])


@exact
def test_compiled_training(name):
    torch.compiler.reset()
    w = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    loss = lambda x: EXACT[name](x).sin().sum()  # noqa: E731
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(w), w)[0], torch.autograd.grad(loss(w), w)[0])
