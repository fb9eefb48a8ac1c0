"""Whatever passes run inside `build_once`, gradients are those of passes without it."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from orthogonium import build_once
from orthogonium.layers import OrthoLinear
from tests.building.network import Network, raw_parameters
from tests.building.passes import (
    accumulate,
    assert_once_is_plain,
    assert_same_gradients,
    gradients,
    loss_of,
    move,
    plain_gradients,
)


def test_a_network(model, inputs):
    assert_once_is_plain(model, inputs, 1e-12)


def test_it_ends_as_it_began(model, inputs):
    run = torch.autograd._engine_run_backward
    before = model(inputs[0])
    with build_once(model):
        assert torch.autograd._engine_run_backward is not run
        accumulate(model, inputs)
        assert all(p.grad is None for p in raw_parameters(model))
    assert torch.autograd._engine_run_backward is run
    assert all(m.supply is None for m in model.modules() if hasattr(m, "supply"))
    model.zero_grad()
    torch.testing.assert_close(model(inputs[0]), before)
    expected = plain_gradients(model, inputs)
    accumulate(model, inputs)
    assert_same_gradients(gradients(model), expected, 1e-14)


def test_an_exception_leaves_gradients_as_they_were(model, inputs):
    accumulate(model, inputs[:1])
    before = {p: (p.grad, p.grad.clone()) for p in raw_parameters(model)}
    with pytest.raises(RuntimeError, match="inside"), build_once(model):
        accumulate(model, inputs)
        raise RuntimeError("inside")
    for p, (grad, values) in before.items():
        assert p.grad is grad and torch.equal(grad, values)
    assert all(m.supply is None for m in model.modules() if hasattr(m, "supply"))
    assert torch.autograd.grad.__module__ == "torch.autograd" and not hasattr(torch.autograd.grad, "__wrapped__")


def test_several_losses_and_retained_graphs(model, inputs):
    def run(model):
        y = model(inputs[0])
        y.square().sum().backward(retain_graph=True)
        y.sin().sum().backward()
        (model(inputs[1]) - model(inputs[2])).norm().backward()

    plain = deepcopy(model)
    run(plain)
    with build_once(model):
        run(model)
    assert_same_gradients(gradients(model), gradients(plain), 1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints(model, inputs, reentrant):
    expected = plain_gradients(model, inputs)
    with build_once(model):
        for x in inputs:
            x = x.clone().requires_grad_()
            loss_of(lambda x: checkpoint(model, x, use_reentrant=reentrant), x).backward()
    assert_same_gradients(gradients(model), expected, 1e-12)


def test_gradient_penalties(model, inputs):
    """Second derivatives with respect to inputs: both orders add up on the weights."""

    def run(model):
        for x in inputs:
            x = x.clone().requires_grad_()
            (g,) = torch.autograd.grad(loss_of(model, x), x, create_graph=True)
            (loss_of(model, x) + (g.norm() - 1).square()).backward()

    plain = deepcopy(model)
    run(plain)
    with build_once(model):
        run(model)
    assert_same_gradients(gradients(model), gradients(plain), 1e-12)


def test_autocast_and_gradient_scaler(inputs):
    model = move(Network())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def run(model):
        for x in inputs:
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, x.float())
            scaler.scale(loss).backward()

    plain = deepcopy(model)
    run(plain)
    with build_once(model):
        run(model)
    # Passes in bfloat16 are the same in both; what differs is the sum of their gradients, in float32.
    assert_same_gradients(gradients(model), gradients(plain), 1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)


def test_the_end_of_a_block_inside_autocast(inputs):
    model = move(Network())
    expected = plain_gradients(model, [x.float() for x in inputs])
    leave = build_once(model)
    leave.__enter__()
    accumulate(model, [x.float() for x in inputs])
    with torch.autocast("cpu", torch.bfloat16):
        leave.__exit__(None, None, None)
    assert_same_gradients(gradients(model), expected, 1e-5)


def test_infinite_gradients_arrive(model, inputs):
    with build_once(model):
        (loss_of(model, inputs[0]) * torch.inf).backward()
    assert not any(p.grad.isfinite().all() for p in raw_parameters(model) if p.numel())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models(model, inputs, backend):
    torch.compiler.reset()
    expected = plain_gradients(model, inputs)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):  # weights of later blocks are other tensors
        model.zero_grad()
        with build_once(model):
            accumulate(compiled, inputs)
        assert_same_gradients(gradients(model), expected, 1e-12)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.01)
        expected = plain_gradients(model, inputs)
    model.zero_grad()
    accumulate(compiled, inputs)  # and outside
    assert_same_gradients(gradients(model), expected, 1e-12)


def test_exported_inside(model, inputs):
    with build_once(model):
        exported = torch.export.export(model, (inputs[0],)).module()
    torch.testing.assert_close(exported(inputs[0]), model(inputs[0]))


def test_passes_without_gradients(model, inputs):
    expected = plain_gradients(model, inputs)
    with build_once(model):
        accumulate(model, inputs[:2])
        model.eval()
        with torch.no_grad():
            a = model(inputs[0])
        with torch.inference_mode():
            b = model(inputs[0])
        accumulate(model.train(), inputs[2:])
    torch.testing.assert_close(a, b)
    assert_same_gradients(gradients(model), expected, 1e-12)


@pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode])
def test_blocks_that_begin_without_gradients(model, inputs, outside):
    expected = plain_gradients(model, inputs)
    leave = build_once(model)
    with outside():
        leave.__enter__()
    accumulate(model, inputs)
    leave.__exit__(None, None, None)
    assert_same_gradients(gradients(model), expected, 1e-12)


def test_models_without_constrained_layers():
    model = nn.Linear(3, 3)
    with build_once(model):
        model(torch.randn(2, 3)).sum().backward()
    assert model.weight.grad is not None


def test_half_precision_parameters():
    model = nn.Sequential(OrthoLinear(8, 8), OrthoLinear(8, 8)).to(torch.bfloat16)
    inputs = [torch.randn(4, 8).to(torch.bfloat16)]
    assert_once_is_plain(model, inputs, 1e-2)
