"""Runs the examples of docstrings (by pytest itself), of the README and of the docs (each block by itself) as tests."""

import os

import pytest
import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread for each worker
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace["torch"] = torch


pytest_collect_file = Sybil([PythonCodeBlockParser()], patterns=["README.md", "docs/*.md"]).pytest()
