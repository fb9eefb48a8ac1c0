"""What is compared, and where its files go."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orthogonium.comparison.contestant import Contestant, check_model
from orthogonium.errors import OrthogoniumError, ParameterError
from orthogonium.recipes.presets import PRESETS
from orthogonium.recipes.recipe import Recipe
from orthogonium.training.fitting import fit
from orthogonium.training.run_folder import partial, publish

# Every method has its place in this network: convolutions that keep channels and pixels in each stage, and circular
# padding, under which all guarantees hold and which methods in the Fourier domain need.
_NETWORK: dict[str, Any] = {"depth": 3, "padding_mode": "circular"}
_NETWORKS: dict[str, dict[str, Any]] = {
    "digits": {**_NETWORK, "widths": [16, 32, 64], "stride_kernel": 2, "hidden": [128]},
    "cifar10": {**_NETWORK, "widths": [32, 64, 128], "stride_kernel": 2, "patch": 2, "hidden": [256]},
}


def base_recipe(data: str) -> Recipe:
    """A recipe for comparisons on a dataset: that of its preset, with a network in which every method has a place.

    >>> from orthogonium.comparison import base_recipe
    >>> base_recipe("digits").model_options["padding_mode"]
    'circular'
    """
    preset = PRESETS["cifar10-cpu-30min" if data == "cifar10" else "digits"]
    options = _NETWORKS["cifar10" if data == "cifar10" else "digits"]
    return preset.replace(model="aocnet_tiny", model_options=options, data=data)


@dataclass(frozen=True)
class Plan:
    """A comparison: contestants, and what is the same for all of them.

    Attributes:
        recipe: that of every run, except for the method and the seed; its `epochs` or `minutes` are the budget per run.
        contestants: who takes part.
        seeds: number of runs of each contestant, with consecutive seeds that start at that of the recipe.
        attacked: number of test inputs to attack.
        accelerator: Lightning's ("auto", "cpu", "gpu", …).
    """

    recipe: Recipe
    contestants: tuple[Contestant, ...]
    seeds: int = 1
    attacked: int = 128
    accelerator: str = "auto"

    def __post_init__(self) -> None:
        if not self.contestants:
            raise ParameterError("A comparison needs a contestant: name methods, or convolutions of other libraries.")
        folders = [contestant.folder for contestant in self.contestants]
        twice = sorted({c.name for c in self.contestants if folders.count(c.folder) > 1})
        if twice:
            raise ParameterError(f"A contestant takes part once: got {', '.join(twice)} several times.")
        for name in ("seeds", "attacked"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name}={getattr(self, name)} must be at least 1.")
        check_model(self.recipe)

    @property
    def runs(self) -> list[tuple[Contestant, int]]:
        """Contestants and seeds in order: all contestants with the first seed come first."""
        first = self.recipe.seed
        return [(contestant, seed) for seed in range(first, first + self.seeds) for contestant in self.contestants]

    @property
    def budget(self) -> str:
        """What each run may spend, in words."""
        recipe = self.recipe
        spans = [f"{recipe.epochs} epoch{'' if recipe.epochs == 1 else 's'}"] if recipe.epochs is not None else []
        if recipe.minutes is not None:
            spans.append(f"{60 * recipe.minutes:.3g} seconds" if recipe.minutes < 1 else f"{recipe.minutes:g} minutes")
        return " or ".join(spans)

    def check(self) -> None:
        """Try data, devices, loss and the networks of methods, without training.

        A problem of all contestants is an error; a problem of one of them is reported in its row.
        """
        methods = [contestant for contestant in self.contestants if contestant.kind == "method"]
        recipes = [contestant.recipe(self.recipe, self.recipe.seed) for contestant in methods] or [self.recipe]
        problems: list[OrthogoniumError] = []
        with tempfile.TemporaryDirectory() as empty:
            for recipe in recipes:
                try:
                    fit(recipe, empty, accelerator=self.accelerator, dry_run=True)
                    return
                except OrthogoniumError as error:
                    problems.append(error)
        raise problems[0]

    def to_dict(self) -> dict[str, Any]:
        """All that determines the comparison, as JSON values."""
        return {**asdict(self), "recipe": self.recipe.to_dict(), "contestants": [asdict(c) for c in self.contestants]}


@dataclass(frozen=True)
class ComparisonFolder:
    """Names and rules of the folder of a comparison."""

    path: Path

    @property
    def plan_file(self) -> Path:
        """The plan as JSON: a folder that has one holds a comparison."""
        return self.path / "plan.json"

    @property
    def report(self) -> Path:
        """The page with all tables and curves."""
        return self.path / "comparison.html"

    @property
    def table(self) -> Path:
        """A row for each contestant as CSV."""
        return self.path / "comparison.csv"

    @property
    def results(self) -> Path:
        """Rows and runs as JSON."""
        return self.path / "comparison.json"

    def run(self, contestant: Contestant, seed: int) -> Path:
        """The folder of a run, as `fit` fills it."""
        return self.path / "runs" / contestant.folder / f"seed-{seed}"

    def entry(self, contestant: Contestant, seed: int) -> Path:
        """What a run was told, and what else it depended on."""
        return self.run(contestant, seed) / "entry.json"

    def result(self, contestant: Contestant, seed: int) -> Path:
        """The result of a run; a run that has one is finished."""
        return self.run(contestant, seed) / "result.json"

    def begin(self, plan: Plan) -> None:
        """Save the plan, or check that the folder belongs to it: contestants and seeds may be added, nothing else."""
        if self.plan_file.is_file():
            self._check_same(json.loads(self.plan_file.read_text(encoding="utf-8")), plan)
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise ParameterError(f"{self.path} is not empty, and holds no comparison: choose another folder.")
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.plan_file, plan.to_dict())

    def _check_same(self, theirs: Mapping[str, Any], plan: Plan) -> None:
        ours = plan.to_dict()
        differ = list(_differences(theirs["recipe"], ours["recipe"]))
        differ += [
            text for text in _differences(theirs, ours) if not text.startswith(("recipe=", "contestants=", "seeds="))
        ]
        if differ:
            raise ParameterError(
                f"{self.path} holds another comparison: {', '.join(differ)}. Continue it as it began, or choose "
                "another folder."
            )


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    for key, value in ours.items():
        if theirs.get(key) != value and key != "root":  # the same data may have moved
            yield f"{key}={value!r} (there {theirs.get(key)!r})"


def write_json(path: Path, value: Any) -> None:
    """Write a file of JSON, whole or not at all."""
    partial(path).write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    publish(path)
