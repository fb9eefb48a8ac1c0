"""Products by oneDNN, which kernels of large matrices are built by on some processors."""

import pytest
import torch

from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
from orthogonium.linalg import bjorck, cayley, cholesky, exponential
from orthogonium.linalg import multiply as module
from orthogonium.linalg.evaluation import evaluate
from orthogonium.linalg.multiply import Product, add_product, amd_family, multiply
from tests.jacobians import assert_same_in_both_directions
from tests.tf32 import TF32, tf32_allowed

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
SHAPES = [((3, 5), (5, 4)), ((40, 300), (300, 70)), ((1, 33, 65), (1, 65, 34)), ((3, 64, 128), (3, 128, 200))]


@pytest.fixture
def half_idle(monkeypatch):
    """A processor on which oneDNN is faster."""
    monkeypatch.setattr(module, "_HALF_IDLE", True)


def by_onednn(a, b):
    return evaluate(Product, a, b)


def matrices(a, b, dtype=torch.float32):
    return torch.randn(a, dtype=dtype), torch.randn(b, dtype=dtype)


def assert_product(found, a, b):
    """A sum of k products is off by k·eps/2 of the sum of their sizes at most."""
    a, b = a.double(), b.double()
    bound = a.shape[-1] * torch.finfo(torch.float32).eps * (a.abs() @ b.abs())
    assert ((found.double() - a @ b).abs() <= bound).all()


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products_of_matrices_in_any_layout(shapes):
    a, b = matrices(*shapes)
    wider = torch.randn(*b.shape[:-1], b.shape[-1] + 3)
    column = torch.randn(*b.shape[:-1], 1)
    for x in (a, a.mT.contiguous().mT):
        for y in (b, b.mT.contiguous().mT, wider[..., 2:-1], wider[..., ::2], column.expand_as(b)):
            assert_product(by_onednn(x, y), x, y)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_first_and_second_derivatives(shapes):
    """Those of float64, to the rounding of sums."""
    inputs = [x.requires_grad_() for x in matrices(*shapes)]
    (u, *vs) = (torch.randn_like(x) for x in (inputs[0] @ inputs[1], *inputs))
    results = []
    for function, dtype in ((by_onednn, torch.float32), (torch.matmul, torch.float64)):
        x = [t.detach().to(dtype).requires_grad_() for t in inputs]
        first = torch.autograd.grad((function(*x).square() * u.to(dtype)).sum(), x, create_graph=True)
        second = torch.autograd.grad(first, x, [v.to(dtype) for v in vs])
        results.append([*first, *second])
    for found, expected in zip(*results, strict=True):
        assert found.dtype == torch.float32
        error = (found.double() - expected).norm() / expected.norm()
        assert error <= 1e-5


def test_transforms_and_forward_derivatives():
    a, b = matrices(*SHAPES[-1])
    torch.testing.assert_close(torch.func.vmap(by_onednn)(a, b), a @ b)
    assert_same_in_both_directions(by_onednn, *matrices(*SHAPES[-1], torch.float64))


def test_one_of_the_factors_may_be_constant():
    a, b = matrices(*SHAPES[1])
    for x, y in ((a.clone().requires_grad_(), b), (a, b.clone().requires_grad_())):
        (grad,) = torch.autograd.grad(by_onednn(x, y).sum(), [t for t in (x, y) if t.requires_grad])
        ones = torch.ones(a.shape[0], b.shape[1])
        torch.testing.assert_close(grad, ones @ b.mT if x.requires_grad else a.mT @ ones)


def test_what_is_no_large_float32_matrix_is_left_to_torch(half_idle):
    a, b = matrices((256, 256), (256, 256))
    assert module._pays(a, b)
    small = torch.randn(64, 64)
    others = [(a.double(), b.double()), (a.bfloat16(), b.bfloat16()), (small, small), (a[:16], b), (a.to("meta"), b)]
    assert not any(module._pays(*pair) for pair in others)
    torch.testing.assert_close(torch.func.vmap(multiply)(a[None], b[None])[0], a @ b)


@pytest.mark.parametrize("counts", [(1, 3), (3, 1), (2, 3)])
def test_batches_of_unequal_length_are_refused_by_torch(counts, half_idle):
    a, b = torch.randn(counts[0], 256, 256), torch.randn(counts[1], 256, 256)
    with pytest.raises(RuntimeError):
        multiply(a, b)


def test_images_may_be_written_to(half_idle):
    layer, x = AdaptiveOrthoConv2d(256, 512, 2, stride=2, bias=False), torch.randn(1, 256, 24, 24)
    raw = [*layer.parameters()]
    found, expected = (torch.autograd.grad(relu(layer(x)).sum(), raw) for relu in (torch.relu_, torch.relu))
    torch.testing.assert_close(found, expected)


def test_sums(half_idle):
    x, (a, b) = torch.eye(256), matrices((2, 256, 300), (2, 300, 256))
    assert_product((add_product(x, a, b, alpha=-2) - x) / -2, a, b)


def test_processors():
    new = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n"
    assert amd_family(new + "\n" + new.replace(": 0", ": 1")) == 26
    assert amd_family(new.replace("AuthenticAMD", "GenuineIntel")) == amd_family("") == 0


def build(layer, upstream):
    weight = layer.weight
    raw = [*layer.parametrizations.weight.parameters()]
    return [weight, *torch.autograd.grad(weight, raw, upstream)]


@pytest.mark.parametrize(
    "layer",
    [
        lambda: AdaptiveOrthoConv2d(256, 256, 3, padding="same"),
        lambda: AdaptiveOrthoConv2d(256, 512, 3, stride=2, padding="same"),
        lambda: OrthoLinear(640, 600),
    ],
    ids=["3×3", "strided", "dense"],
)
def test_layers_are_the_same(layer, half_idle, monkeypatch):
    layer = layer()
    upstream = torch.randn_like(layer.weight)
    calls = []
    original = module._by_onednn
    monkeypatch.setattr(module, "_by_onednn", lambda a, b: calls.append(a) or original(a, b))
    with TF32(), tf32_allowed():
        found = build(layer, upstream)
        assert calls
    monkeypatch.setattr(module, "_HALF_IDLE", False)
    for ours, expected in zip(found, build(layer.double(), upstream.double()), strict=True):
        error = (ours.double() - expected).norm() / expected.norm()
        assert error <= 1e-5


@pytest.mark.parametrize("function", [bjorck, exponential, cayley, cholesky])
@pytest.mark.parametrize("shape", [(300, 300), (2, 300, 256), (256, 600)], ids=str)
def test_orthogonal_matrices_are_the_same(function, shape, half_idle, monkeypatch):
    w, upstream = torch.randn(shape) / 40, torch.randn(shape)
    results = []
    for x, half_idle in ((w, True), (w.double(), False)):
        monkeypatch.setattr(module, "_HALF_IDLE", half_idle)
        y = function(x.requires_grad_())
        results.append((y, *torch.autograd.grad(y, x, upstream.to(x.dtype))))
    for ours, expected in zip(*results, strict=True):
        error = (ours.double() - expected).norm() / expected.norm()
        assert error <= 1e-5


@pytest.mark.parametrize("function", [bjorck, exponential, cayley, cholesky])
@pytest.mark.parametrize("shape", [(400, 600), (1, 500, 400), (2, 400, 400)], ids=str)
def test_second_derivatives_of_orthogonal_matrices(function, shape, half_idle):
    """Those of float64: products are written to, and differentiated, one after the other."""
    w, u, v = torch.randn(shape) / 40, torch.randn(shape), torch.randn(shape)
    results = []
    for dtype in (torch.float32, torch.float64):
        x = w.to(dtype).requires_grad_()
        (first,) = torch.autograd.grad((function(x).square() * u.to(dtype)).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first, x, v.to(dtype))
        results.append((first.detach().double(), second.double()))
    for ours, expected in zip(*results, strict=True):
        assert (ours - expected).norm() <= 1e-5 * expected.norm()


def test_images_meet_large_factors(half_idle, monkeypatch):
    """The factors of a kernel, one after the other, in training; and the weight in eval."""
    layer, x = AdaptiveOrthoConv2d(256, 256, 3, padding="same"), torch.randn(2, 256, 8, 8)
    trained = layer(x)
    monkeypatch.setattr(module, "_HALF_IDLE", False)
    with torch.no_grad():
        torch.testing.assert_close(trained, layer.eval()(x), rtol=0, atol=1e-5 * x.abs().max().item())


def test_compilers_see_products_of_torch(half_idle):
    torch.compiler.reset()
    layer, x = AdaptiveOrthoConv2d(256, 256, 1), torch.randn(2, 256, 20, 20)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)


def test_autocast_does_not_round():
    a, b = matrices(*SHAPES[1])
    with torch.autocast("cpu", torch.bfloat16):
        product = by_onednn(a, b)
    assert product.dtype == torch.float32
    assert_product(product, a, b)
