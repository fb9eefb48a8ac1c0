"""Mistakes get one line and exit code 2, before any work is done."""

import pytest

from tests.cli.conftest import call


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
        (["certify", ""], "An argument is empty"),
        (["certify", "{run}", "--root", " "], "value of --root is empty"),
        (["certify", "--data=", "{run}"], "--data is empty"),
        (["models", ""], "An argument is empty"),
        (["certify", "~nosuch/run"], "neither a file"),
        (["certify", "{run}", "--root", "~nosuch/data"], "take no root: got root='~nosuch/data'"),
        (["certify", "{run}", "--batch-size", str(2**70)], "--batch-size"),
        (["certify", "{broken}"], "recipe.json is not a recipe"),
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
        (["train", "--out", "{run}"], "choose another folder out="),
        (["train", "--out", "{run}", "--resume", "--seed", "7"], "another recipe"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, words, trained, tmp_path, capsys):
    (tmp_path / "file").write_text("not a checkpoint")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "last.ckpt").touch()
    (tmp_path / "broken" / "recipe.json").write_bytes(b"\xff")
    places = {"run": trained[0]} | {name: tmp_path / name for name in ("file", "empty", "broken")}
    code, out, err = call(capsys, *(a.format(**places) for a in arguments))
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("orthogonium: ") and words in err


@pytest.mark.parametrize("how", [[], ["--dry-run"]], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attacked", "0"], "attacked"),
        (["--seed", str(10**30)], "seed"),
        (["--model", "nosuch"], "no model 'nosuch'"),
        (["--model", "aocnet_tiny_digits"], "trained weights of the model aocnet_tiny"),
        (["--model", "lip_vgg"], "more than 16×16 pixels"),
        (["--method", "nosuch"], "no method 'nosuch'"),
        (["--method", "sll", "-O", "method=aol"], "--method sll and -O method=aol contradict"),
        (["--data", "nosuch"], "Unknown dataset 'nosuch'"),
        (["--data", "cifar10"], "not bundled: root= must be"),
        (["--data", "cifar10", "--root", "/nowhere"], "/nowhere does not exist. root= must be"),
        (["--root", "/nowhere"], "got root='/nowhere'"),
        (["--augment", "nosuch"], "Unknown augmentation 'nosuch'"),
        (["--augment", "shift:100"], "e.g. augment='shift:1'"),
        (["--loss", "nosuch"], "Unknown loss 'nosuch'"),
        (["--loss-option", "offset=abc"], "wrong type"),
        (["--loss-option", "n_classes=3"], "(n, 3): got (2, 10)"),
        (["--optimizer", "nosuch"], "Unknown optimizer 'nosuch'"),
        (["--optimizer-option", "lr=1"], "learning rate is lr="),
        (["-O", "depth=abc"], "depth"),
        (["-O", "widths=abc"], "widths"),
        (["-O", "act={}"], "act of model"),
        (["-O", "image_shape=[1,8,8]"], "those of the data"),
        (["-O", "depth=" + "1" * 5000], "depth"),
        (["--resume"], "no run"),
        (["--strategy", "nosuch"], "--strategy 'nosuch'"),
        (["--strategy", "fsdp", "--ema", "0.9"], "use strategy='ddp', or leave ema= out"),
        (["--precision", "16-mixed", "--accelerator", "cpu"], "precision='16-mixed' needs a GPU"),
        (["--precision", "8"], "precision='8' must be one of '32'"),
        (["--workers", "2"], "got 2 of them"),
        (["--minutes", "nan"], "minutes=nan must be positive"),
        (["--epochs", "0"], "give epochs=, minutes=, or both"),
        (["--early-stop", "2"], "early_stop=2 with validation=0 would"),
        (
            ["--accumulate", "3"],
            "batch_size=128, the samples of one optimizer step, cannot be split into accumulate=3",
        ),
        (["--eps", "0"], "eps=[0.0] must be"),
        (["--warmup", "3"], "warmup=3.0"),
        (["--schedule", "one-cycle", "--warmup", "0"], "such as warmup=0.3"),
        (["--checkpoint-minutes", "0"], "checkpoint_minutes=0.0 must be"),
        (["--log-every", "0"], "--log-every"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_values_are_told_before_training(capsys, tmp_path, arguments, message, how):
    preset = [] if "--resume" in arguments else ["--preset", "digits"]
    code, out, error = call(capsys, "train", *preset, *arguments, *how, "--out", tmp_path / "new")
    assert code == 2 and out == ""
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("certify", "--save"),
        ("audit", "--html"),
        ("report", "--out"),
        ("export", "--out"),
        ("train", "--out"),
        ("demo", "--out"),
    ],
)
def test_where_to_write_is_checked_before_the_work(capsys, tmp_path, monkeypatch, command, option):
    def work(*arguments, **options):
        raise AssertionError("work was done")

    monkeypatch.setattr("orthogonium.cli.networks.load_network", work)
    monkeypatch.setattr("orthogonium.training.fit", work)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    subject = ["aocnet_tiny_digits"] if command not in ("train", "demo") else []
    mistaken = tmp_path / ("file" if not subject else "folder")
    for path in (mistaken, tmp_path / "file" / "below"):
        code, out, error = call(capsys, command, *subject, option, path)
        assert code == 2 and out == "" and len(error.splitlines()) == 1
        assert f"Invalid value for '{option}': {path}" in error
    monkeypatch.setattr("os.access", lambda path, mode: False)
    code, _, error = call(capsys, command, *subject, option, tmp_path / "new" / "place")
    assert code == 2 and f"no permission to write to {tmp_path}." in error


@pytest.mark.parametrize(
    ("arguments", "suffix"),
    [
        (["--format", "torch-export", "--out", "network"], ".pt2"),
        (["--out", "network.safetensors"], ".onnx"),
        (["--format", "safetensors", "--out", "network.pt"], ".safetensors"),
    ],
)
def test_the_name_of_an_exported_file_says_its_format(capsys, tmp_path, monkeypatch, arguments, suffix):
    monkeypatch.chdir(tmp_path)
    code, out, error = call(capsys, "export", "aocnet_tiny_digits", *arguments)
    assert code == 2 and out == "" and f"ends in {suffix}: got {arguments[-1]}" in error
    assert not list(tmp_path.iterdir())


def test_weights_alone_do_not_hold_other_activations(capsys, tmp_path):
    code, _, error = call(
        capsys, "export", "aocnet_tiny_digits", "--format", "safetensors", "--activations", "relu",
        "--out", tmp_path / "a.safetensors",
    )  # fmt: skip
    assert code == 2 and "changes the computation" in error and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["attack", "report"])
def test_an_unknown_attack_is_told_before_the_work(capsys, command):
    code, _, error = call(capsys, command, "/nowhere", "--method", "nosuch")
    assert code == 2 and "'--method': attacks are adam-pgd" in error


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "not text"),
        (b"[]", "JSON object"),
        (b"1" * 5000, "JSON object"),
        (b'{"minutes": -1}', "minutes=-1 must be positive"),
        (b'{"max_minutes": -1}', "minutes=-1 must be positive"),  # as version 0.1 saved it
        (b'{"lr": "fast"}', "lr='fast' must be a number"),
        (b'{"eps": 3}', "eps=3 must be a list of numbers"),
        (b'{"nosuch": 3}', "no field nosuch"),
    ],
)
def test_a_file_that_is_no_recipe(capsys, tmp_path, content, message):
    path = tmp_path / "recipe.json"
    path.write_bytes(content)
    code, out, error = call(capsys, "train", "--recipe", path, "--out", tmp_path / "new")
    assert code == 2 and out == "" and len(error.splitlines()) == 1
    assert f"{path} is not a recipe" in error and message in error
