"""Runs the examples of docstrings, of the README and of the docs as tests."""

import os
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

import pytest
import torch
from sybil import Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread for each worker
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _seed_example(namespace):
    torch.manual_seed(0)
    namespace["torch"] = torch


pytest_collect_file = (
    Sybil(
        [DocTestParser(ELLIPSIS | NORMALIZE_WHITESPACE)],
        patterns=["orthogonium/**/*.py"],
        setup=_seed_example,
    )
    + Sybil([PythonCodeBlockParser()], patterns=["README.md", "docs/**/*.md"], setup=_seed_example)
).pytest()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Examples of one document build on each other: keep them on one worker."""
    for item in items:
        if isinstance(item, SybilItem):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
