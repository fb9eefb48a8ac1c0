"""A network that was saved and loaded computes the same, or it was refused."""

import copy
import functools
import json
import pickle
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrizations

import orthogonium
from orthogonium.errors import CheckpointError, ExportError, ParameterError, ShapeError
from orthogonium.layers import Abs, AdaptiveOrthoConv2d, AdaptiveSOCConv2d, OrthoLinear, RKOConv2d, spread_constant
from orthogonium.layers.freeze import freeze
from orthogonium.linalg import CHOLESKY_ORTHO_PARAMS
from orthogonium.methods import METHODS, Method, register_method
from orthogonium.models import create_model, list_models
from orthogonium.models.origin import origin_of
from tests.models.cases import SMALL, small

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


def edited(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def folder(tmp_path):
    return orthogonium.save(network(), tmp_path / "network")


@pytest.mark.parametrize("name", SMALL)
def test_every_model_comes_back(name, tmp_path):
    model, shape = small(name)
    stepped(model, shape)
    assert_same(model, orthogonium.load(orthogonium.save(model, tmp_path / name)), shape)


def test_all_models_are_tried():
    assert SMALL.keys() == set(list_models())


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if 2 in entry.conv])
def test_every_method_comes_back(method, tmp_path):
    model = stepped(network(method=method))
    assert_same(model, orthogonium.load(orthogonium.save(model, tmp_path / "network")))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_come_back(dtype, tmp_path):
    model = network().to(dtype)
    loaded = orthogonium.load(orthogonium.save(model, tmp_path / "network"))
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    assert_same(model, loaded)


def test_constants_options_and_pretrained_networks_come_back(tmp_path):
    scaled = network(lipschitz=7, mean=0.4, std=(0.25,), head="classwise", act="householder")
    assert_same(scaled, orthogonium.load(orthogonium.save(scaled, tmp_path / "scaled")))
    digits = create_model("aocnet_tiny_digits", pretrained=True, n_classes=3)
    assert_same(digits, orthogonium.load(orthogonium.save(digits, tmp_path / "digits")))


def test_frozen_parameters_stay_frozen(tmp_path):
    model = network()
    model.features.requires_grad_(False)
    loaded = orthogonium.load(orthogonium.save(model, tmp_path / "network"))
    flags = {k: p.requires_grad for k, p in model.named_parameters()}
    assert {k: p.requires_grad for k, p in loaded.named_parameters()} == flags and set(flags.values()) == {True, False}


def test_values_that_were_edited_in_place_are_those_that_are_saved(tmp_path):
    model = stepped(network())
    with torch.no_grad():
        model.features[0].bias.data.add_(1)
        model.features[1].running_mean.mul_(3)
    model.head.weight = OrthoLinear(8, 5).weight.detach()
    assert_same(model, orthogonium.load(orthogonium.save(model, tmp_path / "network")))


def test_copies_pickles_and_loaded_networks_are_saved_again(tmp_path):
    model = stepped(network())
    places = iter(range(9))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(model, orthogonium.load(orthogonium.save(other, tmp_path / str(next(places)))))
    loaded = orthogonium.load(orthogonium.save(model, tmp_path / "a"))
    orthogonium.save(stepped(loaded), tmp_path / "b")
    assert_same(loaded, orthogonium.load(tmp_path / "b"))


def test_what_only_makes_a_network_faster_is_no_obstacle(tmp_path):
    model = stepped(network())
    orthogonium.build_together(model)
    stepped(model)
    loaded = orthogonium.load(orthogonium.save(model, tmp_path / "network"))
    assert loaded.state_dict().keys() == model.state_dict().keys() and not loaded._forward_hooks


def test_saving_leaves_network_and_random_numbers_as_they_are(tmp_path):
    model = network().train()
    model.head.eval()
    state, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    random = torch.get_rng_state()
    orthogonium.load(orthogonium.save(model, tmp_path / "network"))
    assert torch.equal(random, torch.get_rng_state()) and modes == [m.training for m in model.modules()]
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())


def test_lists_that_change_later_do_not_change_the_record(tmp_path):
    widths = [4, 8]
    model = network(widths=widths)
    widths.append(12)
    assert_same(model, orthogonium.load(orthogonium.save(model, tmp_path / "network")))


def test_loading_on_a_meta_device_and_in_inference_mode_gives_a_real_network(folder):
    with torch.device("meta"), torch.inference_mode():
        loaded = orthogonium.load(folder)
    assert loaded(torch.rand(2, 1, 8, 8, requires_grad=True)).sum().isfinite()


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


def test_folders_are_not_overwritten_by_chance(folder):
    (folder / "README.md").write_text("mine")
    with pytest.raises(ParameterError, match="overwrite=True"):
        orthogonium.save(network(), folder)
    assert (folder / "README.md").read_text() == "mine"
    other = network()
    orthogonium.save(other, folder, overwrite=True)
    assert_same(other, orthogonium.load(folder))
    with pytest.raises(ParameterError, match="not an empty folder"):
        orthogonium.save(other, folder / "README.md", overwrite=True)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"format": 2, "new": 1}, "has format 2, written by orthogonium .*; this version reads 1"),
        ({"extra": 1}, "not known: extra"),
        ({"n_classes": "5"}, "n_classes must be a whole number, got '5'"),
        ({"dtype": "float8"}, "dtype must be one of"),
        ({"dtype": "float64"}, "is torch.float32, where config.json says torch.float64"),
        ({"model": "resnet"}, "cannot be built here: There is no model 'resnet'"),
        ({"options": {"width": 3}}, "cannot be built here: Model 'aocnet_tiny' has no option width"),
        ({"frozen": ["head.weight"]}, "names of no parameter: head.weight"),
        ({"lipschitz": 2.0}, "computes something else"),
        ({"probe": []}, "computes something else"),
        ({"sha256": ""}, "SHA-256"),
    ],
)
def test_configs_that_are_wrong(folder, changes, message):
    edited(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        orthogonium.load(folder)


def test_an_option_that_changes_the_function_but_no_shape_is_noticed(folder):
    options = json.loads((folder / "config.json").read_text())["options"]
    edited(folder, options={**options, "padding_mode": "zeros"})
    with pytest.raises(CheckpointError, match="computes something else"):
        orthogonium.load(folder)
    edited(folder, options={**options, "hidden": [12]})
    with pytest.raises(ShapeError, match=re.escape("has shape (8,), the model (12,)")):
        orthogonium.load(folder)


def test_damaged_and_missing_files(folder, tmp_path):
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole, text = weights.read_bytes(), config.read_text()
    weights.write_bytes(whole[:-7])
    with pytest.raises(CheckpointError, match="damaged"):
        orthogonium.load(folder)
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="SHA-256"):
        orthogonium.load(folder)
    weights.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        orthogonium.load(folder)
    weights.write_bytes(whole)
    for content, message in ((text[:-5], "not JSON"), ("[1]", "not the config"), ('{"model": "x"}', "not the config")):
        config.write_text(content)
        with pytest.raises(CheckpointError, match=message):
            orthogonium.load(folder)
    config.unlink()
    with pytest.raises(CheckpointError, match="no config.json"):
        orthogonium.load(folder)
    with pytest.raises(CheckpointError, match="no folder"):
        orthogonium.load(tmp_path / "nowhere")


def test_keys_that_are_missing_or_too_many(folder):
    from orthogonium.saving.folder import _digest

    weights = folder / "model.safetensors"
    state = load_file(weights)
    for changed, message in (
        ({k: v for k, v in state.items() if k != "head.bias"}, "head.bias is missing"),
        ({**state, "more": torch.zeros(1)}, "more is not part of the model"),
    ):
        save_file(changed, weights)
        edited(folder, sha256=_digest(weights))
        with pytest.raises(ShapeError, match=message):
            orthogonium.load(folder)


def test_origins_are_those_of_create_model():
    origin = origin_of(create_model("aocnet_tiny"))
    assert (
        origin.name == "aocnet_tiny" and origin.image_shape == (3, 32, 32) and origin.options["widths"] == [32, 64, 128]
    )
    assert origin_of(nn.Linear(2, 2)) is None
