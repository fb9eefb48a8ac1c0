"""What type checkers see of the published paths, and that they are told to look."""

import importlib.resources
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("typed_script.py")


def test_the_package_is_typed():
    assert importlib.resources.files("orthogonium").joinpath("py.typed").is_file()


def test_the_script_runs():
    runpy.run_path(str(SCRIPT))


def test_a_strict_type_checker_agrees(tmp_path):
    """`assert_type` of the script holds, and nothing in it is an error. `make check` checks the library itself."""
    pytest.importorskip("mypy")
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", *options, str(SCRIPT)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPT.parents[2])
    assert run.returncode == 0, run.stdout + run.stderr
