"""Hooks, other parametrizations, parts, copies and replicas of a network inside `build_once`."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from orthogonium import build_once
from tests.building.network import raw_parameters
from tests.building.passes import (
    accumulate,
    assert_once_is_plain,
    assert_same_gradients,
    gradients,
    loss_of,
    plain_gradients,
)


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


def test_pruned_raw_parameters(model, inputs):
    chain = model.recurrent.parametrizations.weight
    other = deepcopy(model)
    prune.random_unstructured(chain, "original", amount=10)
    with torch.no_grad():
        other.recurrent.parametrizations.weight.original.mul_(chain.original_mask)
    with build_once(model):
        torch.testing.assert_close(model(inputs[0]), other(inputs[0]), rtol=1e-12, atol=1e-12)
        loss_of(model, inputs[0]).backward()
    assert chain.original_orig.grad is not None


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
        chain.original = raw * 1.0
        assert chain[0].supplied((chain.original,)) is None
        chains.weight, replica.parametrizations = chain, chains
        replica.bias = model.recurrent.bias * 1.0
        x = torch.randn(3, 36).double()
        torch.testing.assert_close(replica(x), model.recurrent(x))
        replica(x).square().sum().backward()
        assert raw.grad is not None


def test_a_parameter_that_was_exchanged(model, inputs):
    with build_once(model):
        model.recurrent.parametrizations.weight.original = nn.Parameter(torch.randn(36, 36).double())
        accumulate(model, inputs)
    assert model.recurrent.parametrizations.weight.original.grad is not None
