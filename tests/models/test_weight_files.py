"""Trained weights: written to a temporary folder, listed, loaded, and refused where they do not fit."""

import json
import subprocess
import sys

import pytest
import torch

from orthogonium.errors import CheckpointError, ParameterError, ShapeError
from orthogonium.models import Pretrained, create_model, describe_pretrained, list_models
from orthogonium.models import shipped_weights as weights

OPTIONS = {"widths": [4, 8], "hidden": [8], "norm": "batch-centering"}


def metadata(name, **changes):
    return Pretrained(
        **{
            "name": name,
            "model": "aocnet_tiny",
            "image_shape": (1, 8, 8),
            "n_classes": 10,
            "options": OPTIONS,
            "data": "digits",
            "accuracy": 0.97,
            "certified_accuracy": {"0.25": 0.9, "0.5": 0.6},
            "command": "orthogonium train --epochs 3",
            "limits": "A test.",
            "recipe": {"epochs": 3},
            **changes,
        }
    )


@pytest.fixture
def model():
    made = metadata("digits_net").build()
    made(torch.rand(4, 1, 8, 8))  # moves the running means
    return made.eval()


@pytest.fixture
def folder(model, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "FOLDER", tmp_path)
    weights.save(model, metadata("digits_net"), tmp_path)
    return tmp_path


def test_round_trip(model, folder):
    x = torch.rand(3, 1, 8, 8)
    for name in ("digits_net", "aocnet_tiny"):
        loaded = create_model(name, pretrained=True)
        assert not loaded.training
        assert torch.equal(loaded(x), model(x))
    assert list_models(pretrained=True) == ["digits_net"]
    assert describe_pretrained("digits_net") == metadata("digits_net")


def test_raw_parameters_are_stored_so_training_can_go_on(folder):
    loaded = create_model("digits_net", pretrained=True).train()
    loss = loaded(torch.rand(4, 1, 8, 8)).square().sum()
    loss.backward()
    assert all(p.grad is not None for p in loaded.parameters())


def test_arguments_that_agree_are_accepted_and_others_refused(folder):
    create_model("digits_net", (1, 8, 8), 10, pretrained=True, widths=(4, 8), kernel_size=3)
    with pytest.raises(ParameterError, match=r"digits_net has image_shape=\(1, 8, 8\), not \(3, 32, 32\)"):
        create_model("aocnet_tiny", (3, 32, 32), pretrained=True)
    with pytest.raises(ParameterError, match="kernel_size=3, not 5"):
        create_model("digits_net", pretrained=True, kernel_size=5)


def test_several_weights_of_one_model(model, folder):
    weights.save(model, metadata("other_digits"), folder)
    with pytest.raises(ParameterError, match="name one of digits_net, other_digits"):
        create_model("aocnet_tiny", pretrained=True)
    colour = metadata("colours", image_shape=(3, 8, 8))
    weights.save(colour.build(), colour, folder)
    assert create_model("aocnet_tiny", (3, 8, 8), pretrained=True)(torch.rand(1, 3, 8, 8)).shape == (1, 10)


def test_models_without_weights(folder):
    with pytest.raises(ParameterError, match=r"'lip_vgg'. Trained: digits_net \(aocnet_tiny on digits\)"):
        create_model("lip_vgg", pretrained=True)
    with pytest.raises(ParameterError, match="no model 'nothing'"):
        create_model("nothing", pretrained=True)
    with pytest.raises(ParameterError, match="pass pretrained=True"):
        create_model("digits_net")


def test_no_weights_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "FOLDER", tmp_path)
    assert list_models(pretrained=True) == []
    with pytest.raises(ParameterError, match="Trained: none"):
        create_model("aocnet_tiny", pretrained=True)


def test_weights_of_another_shape(model, folder):
    path = folder / "digits_net.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "options": {**OPTIONS, "hidden": [16]}}))
    with pytest.raises(ShapeError, match="do not fit 'aocnet_tiny': .*has shape"):
        create_model("digits_net", pretrained=True)
    path.write_text(json.dumps({**json.loads(path.read_text()), "options": {**OPTIONS, "hidden": [8, 8]}}))
    with pytest.raises(ShapeError, match="is missing"):
        create_model("digits_net", pretrained=True)


def test_damaged_files(folder):
    path = folder / "digits_net.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="damaged"):
        create_model("digits_net", pretrained=True)
    path.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        create_model("digits_net", pretrained=True)
    path.with_suffix(".json").write_text("{")
    with pytest.raises(ParameterError, match="not JSON"):
        list_models(pretrained=True)
    path.with_suffix(".json").write_text('{"model": "aocnet_tiny"}')
    with pytest.raises(ParameterError, match="must have the entries accuracy"):
        list_models(pretrained=True)


def test_saving_checks_that_the_description_is_of_this_model(model, tmp_path):
    with pytest.raises(ShapeError, match="its layers differ"):
        weights.save(model, metadata("wrong", image_shape=(3, 8, 8)), tmp_path)
    with pytest.raises(ParameterError, match="no option width"):
        weights.save(model, metadata("wrong", options={"width": 3}), tmp_path)


def test_the_weights_that_ship_can_be_loaded():
    for name in list_models(pretrained=True):
        found = describe_pretrained(name)
        assert create_model(name, pretrained=True)(torch.rand(1, *found.image_shape)).shape == (1, found.n_classes)


def test_safetensors_is_only_needed_for_weights():
    code = (
        "import sys; sys.modules['safetensors'] = None; from orthogonium.models import create_model, weight_files\n"
        "create_model('aocnet_tiny', (1, 8, 8), widths=(4,))\n"
        "try: weight_files._safetensors()\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install '.[train]'" in done.stdout
