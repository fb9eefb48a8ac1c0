"""One small network, trained by the command itself, for all tests of the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orthogonium.cli import app

ROOT = Path(__file__).parents[2]
SMALL = ["-O", "widths=[8]", "-O", "depth=1", "-O", "hidden=[]", "--lr", "0.01", "--eps", "0.05,0.25", "--quiet"]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def orthogonium(*arguments, code=0):
    """Run the command as a user does; its output."""
    command = [sys.executable, "-m", "orthogonium", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def call(capsys, *arguments):
    """Run the command in this process: exit code, standard output and standard error."""
    capsys.readouterr()
    code = app.run(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a run, and what `train --json` printed."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    done = orthogonium("train", *SMALL, "--epochs", 3, "--attacked", 30, "--json", "--out", folder)
    return folder, json.loads(done.stdout)
