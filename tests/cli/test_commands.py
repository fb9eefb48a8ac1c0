"""The commands through the real executable."""

import csv
import json
import signal
import subprocess
import sys
import time

import onnx
import onnxruntime
import pytest
import torch

from orthogonium.data import load_dataset, unit_pixels
from orthogonium.models import create_model
from orthogonium.saving import save
from orthogonium.training import load_checkpoint
from tests.cli.conftest import SMALL, call, environment, orthogonium

NO_TORCH = "import sys; from orthogonium.cli.app import run; run([{}]); sys.exit('torch' in sys.modules)"


@pytest.mark.parametrize("arguments", ["'--help'", "'train', '--help'", "'compare', '--help'", "'--version'"])
def test_help_does_not_wait_for_torch(arguments):
    code = NO_TORCH.format(arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 0 and done.stdout and not done.stderr


def test_train_writes_a_checkpoint_and_a_report(trained):
    folder, printed = trained
    assert (folder / "last.ckpt").is_file() and (folder / "history.csv").is_file()
    assert printed["broken_certificates"] == 0 and printed["last_epoch"]["epoch"] == 3
    assert printed["attacked_inputs"] == 30
    assert all(entry["accuracy"] >= entry["certified"] for entry in printed["attacked_accuracy"])
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert f"{100 * printed['accuracy']:.1f}%" in report and "aocnet_tiny on digits" in report
    assert load_checkpoint(folder / "last.ckpt").recipe.eps == (0.05, 0.25)


def test_certify_prints_what_the_saved_radii_say(trained, tmp_path):
    folder, _ = trained
    done = orthogonium(
        "certify", folder, "--eps", "0.01,0.05", "--eps", "36/255", "--save", tmp_path / "r.csv", "--json"
    )
    printed = json.loads(done.stdout)
    with (tmp_path / "r.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    radii = [float(row["radius"]) for row in rows]
    data = load_dataset("digits").test
    assert printed["inputs"] == len(rows) == len(data)
    for entry, eps in zip(printed["certified_accuracy"], (0.01, 0.05, 36 / 255), strict=True):
        assert entry["eps"] == eps
        assert entry["accuracy"] == pytest.approx(sum(r > eps for r in radii) / len(radii))
    with torch.no_grad():
        predictions = load_checkpoint(folder / "last.ckpt").model(unit_pixels(data.pixels)).argmax(1)
    assert [row["prediction"] for row in rows] == [str(int(p)) for p in predictions]
    assert printed["accuracy"] == pytest.approx(float((predictions == data.labels).double().mean()))
    assert printed["lipschitz_bound"] <= 1 + 1e-4


def test_attack_leaves_at_least_the_certified_accuracy(trained):
    folder, _ = trained
    done = orthogonium("attack", folder, "--limit", 40, "--eps", "0.05,0.25,5", "--steps", 10, "--json")
    printed = json.loads(done.stdout)
    assert printed["broken_certificates"] == 0 and printed["inputs"] == 40
    assert all(entry["attacked"] >= entry["certified"] for entry in printed["at"])
    assert printed["at"][-1]["attacked"] < printed["accuracy"]  # an attack of length 5 does something


def test_onnx_file_computes_what_the_network_computes(trained, tmp_path):
    folder, _ = trained
    done = orthogonium("export", folder, "--format", "onnx", "--out", tmp_path / "net.onnx", "--json")
    assert json.loads(done.stdout)["deviation"] < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    x = torch.rand(7, 1, 8, 8)  # another batch size
    with torch.no_grad():
        expected = load_checkpoint(folder / "last.ckpt").model(x)
    assert torch.allclose(torch.from_numpy(session.run(None, {"images": x.numpy()})[0]), expected, atol=1e-5)


def test_a_file_for_verifiers_has_affine_maps_and_relu_only(trained, tmp_path):
    folder, _ = trained
    file = tmp_path / "net.onnx"
    done = orthogonium("export", folder, "--activations", "relu", "--out", file, "--json")
    assert json.loads(done.stdout)["deviation"] < 1e-5
    operators = {node.op_type for node in onnx.load(file).graph.node}
    assert "Relu" in operators and not operators & {"Max", "Min", "Abs", "Where", "Sign"}


def test_interrupted_training_says_how_to_continue_and_continues(tmp_path):
    folder = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "orthogonium",
        "train",
        *SMALL,
        "--epochs",
        "30",
        "--no-report",
        "--out",
        str(folder),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        deadline = time.monotonic() + 300
        while not (folder / "history.csv").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and f"orthogonium train --out {folder} --resume" in errors
    done = orthogonium("train", "--out", folder, "--resume", "--no-report", "--quiet", "--json")
    assert json.loads(done.stdout)["last_epoch"]["epoch"] == 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["certify", "/nowhere/last.ckpt"], "neither a file"),
        (["train", "--lr", "abc"], "--lr"),
        (["train", "--method", "nosuch", "--dry-run"], "no method 'nosuch'"),
    ],
)
def test_a_mistake_gets_one_line(arguments, words):
    done = orthogonium(*arguments, code=2)
    assert done.stdout == "" and done.stderr.count("\n") == 1 and words in done.stderr


@pytest.mark.slow
def test_demo(tmp_path):
    done = orthogonium("demo", "--out", tmp_path / "demo", "--json")
    printed = json.loads(done.stdout)
    certified = {entry["eps"]: entry["accuracy"] for entry in printed["certified_accuracy"]}
    assert printed["broken_certificates"] == 0 and printed["attacked_inputs"] == printed["inputs"] == 451
    assert printed["accuracy"] >= 0.97 and certified[0.25] >= 0.88 and certified[0.5] >= 0.60
    assert (tmp_path / "demo" / "report.html").is_file()


def test_saved_networks_are_checkpoints(capsys, tmp_path):
    folder = save(create_model("aocnet_tiny_digits", pretrained=True), tmp_path / "digits")
    arguments = ["--data", "digits", "--limit", "40", "--eps", "0.25", "--json"]
    (code, saved, _), (_, named, _) = (
        call(capsys, "certify", name, *arguments) for name in (folder, "aocnet_tiny_digits")
    )
    assert code == 0 and json.loads(saved)["certified_accuracy"] == json.loads(named)["certified_accuracy"]
    code, _, error = call(capsys, "certify", folder, "--eps", "0.25")
    assert code != 0 and "--data NAME" in error
