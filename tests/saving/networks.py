"""Networks to save, and what must be the same when they are loaded."""

import torch

from orthogonium.models import create_model

OPTIONS = {"widths": (4, 8), "hidden": (8,), "norm": "batch-centering"}


def network(**options):
    return create_model("aocnet_tiny", (1, 8, 8), 5, **{**OPTIONS, **options})


def stepped(model, shape=(1, 8, 8)):
    """After a step of training and a call in eval, which keep things on the way."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.train()(torch.rand(3, *shape)).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        model.eval()(torch.rand(2, *shape))
    return model


def assert_same(model, loaded, shape=(1, 8, 8)):
    x = torch.rand(3, *shape).to(next(model.parameters()).dtype)
    with torch.no_grad():
        assert torch.equal(model.eval()(x), loaded(x))
    state, other = model.state_dict(), loaded.state_dict()
    assert list(state) == list(other) and all(torch.equal(state[k], other[k]) for k in state)
    assert str(model) == str(loaded) and not loaded.training
