"""Every example runs as a notebook, at reduced size, and the notebook is the one that its file gives.

Examples check their own claims by asserts, also at this size, which an environment variable asks for.
"""

import json
import runpy
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = ROOT / "examples" / "notebooks"
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


@each_example
def test_notebook_runs(example, tmp_path, monkeypatch):
    monkeypatch.setenv("ORTHOGONIUM_EXAMPLES", "quick")
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    cells = json.loads((NOTEBOOKS / f"{example.stem}.ipynb").read_text(encoding="utf-8"))["cells"]
    namespace = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{example.stem}, {cell['id']}", "exec"), namespace)
    plt.close("all")
    assert namespace["QUICK"]
    assert plt.imread(tmp_path / f"{example.stem}.png").std() > 0.05  # not a blank picture


@each_example
def test_notebook_is_generated(example):
    pytest.importorskip("jupytext", reason="of the extra [dev]")
    generate = runpy.run_path(str(NOTEBOOKS / "generate.py"))
    found = (NOTEBOOKS / f"{example.stem}.ipynb").read_text(encoding="utf-8")
    assert found == generate["notebook"](example), "run `make notebooks`"


def test_every_notebook_has_its_example():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {path.stem for path in EXAMPLES}


def test_every_example_is_on_the_page():
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for example in EXAMPLES:
        assert f"`examples/{example.name}`" in page and f"(pictures/{example.stem}.png)" in page
        assert (ROOT / "docs" / "pictures" / f"{example.stem}.png").is_file()
