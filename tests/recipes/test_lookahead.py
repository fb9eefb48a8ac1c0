"""Slow weights by their formula, beside every optimizer, and continued exactly."""

import copy
import io

import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.recipes.lookahead import look_ahead
from orthogonium.training import OPTIMIZERS

X, Y = torch.randn(16, 3), torch.randn(16, 2)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def optimizer_of(name, model):
    factory, options = OPTIMIZERS[name]
    return factory([{"params": [p]} for p in model.parameters()], lr=0.05, **options)


def step(model, optimizer):
    optimizer.zero_grad()
    (model(X) - Y).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_formula(name):
    ours, theirs = network(), network()
    optimizer, plain = look_ahead(optimizer_of(name, ours), 3, 0.25), optimizer_of(name, theirs)
    slow = [p.detach().clone() for p in theirs.parameters()]
    for count in range(1, 11):
        step(ours, optimizer)
        step(theirs, plain)
        if count % 3 == 0:
            with torch.no_grad():
                for p, s in zip(theirs.parameters(), slow, strict=True):
                    s.copy_(0.75 * s + 0.25 * p)
                    p.copy_(s)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("done", [1, 2, 3, 7])
def test_a_saved_state_continues_to_the_same_bits(done):
    model = network()
    optimizer = look_ahead(optimizer_of("adam", model), 3, 0.5)
    for _ in range(done):
        step(model, optimizer)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(model)
    continued = look_ahead(optimizer_of("adam", other), 3, 0.5)
    continued.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(5):
        step(model, optimizer)
        step(other, continued)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_a_parameter_that_joins_later():
    """Its slow weight is what it was before its first step; until then it has no state at all."""
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))
    optimizer = look_ahead(torch.optim.Adam([first, second], lr=0.1), 2, 0.5)
    for count in range(4):
        first.grad = torch.ones(2)
        if count >= 2:
            second.grad = torch.ones(2)
        else:
            assert torch.equal(second, torch.ones(2)) and second not in optimizer.state
        optimizer.step()
    torch.testing.assert_close(second.detach(), torch.full((2,), 0.9))  # half of two steps of 0.1


def test_wrong_numbers():
    optimizer = optimizer_of("sgd", network())
    with pytest.raises(ParameterError, match="lookahead=1.*at least 2"):
        look_ahead(optimizer, 1, 0.5)
    with pytest.raises(ParameterError, match=r"lookahead_share=0"):
        look_ahead(optimizer, 2, 0.0)
