"""Products with orthonormal rows that are never formed: those with the rows, and so are all derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parametrize

from orthogonium import build_once
from orthogonium.layers import OrthoLinear
from orthogonium.linalg import cholesky
from orthogonium.linalg.in_turn import _Applied, _factor, _Projected, apply_orthonormal_rows, inverse_gram, project


def matrix(rows, columns, condition, dtype=torch.float64):
    u, _, v = torch.linalg.svd(torch.randn(rows, columns, dtype=torch.float64), full_matrices=False)
    return (u * torch.logspace(0, 1, rows, dtype=torch.float64).pow(torch.tensor(condition).log10()) @ v).to(dtype)


def project_each(x, raw):  # (b, c), (r, c) → (b, c)
    """The projection of each row of x, by the rows of `raw` as they are."""
    inverse = inverse_gram(raw.detach()[None])
    assert inverse is not None
    return project(x.mT[None], raw[None], inverse)[0].mT


@pytest.mark.parametrize("apply", [apply_orthonormal_rows, project_each])
@pytest.mark.parametrize(("dtype", "digits"), [(torch.float64, 1e-13), (torch.float32, 5e-6)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("rows", "condition"), [(16, 3.0), (520, 2.0)])  # Gram matrices at once, or rows by rows
def test_values_and_gradients(apply, dtype, digits, scale, rows, condition):
    raw = (scale * matrix(rows, rows + 80, condition, dtype)).requires_grad_()
    x = torch.randn(7, rows + 80, dtype=dtype, requires_grad=True)
    assert _factor(raw.detach()) is not None
    y = apply(x, raw)
    target = torch.randn(y.shape, dtype=torch.float64)
    found = torch.autograd.grad((y.double().sin() * target).sum(), [x, raw])
    exact = [t.detach().double().requires_grad_() for t in (x, raw)]
    # The definition itself, differentiated by torch in float64.
    lower = torch.linalg.cholesky(exact[1] @ exact[1].mT)
    orthonormal = torch.linalg.solve_triangular(lower, exact[1], upper=False)
    expected = exact[0] @ orthonormal.mT
    expected = expected @ orthonormal if apply is project_each else expected
    right = torch.autograd.grad((expected.sin() * target).sum(), exact)
    for ours, exactly in zip([y, *found], [expected, *right], strict=True):
        assert (ours - exactly).norm() <= digits * exactly.norm()


@pytest.mark.parametrize("apply", [apply_orthonormal_rows, project_each])
def test_second_derivatives(apply):
    raw, x = matrix(3, 12, 3.0).requires_grad_(), torch.randn(2, 12, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(apply, (x, raw))
    torch.autograd.gradgradcheck(apply, (x, raw))


def test_derivatives_that_are_not_asked_for():
    raw, x = matrix(3, 12, 3.0), torch.randn(2, 12, dtype=torch.float64)
    upper = _factor(raw)
    grad = torch.randn(2, 3, dtype=torch.float64)
    y, saved = _Applied.compute(x, raw, upper)
    grad_x, grad_raw, _ = _Applied.adjoint((x, raw, upper), saved, (True, False, False), grad)
    assert grad_raw is None
    torch.testing.assert_close(grad_x, grad @ cholesky(raw))
    assert _Applied.adjoint((x, raw, upper), saved, (False, True, False), grad)[0] is None
    projection = (x.mT[None], raw[None], inverse_gram(raw[None]))
    y, saved = _Projected.compute(*projection)
    grad_x, grad_raw, _ = _Projected.adjoint(projection, saved, (True, False, False), y)
    assert grad_raw is None
    torch.testing.assert_close(grad_x, y)


@pytest.mark.parametrize("bad", ["ill-conditioned", "huge", "tiny"])
def test_what_one_pass_is_not_enough_for(bad):
    raw = {"ill-conditioned": matrix(16, 96, 1e3, torch.float32)}.get(bad, matrix(16, 96, 2.0, torch.float32))
    raw = raw * {"huge": 1e25, "tiny": 1e-25}.get(bad, 1.0)
    x = torch.randn(7, 96)
    assert _factor(raw) is None and inverse_gram(raw[None]) is None
    torch.testing.assert_close(apply_orthonormal_rows(x, raw), F.linear(x, cholesky(raw)), rtol=0, atol=0)


def wide_layer(**options):
    layer = OrthoLinear(1024, 64, **options)
    with torch.no_grad():
        layer.parametrizations.weight.original.add_(0.01 * torch.randn(64, 1024))
        layer.bias.normal_()
    return layer


@pytest.fixture
def applied(monkeypatch):
    calls, compute = [], _Applied.compute
    monkeypatch.setattr(_Applied, "compute", staticmethod(lambda *args: calls.append(1) or compute(*args)))
    return calls


@pytest.mark.parametrize("shape", [(1024,), (5, 1024), (2, 3, 1024), (0, 1024)])
@pytest.mark.parametrize("lipschitz", [1.0, 2.5])
def test_wide_layers_in_training(applied, shape, lipschitz):
    layer = wide_layer(lipschitz=lipschitz)
    x = torch.randn(shape, requires_grad=True)
    y = layer(x)
    assert applied == [1]
    torch.testing.assert_close(y, F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


def test_layers_as_operators_before_and_after_steps(applied):
    layer = wide_layer()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(5):
        rows = torch.cat([layer(part) - layer.bias for part in torch.eye(1024).chunk(8)])
        assert (torch.linalg.svdvals(rows.detach().double()) - 1).abs().max() <= 1e-5
        optimizer.zero_grad()
        layer(torch.randn(8, 1024)).sin().sum().backward()
        optimizer.step()
    assert len(applied) == 45


def test_when_the_weight_is_applied(applied):
    layer, x = wide_layer(), torch.randn(5, 1024)
    layer(torch.randn(300, 1024))  # a batch of which the products cost more than the weight
    with build_once(layer):
        layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with parametrize.cached():
        layer(x)
    handle = layer.parametrizations.weight[0].kernel.orthogonalize.register_forward_hook(lambda m, a, y: -y)
    flipped = layer(x) - layer.bias
    handle.remove()
    layer.eval()
    with torch.no_grad():
        torch.testing.assert_close(layer(x) - layer.bias, -flipped, rtol=1e-5, atol=1e-5)
    layer.train()(x)
    assert applied == [1]
    wide_layer(dtype=torch.bfloat16)(x.bfloat16())
    OrthoLinear(1024, 512)(x)
    assert applied == [1]


def test_results_may_be_written_to(applied):
    """By activations in place, say: what the derivative needs is not the result itself."""
    layer, x = OrthoLinear(1024, 64, bias=False), torch.randn(5, 1024)
    raw = layer.parametrizations.weight.original
    found = torch.autograd.grad(layer(x).relu_().sum(), raw)
    assert applied
    with parametrize.cached():
        torch.testing.assert_close(found, torch.autograd.grad(layer(x).relu().sum(), raw), rtol=1e-4, atol=1e-5)


def test_errors_are_those_of_torch(applied):
    layer = wide_layer()
    for x in (torch.randn(3, 5), torch.randn(3, 1024).double()):
        with pytest.raises(RuntimeError):
            layer(x)
    assert not applied


def test_transforms_and_compilers():
    layer, x = wide_layer().double(), torch.randn(5, 1024).double()
    expected = layer(x)
    torch.testing.assert_close(torch.func.vmap(layer)(x), expected)
    torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), expected)
    parameters = dict(layer.named_parameters())
    loss = lambda p: torch.func.functional_call(layer, p, (x,)).sin().sum()  # noqa: E731
    name = "parametrizations.weight.original"
    found = torch.func.grad(loss)(parameters)[name]
    layer(x).sin().sum().backward()
    torch.testing.assert_close(found, layer.parametrizations.weight.original.grad)
