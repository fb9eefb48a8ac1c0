"""Runs the examples of docstrings (by pytest itself), of the README and of the docs (each block by itself) as tests."""

import os

import hypothesis
import pytest
import torch
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread for each worker
    torch.set_num_threads(1)


# Another seed is another sample of the random tests, each of which repeats exactly.
SEED = int(os.environ.get("ORTHOGONIUM_SEED", "0"))
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_modifyitems(items):
    for item in items:
        if SEED and hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            hypothesis.seed(SEED)(item.obj)


@pytest.fixture(autouse=True)
def _seed(doctest_namespace):
    torch.manual_seed(SEED)
    doctest_namespace["torch"] = torch


class _OwnNamespace(PythonEvaluator):
    """Forgets what earlier blocks defined: readers copy one block, and xdist spreads blocks over processes."""

    def __call__(self, example):
        example.namespace.clear()
        super().__call__(example)


_blocks = CodeBlockParser(language="python", evaluator=_OwnNamespace())
pytest_collect_file = Sybil([_blocks], patterns=["README.md", "docs/*.md", "docs/methods/*.md"]).pytest()
