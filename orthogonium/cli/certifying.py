"""`orthogonium certify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orthogonium.cli.arguments import AsJson, BatchSize, Checkpoint, Data, Eps, Limit, Root, new_file
from orthogonium.cli.output import percent, print_json, print_table
from orthogonium.cli.parsing import radii

if TYPE_CHECKING:
    from orthogonium.certification import Certificates


def certify(
    checkpoint: Checkpoint,
    eps: Eps = None,
    data: Data = None,
    root: Root = None,
    limit: Limit = None,
    batch_size: BatchSize = 500,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            help="Write label, prediction and radius of every input as CSV.",
            metavar="FILE",
            callback=new_file,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove how far each input may be moved without changing its class.

    The Lipschitz constant of the network is measured anew, layer by layer.
    The radius of an input is its margin over that constant, rounding deducted:
    no attack of smaller l2 norm can succeed.

    Example: [bold]orthogonium certify runs/digits --eps 0.25,0.5 --save radii.csv[/bold]
    """
    from orthogonium.certification.render import at_most
    from orthogonium.cli.networks import load_inputs, load_network
    from orthogonium.report.evaluation import batches
    from orthogonium.report.sections import radius_text

    chosen = radii(eps) if eps else None
    network = load_network(checkpoint)
    inputs = load_inputs(network, data, root, limit)
    import orthogonium

    found = orthogonium.certify(network.model, batches(inputs.images, inputs.labels, batch_size), chosen or network.eps)
    if save is not None:
        write_radii(save, found, inputs.classes)
    if as_json:
        print_json({"checkpoint": checkpoint, "data": inputs.name, **summary(found)})
        return
    rows = [("0 (accuracy)", percent(found.accuracy))]
    rows += [(radius_text(e), percent(a)) for e, a in zip(found.eps, found.certified_accuracy, strict=True)]
    title = f"{network.name}: {len(inputs.labels)} inputs of {inputs.name}, {at_most(found.bound.value)}-Lipschitz"
    print_table(title, ["radius", "certified accuracy"], rows)
    if save is not None:
        print(f"Radii of all inputs: {save}")


def summary(found: Certificates) -> dict[str, Any]:
    """The certificates as JSON values."""
    return {
        "inputs": len(found.labels),
        "lipschitz_bound": found.bound.value,
        "accuracy": found.accuracy,
        "certified_accuracy": [
            {"eps": e, "accuracy": a} for e, a in zip(found.eps, found.certified_accuracy, strict=True)
        ],
        "mean_radius": float(found.radii.clamp(min=0).mean()),
        "forward_error": found.forward_error,
    }


def write_radii(path: Path, found: Certificates, classes: tuple[str, ...]) -> None:
    """Write a line for each input. A negative radius says how far the prediction is from being right."""
    import csv

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["index", "label", "prediction", "correct", "radius"])
        rows = zip(found.labels.tolist(), found.predictions.tolist(), found.radii.tolist(), strict=True)
        for index, (label, prediction, radius) in enumerate(rows):
            writer.writerow([index, classes[label], classes[prediction], int(label == prediction), repr(radius)])
