"""The folder of a run: the names and contents of its files."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from orthogonium.errors import CheckpointError, ParameterError
from orthogonium.recipes.recipe import Recipe


@dataclass(frozen=True)
class RunFolder:
    """Names and rules of a folder that `fit` trains into.

    Files are written beside their place and then moved there, so they are whole at any moment, even after a kill.

    Args:
        path: the folder, which need not exist.
    """

    path: Path

    @property
    def last(self) -> Path:
        """The newest checkpoint: a folder that has one holds a run."""
        return self.path / "last.ckpt"

    @property
    def best(self) -> Path:
        """The checkpoint of the best epoch."""
        return self.path / "best.ckpt"

    @property
    def recipe_file(self) -> Path:
        """The recipe as JSON."""
        return self.path / "recipe.json"

    @property
    def history_file(self) -> Path:
        """A row per epoch as CSV."""
        return self.path / "history.csv"

    @property
    def logs(self) -> Path:
        """The folder of the CSV logs, a subfolder for each start of the run."""
        return self.path / "logs"

    @property
    def tensorboard(self) -> Path:
        """The same for TensorBoard, if it was asked for."""
        return self.path / "tensorboard"

    @property
    def report(self) -> Path:
        """The report that the command line writes at the end of a run."""
        return self.path / "report.html"

    def begin(self, recipe: Recipe) -> None:
        """Save the recipe of the run."""
        self.recipe_file.write_text(recipe.to_json() + "\n", encoding="utf-8")

    def recipe(self) -> Recipe | None:
        """The recipe of the run that was started here, if any."""
        return Recipe.read(self.recipe_file) if self.recipe_file.is_file() else None

    def result(self, recipe: Recipe | None) -> Path:
        """The checkpoint a run ends with: the best one if it may stop early, else the last one."""
        return self.best if recipe is not None and recipe.keeps_best and self.best.is_file() else self.last

    def find_result(self) -> Path:
        """The checkpoint of the run that is here."""
        if not self.last.is_file():
            raise CheckpointError(f"{self.path} is not the folder of a training run: it has no {self.last.name}.")
        return self.result(self.recipe())

    def clear(self) -> None:
        """Remove the run, if there is one; a folder that holds anything else is refused."""
        if not self.path.exists():
            return
        if not self.recipe_file.is_file():
            raise ParameterError(f"{self.path} exists and does not hold a training run: choose another folder.")
        shutil.rmtree(self.path)


def partial(path: Path) -> Path:
    """Where a file is written before it is moved to its place."""
    return path.with_name(f"{path.name}.partial")


def publish(path: Path) -> None:
    """Move a finished file to its place, atomically."""
    os.replace(partial(path), path)
