"""Derivatives of the inverses of `x + fn(x)`: those of the implicit function, however few steps its value took."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import orthogonium
from orthogonium.errors import DerivativeError, ParameterError
from orthogonium.layers import MaxMin, OrthoLinear, freeze, iResidual
from tests.jacobians import assert_same_in_both_directions, jacobians

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # torch's own, of forward derivatives
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # its compiler looks at every tensor
]
PRECISE = {"tolerance": 1e-13, "lipschitz": 0.7}


def block(activation=nn.Tanh, dtype=torch.float64, **options):
    fn = nn.Sequential(OrthoLinear(4, 4, dtype=dtype), activation(), OrthoLinear(4, 4, dtype=dtype))
    return iResidual(fn, **({**PRECISE, **options} if dtype == torch.float64 else {"lipschitz": 0.7, **options}))


def as_function(module):
    """The inverse as a function of outputs and parameters, and these."""
    names, values = zip(*module.inverse().named_parameters(), strict=True)

    def undo(y, *parameters):
        return functional_call(module.inverse(), dict(zip(names, parameters, strict=True)), (y,))

    return undo, tuple(p.detach().clone().requires_grad_() for p in values)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-11)])
@pytest.mark.parametrize("activation", [nn.Tanh, MaxMin])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_gradients(dtype, tolerance, activation, scale):
    """At 0, with zero biases, the iteration ends at once."""
    module = block(activation, dtype)
    y = scale * torch.randn(3, 4, dtype=dtype)
    x = module.undo(y).detach()
    forth, back = jacobians(module, x), jacobians(module.inverse(), y)
    torch.testing.assert_close(back @ forth, torch.eye(4).double().expand(3, 4, 4), rtol=0, atol=tolerance)
    upstream = torch.randn(3, 4, dtype=dtype)
    found = torch.autograd.grad((module.inverse()(y) * upstream).sum(), list(module.parameters()))
    u = torch.linalg.solve(forth.mT, upstream.double()[..., None])[..., 0].to(dtype)
    expected = torch.autograd.grad((-module.branch(x) * u).sum(), list(module.parameters()))
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= tolerance * (b.norm() + 1)


def test_values_are_those_without_gradients():
    module = block(dtype=torch.float32)
    y = torch.randn(3, 4)
    found, error = module.solve(y)
    with torch.no_grad():
        plain, bound = module.solve(y)
    assert torch.equal(found, plain) and error == bound and found.requires_grad
    module.requires_grad_(False)
    assert not module.undo(y).requires_grad


@pytest.mark.parametrize("activation", [nn.Tanh, MaxMin])
def test_against_differences(activation):
    module = block(activation)
    undo, parameters = as_function(module)
    y = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    fast = {"fast_mode": True}
    assert torch.autograd.gradcheck(undo, (y, *parameters), **fast)
    assert_same_in_both_directions(undo, y.detach(), *(p.detach() for p in parameters))

    def slope(y, *parameters):
        return torch.autograd.grad(undo(y, *parameters).sin().sum(), y, create_graph=True)[0]

    assert torch.autograd.gradcheck(slope, (y, *parameters), **fast)


def test_second_derivatives_by_parameters():
    module = block()
    undo, parameters = as_function(module)
    y = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    for second in (
        lambda: torch.autograd.grad(undo(y, *parameters).sum(), parameters[0], create_graph=True),
        lambda: undo(y, *parameters).sum().backward(create_graph=True),
        lambda: torch.autograd.gradgradcheck(
            lambda y: torch.autograd.grad(undo(y, *parameters).sin().sum(), y, create_graph=True)[0], (y,)
        ),
    ):
        with pytest.raises(DerivativeError, match="torch.func"):
            second()
    bias, others = parameters[0].detach(), [p.detach() for p in parameters[1:]]

    def gradient(bias):
        return torch.func.grad(lambda b: undo(y.detach(), b, *others).sin().sum())(bias)

    hessian, step = torch.func.jacrev(gradient)(bias), 1e-5
    for i, e in enumerate(step * torch.eye(4, dtype=torch.float64)):
        difference = (gradient(bias + e) - gradient(bias - e)) / (2 * step)
        torch.testing.assert_close(hessian[:, i], difference, rtol=0, atol=1e-8)


def test_transforms_and_batches():
    module = block()
    y = torch.randn(3, 2, 4, dtype=torch.float64)
    expected = torch.stack([module.undo(part) for part in y])
    torch.testing.assert_close(torch.func.vmap(module.inverse())(y), expected, rtol=0, atol=1e-12)

    def total(v):
        return module.undo(v).pow(3).sum()

    expected = torch.autograd.functional.hessian(total, y[0])
    torch.testing.assert_close(torch.func.hessian(total)(y[0]), expected)
    torch.testing.assert_close(torch.autograd.functional.hessian(total, y[0], vectorize=True), expected)
    with pytest.raises(ParameterError, match=r"inverse\(\)"):
        torch.func.vmap(lambda v: module.solve(v)[0])(y)
    slow = block(lipschitz=0.99)
    with pytest.raises(ParameterError, match="more iterations"):
        torch.func.vmap(slow.inverse())(y)


def gradients(module, run):
    module.zero_grad()
    run(module.inverse()).sin().sum().backward()
    return [p.grad.clone() for p in module.parameters()]


@pytest.mark.parametrize("way", ["build_once", "checkpoint", "reentrant checkpoint", "compile"])
def test_other_ways_to_run_it(way):
    module = block()
    y = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    expected = gradients(module, lambda undoing: undoing(y))
    if way == "build_once":
        module.zero_grad()
        with orthogonium.build_once(module):
            module.undo(y).sin().sum().backward()
        found = [p.grad for p in module.parameters()]
    elif way == "compile":
        found = gradients(module, lambda undoing: torch.compile(undoing, backend="aot_eager")(y))
    else:
        found = gradients(module, lambda undoing: checkpoint(undoing, y, use_reentrant="reentrant" in way))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_traces_hold_for_other_inputs():
    module = freeze(block(dtype=torch.float32).inverse())
    graph = torch.jit.trace(module, torch.zeros(1, 4))
    y = 5 * torch.randn(3, 4)
    torch.testing.assert_close(graph(y), module(y), rtol=0, atol=1e-5)


def test_the_bound_of_an_inverse():
    module = iResidual(OrthoLinear(3, 3), lipschitz=0.5).eval()
    found = orthogonium.lipschitz_bound(module.inverse(), (3,)).value
    assert found == pytest.approx(2, rel=1e-4) and module.inverse().guarantee.constant == 2


def test_a_wrong_constant_is_refuted_by_gradients():
    """Where the value ends at once, it has seen nothing of the slope."""
    module = iResidual(nn.Linear(3, 3, bias=False), lipschitz=0.5, constant=1e-3)
    with torch.no_grad():
        module.fn.weight.copy_(0.75 * torch.eye(3))
    found = module.undo(torch.zeros(1, 3, requires_grad=True))
    with pytest.raises(ParameterError, match="no contraction"):
        found.sum().backward()


def test_copies_keep_their_gradients():
    module = block()
    twin = copy.deepcopy(module)
    y = torch.randn(2, 4, dtype=torch.float64)
    for a, b in zip(*(gradients(m, lambda undoing: undoing(y)) for m in (module, twin)), strict=True):
        assert torch.equal(a, b)
