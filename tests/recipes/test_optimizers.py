import pytest
import torch
from torch import nn

from orthogonium.layers import PositionalBias
from orthogonium.recipes.optimizers import create_optimizer, set_learning_rate
from orthogonium.training import OPTIMIZERS

DEFAULTS = {"lr": 0.1, "weight_decay": 0.0, "decay_biases": False, "options": {}, "fused": True}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_descends(name, fused):
    layer = nn.Linear(3, 2)
    x, y = torch.randn(16, 3), torch.randn(16, 2)
    optimizer = create_optimizer(name, layer.named_parameters(), **{**DEFAULTS, "lr": 0.01, "fused": fused})
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("decay_biases", [True, False])
def test_vectors_are_decayed_only_if_asked(decay_biases):
    layer = nn.Linear(3, 2)
    before = [p.detach().clone() for p in layer.parameters()]
    options = {**DEFAULTS, "weight_decay": 0.5, "decay_biases": decay_biases, "options": {"momentum": 0.0}}
    optimizer = create_optimizer("sgd", layer.named_parameters(), **options)
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(layer.weight, 0.95 * before[0])
    torch.testing.assert_close(layer.bias, (0.95 if decay_biases else 1.0) * before[1])


def test_a_positional_bias_is_no_matrix():
    layer = nn.Sequential(PositionalBias((2, 3, 3)), nn.Conv2d(2, 4, 3))
    groups = create_optimizer("sgd", layer.named_parameters(), **{**DEFAULTS, "weight_decay": 0.5}).param_groups
    assert [(g["weight_decay"], [p.dim() for p in g["params"]]) for g in groups] == [(0.5, [4]), (0.0, [3, 1])]


def test_frozen_parameters_are_left_out():
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    optimizer = create_optimizer("adam", layer.named_parameters(), **DEFAULTS)
    assert [p is layer.bias for g in optimizer.param_groups for p in g["params"]] == [True]


def test_the_rate_is_a_factor_of_the_peak():
    optimizer = create_optimizer("adam", nn.Linear(3, 2).named_parameters(), **DEFAULTS)
    for factor in (0.5, 0.25):
        set_learning_rate(optimizer, factor)
        assert [g["lr"] for g in optimizer.param_groups] == [0.1 * factor] * 2
