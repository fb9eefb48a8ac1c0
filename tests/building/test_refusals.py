"""What would be wrong in silence inside `build_once` is refused."""

import pytest
import torch
from torch import nn

from orthogonium import build_once
from orthogonium.errors import DerivativeError, ParameterError
from orthogonium.layers import OrthoLinear
from tests.building.network import Network, raw_parameters
from tests.building.passes import (
    accumulate,
    assert_same_gradients,
    assert_same_in_a_block,
    gradients,
    loss_of,
    move,
    plain_gradients,
)


@pytest.mark.parametrize(
    "ask",
    [
        lambda loss, raw: torch.autograd.grad(loss, raw),
        lambda loss, raw: torch.autograd.grad(loss, raw[0], allow_unused=True),
        lambda loss, raw, grad=torch.autograd.grad: grad(loss, raw, allow_unused=True),
        lambda loss, raw: torch.autograd.grad(
            loss[None], raw, loss.new_ones(3, 1), is_grads_batched=True, allow_unused=True
        ),
        lambda loss, raw: torch.autograd.grad(loss, iter(raw), allow_unused=True),
        lambda loss, raw: torch.autograd.grad(loss, torch.autograd.graph.get_gradient_edge(raw[0]), allow_unused=True),
        lambda loss, raw: loss.backward(inputs=raw),
        lambda loss, raw: torch.autograd.backward(loss, inputs=raw),
        lambda loss, raw, backward=torch.autograd.backward: backward(loss, inputs=raw),
    ],
)
def test_derivatives_of_raw_parameters_are_refused(model, inputs, ask):
    raw = raw_parameters(model)
    with build_once(model):
        loss = loss_of(model, inputs[0])
        with pytest.raises(DerivativeError, match="outside of the block"):
            ask(loss, raw)
        assert torch.autograd.grad(loss, model.recurrent.weight)[0].shape == (36, 36)
    ask(loss_of(model, inputs[0]), raw)


def test_iterators_of_other_tensors_reach_torch(model, inputs):
    with build_once(model):
        assert len(torch.autograd.grad(loss_of(model, inputs[0]), model.head.parameters())) == 2


def test_steps_inside_are_refused(model, inputs):
    other = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with pytest.raises(DerivativeError, match="after the block"), build_once(model):
        accumulate(model, inputs)
        other.step()
        torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_closures_that_contain_the_block(model, inputs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.clone() for p in raw_parameters(model)]

    def closure():
        optimizer.zero_grad()
        with build_once(model):
            accumulate(model, inputs)

    optimizer.step(closure)
    assert not any(torch.equal(p, q) for p, q in zip(before, raw_parameters(model), strict=True))


def _edit(model):
    with torch.no_grad():
        model.recurrent.parametrizations.weight.original.mul_(2)


CHANGES = {
    "edit": _edit,
    "load": lambda model: model.load_state_dict(model.state_dict()),
    "to": lambda model: model.to(torch.float32),
    "data": lambda model: setattr(raw_parameters(model)[0], "data", torch.randn_like(raw_parameters(model)[0])),
    "freeze": lambda model: model.requires_grad_(False),
    "weight": lambda model: model.recurrent.weight.detach().mul_(2),
    "constant": lambda model: setattr(model.recurrent, "lipschitz", 2.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_inside_are_refused(model, inputs, change):
    with pytest.raises(DerivativeError, match="was changed"), build_once(model):
        CHANGES[change](model)
        model(inputs[0].to(next(model.parameters()).dtype))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's, where graphs break
def test_a_constant_that_changes_between_compiled_calls_is_refused(model, inputs):
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(DerivativeError, match="was changed"), build_once(model):
        compiled(inputs[0])
        model.recurrent.lipschitz = 2.0
        compiled(inputs[0])


@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_the_last_pass_are_refused(model, inputs, change):
    with pytest.raises(DerivativeError, match="was changed"), build_once(model):
        accumulate(model, inputs)
        CHANGES[change](model)


def test_options_that_change_inside_are_refused(model, inputs):
    kernel = model.recurrent.parametrizations.weight[0].kernel
    with pytest.raises(DerivativeError, match="was changed"), build_once(model):
        kernel.orthogonalize.stable = False
        accumulate(model, inputs)
    kernel.orthogonalize.stable = True
    with build_once(model):
        model.eval()
        accumulate(model, inputs)


def test_hooks_of_a_weight_are_refused(model, inputs):
    """They would apply to all passes, and without the block to this tensor alone."""
    with pytest.raises(DerivativeError, match="hook on `layer.weight`"), build_once(model):
        model.recurrent.weight.register_hook(lambda grad: 2 * grad)
        accumulate(model, inputs)
    with pytest.raises(DerivativeError, match="hook on `layer.weight`"), build_once(model):
        accumulate(model, inputs)
        model.recurrent.weight.register_hook(lambda grad: 2 * grad)


def test_hooks_of_a_view_of_a_weight(model, inputs):
    def passes(model):
        weight = model.recurrent.weight
        weight = weight.view_as(weight)
        weight.register_hook(lambda grad: 2 * grad)
        weight.sin().sum().backward()
        accumulate(model, inputs)

    assert_same_in_a_block(model, passes, 1e-12)


def test_backward_after_the_block_is_refused(model, inputs):
    with build_once(model):
        loss = loss_of(model, inputs[0])
    with pytest.raises(DerivativeError, match="inside the block"):
        loss.backward()


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")  # torch's own, once in a process
def test_gradients_that_have_a_graph_are_refused(model, inputs):
    with pytest.raises(DerivativeError, match="create_graph"), build_once(model):
        loss_of(model, inputs[0]).backward(create_graph=True)


def test_parameters_without_values_are_refused():
    with pytest.raises(ParameterError, match="materialized"), build_once(OrthoLinear(3, 3, device="meta")):
        pass


@pytest.mark.parametrize("of", ["raw", "weight", "numpy"])
def test_edits_of_data_are_refused(model, inputs, of):
    with pytest.raises(DerivativeError, match="was changed"), build_once(model):
        accumulate(model, inputs)
        if of == "numpy":
            edited = model.recurrent.weight.detach().numpy()
        else:
            edited = {"raw": raw_parameters(model)[-1], "weight": model.recurrent.weight}[of].data
        edited *= 1.001
    assert all(p.grad is None for p in raw_parameters(model))


@pytest.mark.parametrize("of", ["model", "layer", "optimizer"])
@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_between_passes_is_refused(model, inputs, of, to_none):
    owner = {"model": model, "layer": model.recurrent, "optimizer": torch.optim.SGD(model.parameters())}[of]
    expected = plain_gradients(model, inputs)
    accumulate(model, inputs)
    with build_once(model):
        model.zero_grad(set_to_none=True)  # of the step before
        accumulate(model, inputs)
        with pytest.raises(DerivativeError, match="before the first backward"):
            owner.zero_grad(to_none)
        model.head.zero_grad(set_to_none=to_none)  # nothing of the block
        loss_of(model.head, torch.randn(2, 36).double()).backward()
    ours = {name: g for name, g in gradients(model).items() if not name.startswith("head")}
    assert_same_gradients(ours, {name: g for name, g in expected.items() if name in ours}, 1e-12)
    owner.zero_grad(set_to_none=to_none)


def test_unscaling_inside_is_refused(inputs):
    model = move(Network())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(DerivativeError, match="Unscale after"), build_once(model):
        scaler.scale(loss_of(model, inputs[0].float())).backward()
        scaler.unscale_(optimizer)


def test_everything_is_put_back(model):
    before = torch.optim.Optimizer.zero_grad, nn.Module.zero_grad, torch.amp.GradScaler.unscale_
    with build_once(model):
        assert nn.Module.zero_grad is not before[1]
    assert before == (torch.optim.Optimizer.zero_grad, nn.Module.zero_grad, torch.amp.GradScaler.unscale_)
