"""`orthogonium compare`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orthogonium.cli.arguments import AsJson, Attacked, new_folder
from orthogonium.cli.output import console, percent, print_json, print_table
from orthogonium.cli.recipe_flags import fields_given, with_recipe_flags
from orthogonium.cli.recipes import vary
from orthogonium.cli.run_options import Accelerator, Quiet, RecipeFile, out_option
from orthogonium.errors import ParameterError

if TYPE_CHECKING:
    from orthogonium.comparison import Comparison, Contestant, Progress, RunResult
    from orthogonium.recipes.recipe import Recipe

_PANEL = "What to compare"
Methods = Annotated[
    str | None,
    typer.Option(help="Methods, see `orthogonium methods`: aoc,soc,aol.", metavar="NAMES", rich_help_panel=_PANEL),
]
Conv = Annotated[
    list[str] | None,
    typer.Option(
        help="A class with the arguments of nn.Conv2d, of any library or of a file in this folder: "
        "package.module:Class. "
        "May be repeated.",
        metavar="PLACE",
        rich_help_panel=_PANEL,
    ),
]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each, from --seed on.", metavar="K", rich_help_panel=_PANEL)]
Out = Annotated[
    Path | None,
    out_option("Folder of the comparison; one that was interrupted there is continued.", "runs/compare-DATA"),
]


@with_recipe_flags(before="accelerator")
def compare(
    *,
    methods: Methods = None,
    conv: Conv = None,
    seeds: Seeds = 1,
    recipe_file: RecipeFile = None,
    accelerator: Accelerator = "auto",
    out: Out = None,
    attacked: Attacked = 128,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **fields: Any,
) -> int:
    """Train one network with each of several methods under the same budget, and tabulate what they reach.

    Give --minutes or --epochs: the budget of each run. All else is the same for all contestants. The same command
    continues after an interruption or a kill: finished runs are kept.

    [bold]orthogonium compare --methods aoc,soc,aol --data digits --minutes 0.5 --seeds 3 --out runs/compare[/bold]

    [bold]orthogonium compare --methods aoc --conv torch.nn:Conv2d --data digits --epochs 10[/bold]
    """
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from orthogonium.cli.training import check_names
    from orthogonium.comparison import Plan
    from orthogonium.comparison import compare as run_all
    from orthogonium.comparison.plan import ComparisonFolder

    recipe = _recipe(recipe_file, fields_given(fields))
    check_names(recipe.model, "auto", accelerator)
    plan = Plan(recipe, _contestants(methods, conv), seeds, attacked, accelerator)
    folder = ComparisonFolder(out or Path("runs") / f"compare-{plan.recipe.data}")
    new_folder(folder.path)
    try:
        with _display(quiet) as tell:
            found = run_all(plan, folder.path, tell=tell)
    except MisconfigurationException as error:  # a device that is not there
        raise ParameterError(str(error)) from error
    except KeyboardInterrupt:
        console(stderr=True).print("Interrupted. The same command continues; finished runs are kept.", markup=False)
        return 130
    if as_json:
        print_json({**found.to_dict(), "report": str(folder.report), "broken_certificates": found.broken})
    else:
        _show(found)
        print(f"Report: {folder.report.resolve()}")
    return 1 if found.broken or not any(row.finished for row in found.rows) else 0


def _contestants(methods: str | None, conv: list[str] | None) -> tuple[Contestant, ...]:
    from orthogonium.comparison import Contestant

    if conv and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: a class may be in a file right here
    names = [name.strip() for name in methods.split(",")] if methods is not None else []
    return (*map(Contestant.method, names), *map(Contestant.conv, conv or ()))


def _recipe(file: Path | None, given: dict[str, Any]) -> Recipe:
    """The recipe from the file or for the dataset, with the given fields and one budget."""
    from orthogonium.comparison import base_recipe
    from orthogonium.recipes.recipe import Recipe

    budget = [name for name in ("minutes", "epochs") if given.get(name) is not None]
    if len(budget) > 1:
        raise ParameterError("--minutes and --epochs exclude each other: a comparison has one budget.")
    if not budget and file is None:
        raise ParameterError("A comparison needs a budget for each run: give --minutes or --epochs.")
    if budget:
        given = {"minutes": None, "epochs": None, **given}
    base = Recipe.read(file) if file is not None else base_recipe(given.get("data", "digits"))
    return vary(base, given)


@contextmanager
def _display(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """One display of all runs on standard error: a line for each that ended, on terminals a bar for the running one."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), TaskProgressColumn(), TimeElapsedColumn())
    bars = Bars(*columns, TextColumn("{task.fields[numbers]}"), console=screen, transient=True)
    task = bars.add_task("", total=1.0, numbers="")

    def tell(progress: Progress) -> None:
        who = f"{progress.number} of {progress.total}  {progress.contestant.name}, seed {progress.seed}"
        if progress.result is not None:
            screen.print(f"{who}: {_outcome(progress.result)}", markup=False)
            bars.reset(task)
        elif screen.is_terminal:
            stage = "evaluating" if progress.fraction >= 1 else _latest(progress.latest)
            bars.update(task, description=who, completed=progress.fraction, numbers=stage)
            bars.start()

    try:
        yield (lambda progress: None) if quiet else tell
    finally:
        if bars.live.is_started:
            bars.stop()


def _latest(row: dict[str, float] | None) -> str:
    shown = {"step": "step {:.0f}", "train_loss": "loss {:.3f}", "val_accuracy": "val {:.1%}"}
    return "  ".join(text.format(row[key]) for key, text in shown.items() if key in row) if row else ""


def _outcome(result: RunResult) -> str:
    if not result.is_finished or result.accuracy is None:
        return f"{result.status}: {result.reason}"
    proved = "nothing is proved" if result.certified is None else f"certified {percent(result.certified[0])}"
    return f"clean {percent(result.accuracy)}, {proved}, {result.steps} steps"


def _show(found: Comparison) -> None:
    """Print costs and accuracies; the page and the files have more."""
    from orthogonium.comparison.page import with_spread
    from orthogonium.comparison.rows import milliseconds
    from orthogonium.report.sections import radius_text

    recipe = found.plan.recipe
    eps = [radius_text(e) for e in recipe.eps]
    costs, certified, attacked, remarks = [], [], [], []
    for row in found.rows:
        f = row.figures(recipe.eps)
        costs.append(
            [
                row.name,
                "–" if f["parameters"] is None else f"{f['parameters'].mean:.0f}",
                with_spread(f["step_seconds"], milliseconds),
                with_spread(f["images_per_second"], lambda x: f"{x:.0f}"),
                with_spread(f["steps"], lambda x: f"{x:.0f}"),
                with_spread(f["memory"], lambda x: f"{x / 1e6:.0f}"),
            ]
        )
        of_all = [f["accuracy"], *(f[f"certified@{e}"] for e in eps)]
        certified.append([row.name, *(with_spread(x, percent) for x in of_all)])
        attacked.append([row.name, *(with_spread(f[f"attacked@{e}"], percent) for e in eps)])
        remarks += [f"{row.name}: {remark}" for remark in row.remarks]
    columns = ["method", "parameters", "ms/step", "images/s", "steps", "MB"]
    print_table(f"{recipe.model} on {recipe.data}, {found.plan.budget} each", columns, costs)
    print_table("Certified accuracy, of all test inputs", ["method", "clean", *eps], certified)
    inputs = next((result.attacked_inputs for row in found.rows for result in row.results if result.attacked_inputs), 0)
    if inputs:
        title = f"Accuracy under attack, of {inputs} test inputs, evenly spread"
        print_table(title, ["method", *eps], attacked)
    for remark in remarks:
        print(remark)
