"""`orthogonium compare` through the real executable."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orthogonium.comparison import RunResult
from orthogonium.training import load_checkpoint
from tests.cli.conftest import ROOT, call, environment, orthogonium

SMALL = ["-O", "widths=[8]", "-O", "depth=2", "-O", "hidden=[]", "--eps", "0.05,0.25", "--attacked", "20", "--quiet"]
ENTRANTS = "tests.comparison.entrants"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of a comparison of three contestants, one of which fails, and what `--json` printed."""
    out = tmp_path_factory.mktemp("compare") / "all"
    entrants = ["--methods", "aoc", "--conv", f"{ENTRANTS}:Squaring", "--conv", f"{ENTRANTS}:Refusing"]
    done = orthogonium("compare", *entrants, *SMALL, "--epochs", 2, "--json", "--out", out)
    return out, json.loads(done.stdout)


def test_a_row_for_each_contestant(compared):
    _, printed = compared
    aoc, squaring, refusing = printed["rows"]
    assert aoc["status"] == "finished" and aoc["bound"]["mean"] <= 1 + 1e-4
    assert 0 <= aoc["certified@0.25"]["mean"] <= aoc["certified@0.05"]["mean"] <= aoc["accuracy"]["mean"] <= 1
    assert aoc["parameters"]["mean"] > 0 and aoc["step_seconds"]["mean"] > 0 and aoc["memory"]["mean"] > 2**20
    assert aoc["sigma_max"]["mean"] <= 1 + 1e-4 and aoc["remarks"] == []
    assert printed["broken_certificates"] == 0
    assert squaring["status"] == "finished" and squaring["certified@0.05"] is None
    assert squaring["attacked@0.05"]["mean"] <= 1 and "nothing is certified" in squaring["remarks"][0]
    assert refusing["status"] == "failed" and refusing["accuracy"] is None
    assert refusing["remarks"] == ["Failed, seed 0: RuntimeError: this layer needs a licence"]


def test_a_comparison_without_a_result_is_no_success(tmp_path, capsys):
    arguments = ["--conv", f"{ENTRANTS}:Refusing", *SMALL, "--epochs", "1", "--out", str(tmp_path / "all")]
    code, printed, _ = call(capsys, "compare", *map(str, arguments))
    assert code == 1 and "this layer needs a licence" in printed


def test_files_say_the_same(compared):
    out, printed = compared
    with (out / "comparison.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["contestant"] for row in rows] == [row["contestant"] for row in printed["rows"]]
    assert float(rows[0]["accuracy"]) == printed["rows"][0]["accuracy"]["mean"] and rows[2]["accuracy"] == ""
    page = (out / "comparison.html").read_text(encoding="utf-8")
    run = "runs/aoc/seed-0"
    assert f"{100 * printed['rows'][0]['accuracy']['mean']:.1f}%" in page and f'href="{run}/report.html"' in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert (out / run / "report.html").is_file()
    assert load_checkpoint(out / run / "last.ckpt").recipe.model_options["method"] == "aoc"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "aoc"], "give --minutes or --epochs"),
        (["--methods", "aoc", "--minutes", "1", "--epochs", "1"], "exclude each other"),
        (["--epochs", "1"], "needs a contestant"),
        (["--methods", "aoc,nosuch", "--epochs", "1"], "no method 'nosuch'"),
        (["--methods", "aoc,", "--epochs", "1"], "no method ''"),
        (["--conv", "nosuch:Conv", "--epochs", "1"], "no nosuch:Conv"),
        (["--methods", "aoc", "--data", "nosuch", "--epochs", "1"], "nosuch"),
        (["--methods", "aoc", "--data", "cifar10", "--root", "/nowhere", "--epochs", "1"], "/nowhere"),
        (["--methods", "aoc", "--model", "nosuch", "--epochs", "1"], "no model 'nosuch'"),
        (["--methods", "aoc", "--model", "lip_resnet", "--epochs", "1"], "no option method"),
        (["--methods", "aoc", "-O", "nosuch=1", "--epochs", "1"], "nosuch"),
        (["--methods", "aoc", "--loss", "nosuch", "--epochs", "1"], "nosuch"),
        (["--methods", "aoc", "--accelerator", "nosuch", "--epochs", "1"], "--accelerator"),
        (
            ["--methods", "aoc", "--model", "aocnet_tiny_digits", "--epochs", "1"],
            "trained weights of the model aocnet_tiny",
        ),
        (["--methods", "aoc", "--seeds", "0", "--epochs", "1"], "--seeds"),
        (["--methods", "aoc", "--recipe", "/nowhere.json", "--epochs", "1"], "/nowhere.json"),
        (
            ["--methods", "aoc", "--epochs", "2", "--lr", "0.5", *SMALL, "--out", "{compared}"],
            "another comparison: lr=0.5",
        ),
        (["--methods", "aoc", "--epochs", "1", "--out", "{other}"], "holds no comparison"),
    ],
)
def test_mistakes_get_one_line_before_training(arguments, words, compared, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    places = {"compared": compared[0], "other": tmp_path / "other"}
    filled = [a.format(**places) if a.startswith("{") else a for a in arguments]
    out = [] if "--out" in filled else ["--out", tmp_path / "new"]
    code, printed, err = call(capsys, "compare", *filled, *out)
    assert code == 2 and printed == "" and not (tmp_path / "new").exists()
    assert err.count("\n") == 1 and err.startswith("orthogonium: ") and words in err


def processes_of(folder: Path) -> list[int]:
    """The processes that run in this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc to see that no process is left")
def test_a_killed_comparison_goes_on_where_it_was(tmp_path):
    out = tmp_path / "killed"
    arguments = ["compare", "--methods", "aol,aoc", *SMALL, "--epochs", "60", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "orthogonium", *arguments],
        env=environment(),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    first, second = (out / "runs" / name / "seed-0" for name in ("aol", "aoc"))
    try:
        deadline = time.monotonic() + 300
        while not (second / "history.csv").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, process.stderr.read()
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    finally:
        process.kill()
    while processes_of(second) and time.monotonic() < deadline:  # the run ends with what started it
        time.sleep(0.05)
    assert not processes_of(out) and not (second / "result.json").exists()
    kept = (first / "result.json").read_bytes(), (first / "result.json").stat().st_mtime_ns
    epochs_before = len((second / "history.csv").read_text().splitlines()) - 1
    assert 1 <= epochs_before < 60
    orthogonium(*arguments)
    assert ((first / "result.json").read_bytes(), (first / "result.json").stat().st_mtime_ns) == kept
    continued = RunResult.read(second / "result.json")
    assert continued.is_finished and [row["epoch"] for row in continued.history] == list(range(1, 61))
    rows = json.loads((out / "comparison.json").read_text())["rows"]
    assert [row["status"] for row in rows] == ["finished", "finished"]
