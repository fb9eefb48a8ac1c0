"""Everything that may happen inside of `build_once`: it works as without the block, or is refused."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from orthogonium import build_once
from orthogonium.errors import DerivativeError, ParameterError
from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
from tests.building.passes import (
    accumulate,
    assert_once_is_plain,
    assert_same_gradients,
    gradients,
    loss_of,
    move,
    plain_gradients,
)


class Network(nn.Module):
    """Convolutions, dense layers and one that is applied many times."""

    def __init__(self):
        super().__init__()
        self.stem = AdaptiveOrthoConv2d(3, 4, 3, stride=2)
        self.block = nn.Sequential(AdaptiveOrthoConv2d(4, 4, 3), nn.ReLU(), AdaptiveOrthoConv2d(4, 4, 3))
        self.recurrent = OrthoLinear(36, 36)
        self.head = nn.Linear(36, 5)

    def features(self, x):
        return self.block(self.stem(x)).flatten(1)

    def forward(self, x):
        x = self.features(x)
        for _ in range(3):
            x = self.recurrent(x).relu()
        return self.head(x)


@pytest.fixture
def model():
    return move(Network().double())


@pytest.fixture
def inputs():
    return [torch.randn(2, 3, 6, 6).double() for _ in range(4)]


def raw_parameters(model):
    return [p for name, p in model.named_parameters() if "parametrizations" in name]


def test_a_network(model, inputs):
    assert_once_is_plain(model, inputs, 1e-12)


def test_it_ends_as_it_began(model, inputs):
    grad, backward = torch.autograd.grad, torch.autograd.backward
    before = model(inputs[0])
    with build_once(model):
        assert torch.autograd.grad is not grad
        accumulate(model, inputs)
        assert all(p.grad is None for p in raw_parameters(model))
    assert torch.autograd.grad is grad and torch.autograd.backward is backward
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
    torch._dynamo.reset()
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


def test_hooks_of_parameters_are_called_once(model, inputs):
    calls = []
    raw = raw_parameters(model)[0]
    raw.register_hook(lambda g: calls.append("gradient") or 2 * g)
    raw.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
    expected = plain_gradients(model, inputs)  # a copy has no hooks
    with build_once(model):
        accumulate(model, inputs)
        assert not calls
    assert calls == ["gradient", "accumulated"]
    ours = gradients(model)
    name = next(name for name, p in model.named_parameters() if p is raw)
    ours[name] = ours[name] / 2
    assert_same_gradients(ours, expected, 1e-12)


def test_hooks_of_modules_and_of_constraints(model, inputs):
    model.stem.register_forward_hook(lambda m, x, y: 2 * y)
    model.recurrent.parametrizations.weight[0].register_forward_hook(lambda m, x, y: y / 2)
    assert_once_is_plain(model, inputs, 1e-12)


class _Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.full((), 0.7, dtype=torch.float64))

    def forward(self, weight):
        return self.factor * weight


def test_a_second_parametrization(model, inputs):
    parametrize.register_parametrization(model.recurrent, "weight", _Scale())
    parametrize.register_parametrization(model.stem, "bias", _Scale())
    assert_once_is_plain(model, inputs, 1e-12)


def test_cached_inside(model, inputs):
    expected = plain_gradients(model, inputs)
    with build_once(model):
        for x in inputs:
            with parametrize.cached():
                loss_of(model, x).backward()
    assert_same_gradients(gradients(model), expected, 1e-12)


def test_cached_outside(model, inputs):
    expected = plain_gradients(model, inputs[:1])
    with parametrize.cached(), build_once(model):
        accumulate(model, inputs[:1])
    assert_same_gradients(gradients(model), expected, 1e-12)


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


def test_nested_blocks_and_parts(model, inputs):
    expected = plain_gradients(model, inputs)
    with build_once(model.block), build_once(model):
        accumulate(model, inputs[:1])
        with build_once(model):
            accumulate(model, inputs[1:])
        assert model.stem.parametrizations.weight.original0.grad is None
    assert_same_gradients(gradients(model), expected, 1e-12)


def test_other_parameters_than_those_of_the_model(model, inputs):
    """`functional_call`, copies and replicas are built from what they are given."""
    others = {name: 0.9 * p.detach() + 0.1 for name, p in model.named_parameters()}
    expected = torch.func.functional_call(model, others, inputs[0])
    with build_once(model):
        torch.testing.assert_close(torch.func.functional_call(model, others, inputs[0]), expected)
        copy = deepcopy(model)
        with torch.no_grad():
            for p in copy.parameters():
                p.copy_(0.9 * p + 0.1)
        torch.testing.assert_close(copy(inputs[0]), expected)
        loss_of(copy, inputs[0]).backward()
        assert all(p.grad is not None for p in copy.parameters())
        (found,) = torch.autograd.grad(loss_of(model, inputs[0]), [model.head.weight])
    assert found.shape == model.head.weight.shape


def test_replicas_of_data_parallel(model, inputs):
    """As `nn.DataParallel` makes them: parameters are tensors computed from those of the model."""
    with build_once(model):
        replica = model.recurrent._replicate_for_data_parallel()
        chains = replica.parametrizations._replicate_for_data_parallel()
        chain = chains.weight._replicate_for_data_parallel()
        raw = model.recurrent.parametrizations.weight.original
        chain._parameters = {"original": raw * 1.0}
        assert chain[0].supplied((chain._parameters["original"],)) is None
        chain[0](chain._parameters["original"]).square().sum().backward()
        assert raw.grad is not None


def test_a_parameter_that_was_exchanged(model, inputs):
    with build_once(model):
        model.recurrent.parametrizations.weight.original = nn.Parameter(torch.randn(36, 36).double())
        accumulate(model, inputs)
    assert model.recurrent.parametrizations.weight.original.grad is not None


@pytest.mark.parametrize(
    "ask",
    [
        lambda loss, raw: torch.autograd.grad(loss, raw),
        lambda loss, raw: torch.autograd.grad(loss, raw[0], allow_unused=True),
        lambda loss, raw: torch.autograd.grad(loss, iter(raw), allow_unused=True),
        lambda loss, raw: torch.autograd.grad(loss, torch.autograd.graph.get_gradient_edge(raw[0]), allow_unused=True),
        lambda loss, raw: loss.backward(inputs=raw),
        lambda loss, raw: torch.autograd.backward(loss, inputs=raw),
    ],
)
def test_derivatives_of_raw_parameters_are_refused(model, inputs, ask):
    raw = raw_parameters(model)
    with build_once(model):
        loss = loss_of(model, inputs[0])
        with pytest.raises(DerivativeError, match="layer.weight"):
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
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_inside_are_refused(model, inputs, change):
    with pytest.raises(DerivativeError, match="was changed"), build_once(model):
        CHANGES[change](model)
        model(inputs[0].to(next(model.parameters()).dtype))


@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_the_last_pass_are_refused(model, inputs, change):
    with pytest.raises(DerivativeError, match="was changed"), build_once(model):
        accumulate(model, inputs)
        CHANGES[change](model)


def test_backward_after_the_block_is_refused(model, inputs):
    with build_once(model):
        loss = loss_of(model, inputs[0])
    with pytest.raises(DerivativeError, match="inside of the block"):
        loss.backward()


def test_gradients_that_have_a_graph_are_refused(model, inputs):
    with (
        pytest.warns(UserWarning, match="create_graph"),
        pytest.raises(DerivativeError, match="create_graph"),
        build_once(model),
    ):
        loss_of(model, inputs[0]).backward(create_graph=True)


def test_parameters_without_values_are_refused():
    with pytest.raises(ParameterError, match="materialized"), build_once(OrthoLinear(3, 3, device="meta")):
        pass


def test_models_without_constrained_layers():
    model = nn.Linear(3, 3)
    with build_once(model):
        model(torch.randn(2, 3)).sum().backward()
    assert model.weight.grad is not None


def test_half_precision_parameters():
    model = nn.Sequential(OrthoLinear(8, 8), OrthoLinear(8, 8)).to(torch.bfloat16)
    inputs = [torch.randn(4, 8).to(torch.bfloat16)]
    assert_once_is_plain(model, inputs, 1e-2)
