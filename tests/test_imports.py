"""Importing the library is cheap and pulls in no training dependency."""

import subprocess
import sys

import pytest

HEAVY = ("lightning", "pytorch_lightning", "torchmetrics", "sklearn", "matplotlib", "rich", "typer", "torch._dynamo")


@pytest.mark.parametrize("module", ["orthogonium", "orthogonium.layers", "orthogonium.losses", "orthogonium.legacy"])
def test_nothing_heavy_is_imported(module):
    code = f"import sys, torch; before = set(sys.modules); import {module}; print(*(set(sys.modules) - before))"
    new = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in new if name.split(".")[0] in HEAVY or name in HEAVY]
