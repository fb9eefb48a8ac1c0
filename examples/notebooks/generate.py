"""Writes the notebook of each example beside this file: `make notebooks`."""

from pathlib import Path

import jupytext
import nbformat

HERE = Path(__file__).parent


def notebook(example: Path) -> str:
    """The text of the notebook of a file in percent format: no outputs, and cells are named by their place."""
    made = jupytext.read(example, fmt="py:percent")
    made.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for place, cell in enumerate(made.cells):
        cell.id = f"cell-{place}"
    return nbformat.writes(made) + "\n"


if __name__ == "__main__":
    for example in sorted(HERE.parent.glob("*.py")):
        (HERE / f"{example.stem}.ipynb").write_text(notebook(example), encoding="utf-8")
