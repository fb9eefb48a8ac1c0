"""Layers where the host is ahead of the device: nothing may wait for values, and the eval cache goes by versions.

The CPU plays the accelerator: the code is told that looking at values means to wait, and operators that would are
refused.
"""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from orthogonium.kernels import loudest
from orthogonium.layers import OrthoLinear, eval_cache, parametrization
from orthogonium.linalg import evaluation
from orthogonium.losses import EMMALoss
from tests.contracts.test_contracts import layers, make
from tests.contracts.test_eval_cache import (
    _double_data,
    _double_in_place,
    _load,
    _optimize,
    _swap_data,
    assert_noticed,
    count_builds,
)
from tests.layers.test_export import everything

aten = torch.ops.aten
WAITING = {
    *(aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.nonzero, aten.masked_select, aten._unique2),
    aten.lift_fresh,  # values of the host, that a device has to fetch
}


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masked = func.overloadpacket in (aten.index, aten.index_put, aten.index_put_) and any(
            t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1]
        )
        if func.overloadpacket in WAITING or masked:
            raise AssertionError(f"{func} waits for the device.")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def accelerator(monkeypatch):
    for module in (evaluation, eval_cache, parametrization, loudest):
        monkeypatch.setattr(module, "waits", lambda x: True)


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).all()),
        lambda x: torch.equal(x, x + 1),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.tensor([1, 2]),
    ],
)
def test_what_waits_is_refused(look):
    x = torch.randn(3)
    with NoWaiting(), pytest.raises(AssertionError, match="waits"):
        look(x)


def train_step(model, optimizer, x):
    optimizer.zero_grad()
    out = model(x)
    out.square().sum().backward()
    optimizer.step()


@layers
def test_nothing_waits(name):
    layer, x = make(name)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    with NoWaiting():
        train_step(layer, optimizer, x)
        layer.eval()
        for _ in range(2):
            with torch.no_grad():
                layer(x)


def test_nothing_waits_between_constrained_layers():
    model, x = everything(), torch.randn(2, 8, 10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with NoWaiting():
        for _ in range(2):
            train_step(model.train(), optimizer, x)
        with torch.no_grad():
            model.eval()(x)


def test_a_loss_copies_no_number_of_the_host():
    logits, labels = torch.randn(4, 3), torch.arange(4) % 3
    with NoWaiting():  # behind the check of labels, which is for processors
        EMMALoss()._of_index(logits, labels, "global")


def _new_memory(layer):
    layer.to(torch.float64).to(torch.float32)
    _double_in_place(layer)


def _assign(layer):
    edited = {k: v * torch.linspace(0.5, 2, v.numel()).view_as(v) for k, v in layer.state_dict().items()}
    layer.load_state_dict(edited, assign=True)


def _average(layer):
    other = copy.deepcopy(layer)
    _double_data(other)
    averaged = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    averaged.update_parameters(other)
    averaged.update_parameters(other)
    for p, q in zip(layer.parameters(), averaged.parameters(), strict=True):
        p.copy_(q)


def _data_and_eval(layer):
    _double_data(layer)
    layer.eval()


NOTICED = [_double_in_place, _swap_data, _load, _optimize, _new_memory, _assign, _average, _data_and_eval]


@pytest.mark.parametrize("edit", NOTICED)
@pytest.mark.parametrize("name", ["OrthoLinear-DEFAULT", "AOC-strided", "SLL-AOC"])
def test_the_eval_cache_notices(name, edit):
    """The edits that Note [Eval cache] lists."""
    assert_noticed(*make(name), edit)


def test_edits_of_data_are_the_ones_it_does_not_notice():
    layer, x = make("OrthoLinear-DEFAULT")
    layer.eval()
    with torch.no_grad():
        before = layer(x)
        _double_data(layer)
        assert torch.equal(layer(x), before)


def test_a_call_that_wants_gradients_forgets_the_weight():
    """What writes without a new version, as gathered shards do, follows such a call."""
    layer, x = make("OrthoLinear-DEFAULT")
    layer.eval()
    with torch.no_grad():
        before = layer(x)
    layer(x)
    _double_data(layer)
    with torch.no_grad():
        assert not torch.equal(layer(x), before)


@layers
def test_eval_builds_once(name):
    layer, x = make(name)
    layer.eval()
    count = count_builds(layer)
    with torch.no_grad():
        for _ in range(3):
            layer(x)
    with torch.inference_mode():
        layer(x)
    assert len(count) == 1


def test_parameters_made_in_inference_mode_have_no_version():
    with torch.inference_mode():
        layer = nn.Sequential(OrthoLinear(4, 4)).eval()
        x = torch.randn(2, 4)
        before = layer(x)
        torch.nn.init.orthogonal_(layer[0].parametrizations.weight.original)
        assert not torch.equal(layer(x), before)
