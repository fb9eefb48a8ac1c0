"""Networks that a folder cannot hold are refused, with what is different about them."""

import functools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import orthogonium
from orthogonium.errors import CheckpointError, ExportError
from orthogonium.layers import Abs, AdaptiveOrthoConv2d, AdaptiveSOCConv2d, OrthoLinear, RKOConv2d, spread_constant
from orthogonium.layers.freeze import freeze
from orthogonium.linalg import CHOLESKY_ORTHO_PARAMS
from orthogonium.methods import METHODS, Method, register_method
from orthogonium.models import create_model
from tests.saving.networks import network

# How a network may be changed after it was made, and what is said about it.


def _other_method(model):  # with raw parameters of the same names and shapes
    model.features[0] = RKOConv2d(1, 4, 3, padding="same", padding_mode="circular")


def _other_padding(model):
    model.features[0].padding_mode = "zeros"


def _other_border(model):
    model.features[0].border = AdaptiveOrthoConv2d(1, 4, 3, padding="same", padding_mode="zeros").border


def _swapped_activation(model):
    model.features[2] = Abs()


def _new_head(model):
    model.head = OrthoLinear(8, 5, bias=False)


def _other_constant(model):
    model.features[0].lipschitz = 2.0


def _spread(model):
    spread_constant(model, 3.0)


def _hook(model):
    model.head.register_forward_hook(lambda module, args, output: 2 * output)


def _own_forward(model):
    model.head.forward = functools.partial(nn.functional.linear, weight=torch.zeros(5, 8))


def _own_class(model):
    model.pool.__class__ = nn.Identity


def _second_parametrization(model):
    parametrizations.weight_norm(model.head, "bias", dim=None)


def _tied_modules(model):
    model.dense[0] = model.head


def _tied_parameters(model):
    model.features[4].bias = model.dense[0].bias


def _overlapping_memory(model):
    memory = torch.zeros(12)
    model.features[4].bias.data, model.dense[0].bias.data = memory[:8], memory[4:]


def _added_buffer(model):
    model.head.register_buffer("shift", torch.ones(5), persistent=False)


def _added_layer(model):
    model.append(nn.Flatten())


def _removed_parametrization(model):
    nn.utils.parametrize.remove_parametrizations(model.head, "weight")


def _buffer_that_is_lost(model):
    center = model.features[1]
    center._non_persistent_buffers_set.add("running_mean")
    center.running_mean.add_(1)


def _momentum_that_is_no_number(model):
    model.features[1].momentum = float("nan")


def _momentum(model):
    model.features[1].momentum = 0.5


def _orthogonalizer(model):
    model.features[0].parametrizations.weight[0].kernel = AdaptiveOrthoConv2d(
        1, 4, 3, padding="same", padding_mode="circular", ortho_params=CHOLESKY_ORTHO_PARAMS
    ).parametrizations.weight[0].kernel  # fmt: skip


def _gradient_hook(model):
    model.head.bias.register_hook(lambda g: 2 * g)


CHANGES = {
    _other_method: "is RKOConv2d, not",
    _other_padding: "padding_mode of features.0 is 'zeros', not 'circular'",
    _other_border: "border of features.0",
    _swapped_activation: "features.2 is Abs, not MaxMin",
    _new_head: "head.bias is None",
    _other_constant: "lipschitz of .*is 2.0, not 1.0",
    _spread: "lipschitz of ",
    _hook: "_forward_hooks of head",
    _own_forward: "head has an attribute forward",
    _own_class: "pool is Identity, not Flatten",
    _second_parametrization: "head.* has ",
    _tied_modules: "dense.0|head",
    _tied_parameters: "the same object",
    _overlapping_memory: "share memory",
    _added_buffer: "head has shift, not nothing",
    _added_layer: "the network has stem, features, pool, dense, head, 5, not stem",
    _removed_parametrization: "head is|head has",
    _buffer_that_is_lost: "features.1.running_mean, which is no part of the state dict",
    _momentum: "momentum of features.1 is 0.5, not 0.1",
    _momentum_that_is_no_number: "momentum of features.1 is nan, not 0.1",
    _orthogonalizer: "features.0.parametrizations.weight.0",
    _gradient_hook: "head.bias has hooks",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_networks_are_refused(change, tmp_path):
    model = network()
    orthogonium.save(model, tmp_path / "before")
    change(model)
    with pytest.raises(ExportError, match=CHANGES[change]):
        orthogonium.save(model, tmp_path / "after")
    assert not (tmp_path / "after").exists()


def test_other_networks_are_refused(tmp_path):
    model = network()
    converted = orthogonium.convert(model, (1, 8, 8)).model
    for other in (
        nn.Sequential(model),
        model[:-1],
        nn.DataParallel(model),
        torch.compile(model, backend="eager"),
        converted,
    ):
        with pytest.raises(ExportError, match="remember how they are built"):
            orthogonium.save(other, tmp_path / "network")
    with pytest.raises(ExportError, match="not what create_model"):
        orthogonium.save(freeze(model), tmp_path / "network")
    with pytest.raises(ExportError, match="made with conv given as code"):
        orthogonium.save(create_model("aocnet_tiny", (1, 8, 8), conv=AdaptiveSOCConv2d), tmp_path / "network")


def test_several_dtypes_and_numbers_that_are_not_finite_are_refused(tmp_path):
    model = network()
    model.features[1].double()
    with pytest.raises(ExportError, match=r"one dtype.*torch.float32, torch.float64.*model.float\(\)"):
        orthogonium.save(model, tmp_path / "network")
    broken = network()
    broken.head.bias.data[0] = torch.nan
    with pytest.raises(ExportError, match="not finite"):
        orthogonium.save(broken, tmp_path / "network")
    with torch.device("meta"):
        empty = network()
    with pytest.raises(ExportError, match="on meta"):
        orthogonium.save(empty, tmp_path / "network")


def test_extra_state_is_refused(tmp_path):
    class Counting(AdaptiveOrthoConv2d):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    register_method(Method("counting", "Test 2026", "orthogonal", "circular", "0", conv={2: Counting}))
    try:
        with pytest.raises(ExportError, match="not tensors: features.0._extra_state"):
            orthogonium.save(network(method="counting"), tmp_path / "network")
    finally:
        del METHODS["counting"]


def test_a_method_that_means_something_else_now_is_noticed(tmp_path):
    def registered(conv):
        METHODS.pop("mine", None)
        register_method(Method("mine", "Test 2026", "lipschitz", "circular", "0", conv={2: conv}))

    class Doubled(AdaptiveSOCConv2d):
        def forward(self, input):
            return super().forward(input) / 2

    try:
        registered(AdaptiveSOCConv2d)
        place = orthogonium.save(network(method="mine"), tmp_path / "network")
        orthogonium.load(place)
        registered(Doubled)
        with pytest.raises(CheckpointError, match="computes something else"):
            orthogonium.load(place)
    finally:
        METHODS.pop("mine", None)
    with pytest.raises(CheckpointError, match="cannot be built here: There is no method 'mine'"):
        orthogonium.load(place)
