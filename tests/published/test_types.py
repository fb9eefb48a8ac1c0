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


def test_a_strict_type_checker_agrees(pytestconfig):
    """`assert_type` of the script holds, and nothing is an error. The library itself is checked by `make check`."""
    pytest.importorskip("mypy")
    cache = pytestconfig.cache.mkdir("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", str(SCRIPT)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPT.parents[2])
    assert run.returncode == 0, run.stdout + run.stderr
