"""The same commands in this process, where many cases are cheap."""

import json

import pytest
import torch
from safetensors.torch import load_file

from orthogonium.cli import app, training
from orthogonium.cli.recipes import compose
from orthogonium.cli.values import options, radii
from orthogonium.errors import ParameterError
from orthogonium.layers import freeze
from orthogonium.methods.table import METHODS
from orthogonium.models import list_models
from orthogonium.training import PRESETS, Recipe, load_checkpoint


def call(capsys, *arguments):
    """Exit code, standard output and standard error."""
    capsys.readouterr()
    code = app.run(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch"], "No such command"),
        (["certify"], "CHECKPOINT"),
        (["certify", "{run}", "--nosuch"], "--nosuch"),
        (["certify", "{run}", "--eps", "-1"], "radius"),
        (["certify", "{run}", "--eps", "1/0"], "radius"),
        (["certify", "{run}", "--limit", "0"], "--limit"),
        (["certify", "{run}", "--data", "nosuch"], "nosuch"),
        (["certify", "{run}", "--data", "cifar10"], "cifar10"),
        (["certify", "{run}", "--data", "cifar10", "--root", "/nowhere"], "/nowhere"),
        (["certify", "{file}"], "not a checkpoint"),
        (["certify", "{empty}"], "last.ckpt"),
        (["audit", "aocnet_tiny"], "architecture"),
        (["attack", "{run}", "--method", "nosuch"], "nosuch"),
        (["export", "{run}", "--format", "nosuch"], "nosuch"),
        (["models", "nosuch"], "nosuch"),
        (["train", "--preset", "nosuch"], "preset"),
        (["train", "--preset", "digits", "--recipe", "{file}"], "exclude"),
        (["train", "--recipe", "/nowhere.json"], "/nowhere.json"),
        (["train", "--recipe", "{file}"], "JSON"),
        (["train", "--model", "nosuch", "--out", "{empty}"], "nosuch"),
        (["train", "--data", "nosuch", "--out", "{empty}"], "nosuch"),
        (["train", "--loss", "nosuch"], "nosuch"),
        (["train", "--epochs", "-1"], "epochs"),
        (["train", "--early-stop", "2"], "validation"),
        (["train", "-O", "widths"], "NAME=VALUE"),
        (["train", "-O", "nosuch=1", "--out", "{empty}"], "nosuch"),
        (["train", "--strategy", "nosuch", "--out", "{empty}"], "--strategy"),
        (["train", "--accelerator", "nosuch", "--out", "{empty}"], "--accelerator"),
        (["train", "--out", "{run}"], "--resume"),
        (["train", "--out", "{run}", "--resume", "--seed", "7"], "another recipe"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, words, trained, tmp_path, capsys):
    (tmp_path / "file").write_text("not a checkpoint")
    (tmp_path / "empty").mkdir()
    places = {"run": trained[0], "file": tmp_path / "file", "empty": tmp_path / "empty"}
    code, out, err = call(capsys, *(a.format(**places) for a in arguments))
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("orthogonium: ") and words in err


def test_without_arguments_the_help_is_shown(capsys):
    code, out, err = call(capsys)
    assert code == 2 and "demo" in out + err and "Traceback" not in err


def test_audit(trained, tmp_path, capsys):
    code, out, _ = call(capsys, "audit", trained[0], "--json", "--html", tmp_path / "new" / "audit.html")
    report = json.loads(out)
    assert code == 0 and report["input_shape"] == [1, 8, 8] and report["lipschitz_bound"] <= 1 + 1e-4
    assert (tmp_path / "new" / "audit.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    code, out, _ = call(capsys, "audit", trained[0])
    assert code == 0 and "Lipschitz constant at most" in out


@pytest.mark.filterwarnings("ignore")  # of torch's exporter, about itself
@pytest.mark.parametrize("format", ["torch-export", "safetensors", "state-dict"])
def test_export(trained, tmp_path, capsys, format):
    path = tmp_path / "file"
    code, out, _ = call(capsys, "export", trained[0], "--format", format, "--out", path, "--json")
    assert code == 0 and json.loads(out)["deviation"] <= 1e-6
    model = load_checkpoint(trained[0] / "last.ckpt").model
    x = torch.rand(3, 1, 8, 8)
    if format == "torch-export":
        restored = torch.export.load(path).module()
    else:
        restored = freeze(model)
        weights = load_file(path) if format == "safetensors" else torch.load(path, weights_only=True)
        assert not any("parametrizations" in name for name in weights)
        restored.load_state_dict(weights)
    with torch.no_grad():
        assert torch.allclose(restored(x), model(x), atol=1e-6)


def test_lists(capsys):
    _, out, _ = call(capsys, "models", "--json")
    assert [entry["name"] for entry in json.loads(out)["models"]] == list_models()
    _, out, _ = call(capsys, "models", "aocnet_tiny")
    assert "widths" in out and "(32, 64, 128)" in out
    _, out, _ = call(capsys, "methods", "--json")
    assert [entry["name"] for entry in json.loads(out)] == list(METHODS)
    _, out, _ = call(capsys, "methods")
    assert all(name in out for name in METHODS)


def test_a_broken_certificate_is_exit_code_1(trained, capsys, monkeypatch):
    import orthogonium

    honest = orthogonium.certify

    def too_bold(*arguments, **options):
        found = honest(*arguments, **options)
        found.radii.mul_(50)
        return found

    monkeypatch.setattr(orthogonium, "certify", too_bold)
    code, out, _ = call(capsys, "attack", trained[0], "--limit", 30, "--eps", "0.5", "--json")
    assert code == 1 and json.loads(out)["broken_certificates"] > 0


def test_a_bug_keeps_its_traceback(trained, monkeypatch):
    def bug(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr("orthogonium.cli.networks.load_network", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        app.run(["audit", str(trained[0])])


def test_options_override_the_preset(capsys):
    arguments = [
        "--preset",
        "digits",
        "--lr",
        "0.5",
        "--method",
        "soc",
        "-O",
        "widths=[4]",
        "--minutes",
        "0",
        "--ema",
        "0",
    ]
    code, out, _ = call(capsys, "train", *arguments, "--loss-option", "offset=2.0", "--eps", "1/4", "--dry-run")
    recipe = Recipe.from_json(out)
    preset = PRESETS["digits"]
    assert code == 0 and recipe.lr == 0.5 and recipe.max_minutes is None and recipe.ema is None
    assert recipe.model_options == {**preset.model_options, "method": "soc", "widths": [4]}
    assert recipe.loss_options == {**preset.loss_options, "offset": 2.0} and recipe.radii == (0.25,)
    assert (recipe.epochs, recipe.augment, recipe.seed) == (preset.epochs, preset.augment, preset.seed)


def test_options_of_another_loss_are_forgotten():
    recipe = compose("digits", None, None, {"loss": "tau-cross-entropy"}, {"loss_options": {"tau": 3.0}})
    assert recipe.loss_options == {"tau": 3.0}


def test_a_run_is_continued_with_its_own_recipe(trained):
    recipe = compose(None, None, trained[0], {}, {})
    assert recipe == load_checkpoint(trained[0] / "last.ckpt").recipe != Recipe()


def test_every_field_of_a_recipe_has_an_option():
    import inspect
    from dataclasses import fields

    renamed = {"max_minutes": "minutes", "patience": "early_stop", "radii": "eps"}
    renamed |= {f"{name}_options": f"{name}_option" for name in ("model", "loss", "optimizer")}
    taken = set(inspect.signature(training.train).parameters)
    assert {renamed.get(f.name, f.name) for f in fields(Recipe)} <= taken


def test_values():
    assert radii(["0.5", "36/255, 1"]) == (0.5, 36 / 255, 1.0)
    assert options(["a=1", "b=x=y", "c=[1, 2]", "d=null"], "-O") == {"a": 1, "b": "x=y", "c": [1, 2], "d": None}
    for wrong in ("", "inf", "nan", "a/b"):
        with pytest.raises(ParameterError, match="radius"):
            radii([wrong])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "digits", "--attacked", "0"], "attacked"),
        (["--preset", "digits", "--seed", str(10**30)], "seed"),
        (["--preset", "digits", "--loss-option", "offset=abc"], "wrong type"),
        (["--preset", "digits", "-O", "depth=abc"], "depth"),
        (["--preset", "digits", "-O", "widths=abc"], "widths"),
        (["--resume"], "no run"),
    ],
)
def test_wrong_values_are_told_before_training(capsys, tmp_path, arguments, message):
    code, out, error = call(capsys, "train", *arguments, "--out", str(tmp_path / "new"))
    assert code == 2 and out == ""
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_a_recipe_that_is_no_text(capsys, tmp_path):
    (tmp_path / "recipe.json").write_bytes(b"\xff\xfe\x00")
    code, _, error = call(capsys, "train", "--recipe", str(tmp_path / "recipe.json"), "--out", str(tmp_path / "new"))
    assert code == 2 and "not a recipe" in error
