"""The same commands in this process, where many cases are cheap."""

import json
import re
import shlex
from dataclasses import fields

import pytest
import torch
import typer
from safetensors.torch import load_file

from orthogonium.cli import app, training
from orthogonium.cli.exporting import SUFFIX, Format
from orthogonium.cli.parsing import options, radii
from orthogonium.cli.recipes import compose
from orthogonium.errors import ParameterError
from orthogonium.layers import freeze
from orthogonium.methods.table import METHODS
from orthogonium.models import describe_model, describe_pretrained, list_models
from orthogonium.training import PRESETS, Recipe, load_checkpoint
from tests.cli.conftest import ROOT, call


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
    path = tmp_path / f"file{SUFFIX[Format(format)]}"
    code, out, err = call(capsys, "export", trained[0], "--format", format, "--out", path, "--json")
    assert code == 0 and json.loads(out)["deviation"] <= 1e-6 and err == ""
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode  # of the umask
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
    listed = json.loads(out)["methods"]
    assert [entry["name"] for entry in listed] == list(METHODS)
    _, out, _ = call(capsys, "methods")
    words = " ".join(out.split())
    for entry in listed:  # the table wraps what is long
        shown = (entry[key].split()[0] for key in ("name", "padding", "cost", "paper"))
        assert all(word in words for word in shown)


def test_pretrained_weights_are_described_by_name(capsys):
    weights = describe_pretrained("aocnet_tiny_digits")
    code, out, _ = call(capsys, "models", "aocnet_tiny_digits")
    assert code == 0 and describe_model("aocnet_tiny").summary in out
    assert "(256, 256)" in out and "aocnet_tiny_cifar10" not in out  # their own options
    assert all(f"{100 * share:.1f}%" in out for share in (weights.accuracy, *weights.certified_accuracy.values()))
    _, out, _ = call(capsys, "models", "aocnet_tiny_digits", "--json")
    printed = json.loads(out)
    assert [entry["name"] for entry in printed["models"]] == ["aocnet_tiny"]
    assert [entry["name"] for entry in printed["pretrained"]] == ["aocnet_tiny_digits"]


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
    assert code == 0 and recipe.lr == 0.5 and recipe.minutes is None and recipe.ema is None
    assert recipe.model_options == {**preset.model_options, "method": "soc", "widths": [4]}
    assert recipe.loss_options == {**preset.loss_options, "offset": 2.0} and recipe.eps == (0.25,)
    assert (recipe.epochs, recipe.augment, recipe.seed) == (preset.epochs, preset.augment, preset.seed)


@pytest.mark.parametrize("source", [training.train.__doc__, (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")])
def test_examples_of_training_work(source, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"orthogonium (train [^\n`]*?)(?=\[/bold\]|\n)", source.replace("\\[", "["))
    examples = [example for example in examples if "--root" not in example and "--resume" not in example]
    assert len(examples) == 2
    for example in examples:
        code, out, err = call(capsys, *shlex.split(example), "--dry-run")
        assert code == 0 and err == "" and Recipe.from_json(out).epochs is not None


def test_options_of_another_loss_are_forgotten():
    recipe = compose("digits", None, None, {"loss": "tau-cross-entropy", "loss_options": {"tau": 3.0}})
    assert recipe.loss_options == {"tau": 3.0}


def test_a_run_is_continued_with_its_own_recipe(trained):
    recipe = compose(None, None, trained[0], {})
    assert recipe == load_checkpoint(trained[0] / "last.ckpt").recipe != Recipe()


@pytest.mark.parametrize("name", [field.name for field in fields(Recipe)])
def test_a_field_of_a_recipe_is_a_flag(name):
    """Note [A flag is a field]: its name, and help that is a sentence about it."""
    flags = {option.name: option for option in typer.main.get_command(app.app).commands["train"].params}
    singular = name.removesuffix("s") if name.endswith("_options") else name
    assert f"--{singular.replace('_', '-')}" in flags[name].opts
    assert re.fullmatch(r"[A-Z].{10,}\.", flags[name].help)


def test_values():
    assert radii(["0.5", "36/255, 1"]) == (0.5, 36 / 255, 1.0)
    assert options(["a=1", "b=x=y", "c=[1, 2]", "d=null"], "-O") == {"a": 1, "b": "x=y", "c": [1, 2], "d": None}
    for wrong in ("", "inf", "nan", "a/b"):
        with pytest.raises(ParameterError, match="radius"):
            radii([wrong])
