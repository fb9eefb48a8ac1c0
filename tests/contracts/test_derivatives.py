"""Derivatives of every layer with respect to its parameters: first in float32, second in every way torch has."""

import copy

import pytest
import torch
from torch.autograd import forward_ad, functional
from torch.func import functional_call, grad, jvp, vjp
from torch.utils.checkpoint import checkpoint

from tests.contracts.test_contracts import LAYERS as ALL
from tests.contracts.test_contracts import make
from tests.layers.conv.executions import count_in_turn

# The gradient of a straight-through layer is that of no function, so that it has no second derivative.
LAYERS = [name for name in ALL if "PASS_THROUGH" not in name]
IN_TURN = ["AOC", "AOC-3d", "AOC-grouped-zeros", "BCOP"]
# The sixth root of rounding: 1e-5 balances it against the fourth-order error of the differences.
STEP = 1e-5


def _backward_twice(loss, p, v):
    p = p.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(p), p, create_graph=True)
    return torch.autograd.grad(g, p, v)[0]


def _batched(loss, p, v):
    p = p.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(p), p, create_graph=True)
    return torch.autograd.grad(g, p, torch.stack([v, -v]), is_grads_batched=True)[0][0]


def _accumulated(loss, p, v):
    p = p.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(p), p, create_graph=True)
    (g * v).sum().backward()
    return p.grad


def _dual_numbers(loss, p, v):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(p.clone().requires_grad_(), v)
        (g,) = torch.autograd.grad(loss(dual), dual)
        return forward_ad.unpack_dual(g).tangent


def _forward_twice(loss, p, v):
    """Only gives vᵀHv: by polarization with a second direction it would give all."""
    return jvp(lambda q: jvp(loss, (q,), (v,))[1], (p,), (v,))[1]


WAYS = {
    "autograd.grad twice": _backward_twice,
    "autograd.grad in batches": _batched,
    "grad, then backward": _accumulated,
    "functional.hvp": lambda loss, p, v: functional.hvp(loss, p, v)[1],
    "functional.vhp": lambda loss, p, v: functional.vhp(loss, p, v)[1],
    "func: reverse over reverse": lambda loss, p, v: vjp(grad(loss), p)[1](v)[0],
    "func: forward over reverse": lambda loss, p, v: jvp(grad(loss), (p,), (v,))[1],
    "func: reverse over forward": lambda loss, p, v: grad(lambda q: jvp(loss, (q,), (v,))[1])(p),
    "func: forward over forward": _forward_twice,
    "dual numbers": _dual_numbers,
}


def problem(name):
    """A loss of the vector of all parameters, a point away from the start, and a direction."""
    layer, x = make(name, dtype=torch.float64)
    x = x[:1].double()
    shapes = {key: value.shape for key, value in layer.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]

    def loss(p):
        parts = zip(shapes.items(), p.split(sizes), strict=True)
        y = functional_call(layer, {key: part.view(shape) for (key, shape), part in parts}, (x,))
        return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y) + y.sin()).sum()

    p = torch.cat([value.detach().flatten() for value in layer.parameters()])
    return loss, p + 0.1 * torch.randn_like(p), torch.nn.functional.normalize(torch.randn_like(p), dim=0)


def differences(loss, p, v):
    """Central differences of the gradient, of fourth order."""

    def slope(h):
        return (grad_at(p + h * v) - grad_at(p - h * v)) / (2 * h)

    def grad_at(q):
        q = q.clone().requires_grad_()
        return torch.autograd.grad(loss(q), q)[0]

    return (4 * slope(STEP) - slope(2 * STEP)) / 3


def check(loss, p, v):
    expected = differences(loss, p, v)
    for way, product in WAYS.items():
        result = product(loss, p, v)
        target = expected if result.dim() else (expected * v).sum()
        error = (result - target).norm() / expected.norm()
        assert error <= 1e-6, f"{way}: {error:.1e}"


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
def test_second_derivatives(name):
    check(*problem(name))


@pytest.mark.parametrize("name", IN_TURN)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
def test_second_derivatives_of_factors_in_turn(name, monkeypatch):
    applied = count_in_turn(monkeypatch, pixels=10**6)
    check(*problem(name))
    assert applied


@pytest.mark.parametrize("name", LAYERS)
def test_batches_of_gradients(name):
    """As vectorized Jacobians and Hessians of `torch.autograd.functional` take them."""
    loss, p, _ = problem(name)
    p.requires_grad_()
    values = torch.stack([loss(p), loss(p).sin()])
    singly = [torch.autograd.grad(value, p, retain_graph=True)[0] for value in values]
    (together,) = torch.autograd.grad(values, p, torch.eye(2).double(), is_grads_batched=True)
    torch.testing.assert_close(together, torch.stack(singly), rtol=1e-9, atol=1e-11)


def _raw_gradients(layer, direction):
    raw = list(layer.parametrizations.weight.parameters())
    gradients = torch.autograd.grad((layer.weight * direction.to(layer.weight.dtype)).sum(), raw)
    return torch.cat([g.double().flatten() for g in gradients])


# One pass of Cholesky is inexact by design.
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "OrthoLinear-CHOLESKY"])
def test_gradients_in_float32(name):
    """Against float64, where layers start and as far away as 200 steps of Adam take them."""
    layer, _ = make(name)
    optimizer = torch.optim.Adam(layer.parametrizations.weight.parameters(), lr=0.05)
    direction = torch.randn_like(layer.weight)
    for steps in (0, 40):
        for _ in range(steps):
            optimizer.zero_grad()
            (layer.weight * direction).sum().backward()
            optimizer.step()
        other = torch.randn(layer.weight.shape, dtype=torch.float64)
        expected = _raw_gradients(copy.deepcopy(layer).double(), other)
        assert (_raw_gradients(layer, other) - expected).norm() <= 1e-4 * expected.norm()


def _derivatives(layer, inside, evaluate):
    """First and second derivatives of a loss of `evaluate(layer)` under autocast; taken inside it, or afterwards."""
    raw = list(layer.parametrizations.weight.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = evaluate(layer).flatten()
        with torch.autocast("cpu", enabled=inside):
            first = torch.autograd.grad((value * torch.linspace(-1, 1, len(value))).sin().sum(), raw, create_graph=True)
            along = sum((g * torch.linspace(-1, 1, g.numel()).view_as(g)).sum() for g in first)
            second = torch.autograd.grad(along, raw, allow_unused=True, materialize_grads=True)
    return [*first, *second]


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_of_weights_that_are_taken_inside_autocast(name):
    layer, _ = make(name)
    inside, outside = (_derivatives(layer, inside, lambda layer: layer.weight) for inside in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


@pytest.mark.parametrize("name", ["OrthoLinear-EXP", "AOC", "SOC", "SLL-AOC"])
def test_activation_checkpoints_under_autocast(name):
    layer, x = make(name)
    plain, recomputed = (
        _derivatives(layer, False, evaluate)
        for evaluate in (lambda layer: layer(x), lambda layer: checkpoint(layer, x, use_reentrant=False))
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, recomputed, strict=True))
