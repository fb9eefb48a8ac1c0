"""Run contestants one after the other, each run in a process of its own; finished runs are kept."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orthogonium.comparison import contest
from orthogonium.comparison.contestant import Contestant
from orthogonium.comparison.identity import check_same, data_digest
from orthogonium.comparison.plan import ComparisonFolder, Plan, write_json
from orthogonium.comparison.result import RunResult
from orthogonium.comparison.summary import Comparison
from orthogonium.recipes.recipe import Recipe
from orthogonium.training.fitting import load_data
from orthogonium.training.run_folder import RunFolder

_LOOK_SECONDS = 0.5  # between two looks at a run
_REASON_LENGTH = 300
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True)
class Progress:
    """How far a comparison has come.

    Attributes:
        contestant: contestant of the run.
        seed: seed of the run.
        number: number of the run, from 1.
        total: number of runs in all.
        fraction: fraction of its budget that the run has spent.
        latest: the last row of its history.
        result: its result, once there is one.
    """

    contestant: Contestant
    seed: int
    number: int
    total: int
    fraction: float = 0.0
    latest: dict[str, float] | None = None
    result: RunResult | None = None


def compare(
    plan: Plan, out: str | os.PathLike[str], *, tell: Callable[[Progress], None] = lambda progress: None
) -> Comparison:
    """Train and evaluate each contestant under the same budget, into a folder, and write the tables and the report.

    Called again on the same folder, it continues: runs with a result are kept as they are, an interrupted run continues
    from its last checkpoint (written after each epoch, and each minute within), and failed runs are tried again.
    Contestants or seeds may be added; another recipe, other data, and a class whose file has changed are refused.

    Args:
        plan: what to compare.
        out: the folder. It receives `comparison.html`, `comparison.json`, `comparison.csv`, `plan.json`, and the folder
            of each run under `runs/`.
        tell: called when a run begins, a few times a second while it runs, and when it ends.

    Returns:
        A row for each contestant. One that failed or diverged has a row that says so.
    """
    folder = ComparisonFolder(Path(out))
    plan.check()
    folder.begin(plan)
    entries = _entries(plan, folder)
    results: dict[tuple[Contestant, int], RunResult] = {}
    for number, (contestant, seed) in enumerate(plan.runs, 1):
        here = Progress(contestant, seed, number, len(plan.runs))
        result = _kept(folder.result(contestant, seed))
        if result is None:
            result = _run(plan, folder, here, entries[contestant, seed], tell)
        results[contestant, seed] = result
        tell(Progress(contestant, seed, number, len(plan.runs), 1.0, result=result))
        Comparison.of(plan, results).write(folder)  # what is known so far
    return Comparison.of(plan, results)


def _entries(plan: Plan, folder: ComparisonFolder) -> dict[tuple[Contestant, int], dict[str, Any]]:
    """What each run is told; those already begun were told the same."""
    data = data_digest(load_data(plan.recipe))
    found = {
        (contestant, seed): contest.entry(
            contestant, contestant.recipe(plan.recipe, seed), plan.attacked, plan.accelerator, data
        )
        for contestant, seed in plan.runs
    }
    for run, entry in found.items():
        check_same(folder.entry(*run), entry)
    return found


def _kept(path: Path) -> RunResult | None:
    found = RunResult.read(path) if path.is_file() else None
    return found if found is not None and found.is_kept else None


def _run(
    plan: Plan, folder: ComparisonFolder, here: Progress, entry: dict[str, Any], tell: Callable[[Progress], None]
) -> RunResult:
    contestant, seed = here.contestant, here.seed
    place, result = folder.run(contestant, seed), folder.result(contestant, seed)
    place.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    recipe = contestant.recipe(plan.recipe, seed)
    write_json(folder.entry(contestant, seed), entry)
    errors = place / "errors.txt"
    begun = time.time()
    with errors.open("wb") as file, _process(place, file.fileno()) as process:
        while True:
            try:
                process.wait(_LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                fraction, latest = _standing(recipe, RunFolder(place), begun)
                tell(Progress(contestant, seed, here.number, here.total, fraction, latest))
    if process.returncode == contest.INTERRUPTED:
        raise KeyboardInterrupt
    if not result.is_file():
        RunResult("failed", seed, _reason(process.returncode, errors), eps=plan.recipe.eps).write(result)
    return RunResult.read(result)


@contextmanager
def _process(place: Path, errors: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a run, in a session of its own: it gets a Ctrl-C once, from here, and then saves its state."""
    command = [sys.executable, "-m", "orthogonium.comparison", str(place.resolve())]
    paths = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}  # contestants may be anywhere
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # closed by the system when this process ends, which the other one notices
        stdout=errors,
        stderr=errors,
        env={**os.environ, **paths},
        start_new_session=True,
    ) as process:
        try:
            yield process
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        finally:
            if process.poll() is None:
                process.kill()


def _standing(recipe: Recipe, folder: RunFolder, begun: float) -> tuple[float, dict[str, float] | None]:
    """The fraction of the budget that a run has spent, and the last row of its history, as its files show."""
    latest = None
    if folder.history_file.is_file():
        with folder.history_file.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        latest = {key: float(value) for key, value in rows[-1].items() if value} if rows else None
    spent = 0.0
    if recipe.epochs is not None and latest is not None:
        spent = latest["epoch"] / recipe.epochs
    if recipe.minutes is not None and folder.recipe_file.is_file():
        since = max(folder.recipe_file.stat().st_mtime, begun)
        elapsed = time.time() - since
        if latest is not None:
            since_row = max(folder.history_file.stat().st_mtime, since)
            elapsed = latest["seconds"] + time.time() - since_row
        spent = max(spent, elapsed / (60 * recipe.minutes))
    return min(spent, 1.0), latest


def _reason(code: int, errors: Path) -> str:
    """Why a process ended without a result: a signal, what it raised, or the last line that it wrote."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"Its process was ended by {name}{', perhaps for want of memory' if name == 'SIGKILL' else ''}."
    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if _TRACEBACK in lines:  # what was raised begins with the first line after the frames, which are indented
        last = len(lines) - lines[::-1].index(_TRACEBACK)
        raised = next((i for i in range(last, len(lines)) if not lines[i].startswith(" ")), len(lines) - 1)
        lines = [" ".join(lines[raised:])]
    return (lines[-1] if lines else f"Its process ended with exit code {code}.")[:_REASON_LENGTH]
