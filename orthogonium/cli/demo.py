"""`orthogonium demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orthogonium.cli.arguments import AsJson, Seed, new_folder
from orthogonium.cli.output import console, print_json


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
    from orthogonium.training.run_folder import RunFolder

    recipe = PRESETS["digits"].replace(seed=seed)
    run = RunFolder(out / "run")
    run.clear()
    errors = console(stderr=True)
    errors.print(f"Training {recipe.model} on scikit-learn's digits, 25% held out.")
    started = time.monotonic()
    result = fit(recipe, run.path)
    network = load_network(str(result.checkpoint))
    inputs = load_inputs(network, None, None, None)
    page = RunFolder(out).report
    found = reporting.write(network, inputs, page, eps=network.eps, attacked=len(inputs.labels), seed=seed)
    seconds = time.monotonic() - started
    if as_json:
        values = {"training_seconds": result.seconds, "seconds": seconds, "checkpoint": str(result.checkpoint)}
        print_json({**reporting.summary(found), **values, "report": str(page)})
    else:
        reporting.show(found, network, inputs, page)
        print(f"Checkpoint: {result.checkpoint}  (trained {result.seconds:.0f} s, {seconds:.0f} s in all)")
    return 1 if found.broken else 0
