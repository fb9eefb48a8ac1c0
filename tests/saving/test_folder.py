"""A network that was saved and loaded computes the same; damaged folders are refused."""

import copy
import json
import pickle
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import orthogonium
from orthogonium.errors import CheckpointError, ParameterError, ShapeError
from orthogonium.layers import OrthoLinear
from orthogonium.methods import METHODS
from orthogonium.models import create_model, list_models
from orthogonium.models.origin import origin_of
from tests.models.cases import SMALL, small
from tests.saving.networks import assert_same, network, stepped


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
