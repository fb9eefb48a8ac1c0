"""`orthogonium demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orthogonium.cli.shared import AsJson, Seed, console, new_folder, print_json


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the run and its report.", metavar="DIR", callback=new_folder)
    ] = Path("runs/demo"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """From nothing to a certified network in about a minute: train on digits, certify, attack, report.

    Nothing is downloaded: the digits come with scikit-learn.
    The run in the folder is replaced if it is an earlier demo.
    Exit code 1 if a certificate is broken, which would be a bug.
    """
    import time

    from orthogonium.cli import reporting
    from orthogonium.cli.networks import load_inputs, load_network
    from orthogonium.training import PRESETS, fit

    recipe = PRESETS["digits"].replace(seed=seed)
    run = out / "run"
    _clear(run)
    errors = console(stderr=True)
    errors.print(f"Training {recipe.model} on scikit-learn's digits, 25% held out.")
    started = time.monotonic()
    result = fit(recipe, run)
    network = load_network(str(result.checkpoint))
    inputs = load_inputs(network, None, None, None)
    page = out / "report.html"
    found = reporting.write(network, inputs, page, eps=network.radii, attacked=len(inputs.labels), seed=seed)
    seconds = time.monotonic() - started
    if as_json:
        values = {"training_seconds": result.seconds, "seconds": seconds, "checkpoint": str(result.checkpoint)}
        print_json({**reporting.summary(found), **values, "report": str(page)})
    else:
        reporting.show(found, network, inputs, page)
        print(f"Checkpoint: {result.checkpoint}  (trained {result.seconds:.0f} s, {seconds:.0f} s in all)")
    return 1 if found.broken else 0


def _clear(run: Path) -> None:
    """Remove an earlier demo: a folder that holds a training run and nothing else of the user's."""
    import shutil

    from orthogonium.errors import ParameterError

    if not run.exists():
        return
    if not (run / "recipe.json").is_file():
        raise ParameterError(f"{run} exists and is not an earlier demo: choose another --out.")
    shutil.rmtree(run)
