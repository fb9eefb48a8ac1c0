"""`orthogonium attack`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from orthogonium.cli.arguments import AsJson, AttackMethod, BatchSize, Checkpoint, Data, Eps, Root, Seed
from orthogonium.cli.output import percent, print_json, print_table
from orthogonium.cli.parsing import radii


def attack(
    checkpoint: Checkpoint,
    method: AttackMethod = "pgd",
    eps: Eps = None,
    certificates: Annotated[bool, typer.Option(help="Also attack every input inside its own certified radius.")] = True,
    data: Data = None,
    root: Root = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many inputs of the test split to attack.")] = 500,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Of the attack.", show_default="its own")] = None,
    restarts: Annotated[
        int | None, typer.Option("--restarts", min=1, help="From random starts.", show_default="its own")
    ] = None,
    pixels: Annotated[
        bool, typer.Option("--pixels/--anywhere", help="Keep pixels in [0, 1], or let perturbed inputs leave it.")
    ] = False,
    batch_size: BatchSize = 500,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Attack a network: its accuracy at radii, and whether its certificates hold.

    Exit code 1 if a certificate is broken, which would be a bug.

    Example: [bold]orthogonium attack runs/digits --method pgd --eps 0.25,0.5,1[/bold]
    """
    import orthogonium
    from orthogonium.attacks import AttackOptions, break_certificates, empirical_accuracy
    from orthogonium.cli.networks import load_inputs, load_network
    from orthogonium.report.curves import refuted
    from orthogonium.report.evaluation import batches
    from orthogonium.report.sections import radius_text

    chosen = radii(eps) if eps else None
    network = load_network(checkpoint)
    inputs = load_inputs(network, data, root, limit)
    chosen = chosen or network.eps
    model, images, labels = network.model, inputs.images, inputs.labels
    bounds = (0.0, 1.0) if pixels else None
    how = AttackOptions(method, steps, restarts, bounds, seed, batch_size)
    curve = empirical_accuracy(model, images, labels, chosen, **asdict(how))
    certified = orthogonium.certify(model, batches(images, labels, batch_size), chosen)
    broken = refuted(certified, curve)
    if certificates:
        inside = break_certificates(model, images, labels, certified.radii, **asdict(how))
        broken = broken | inside.broken.cpu()
    count = int(broken.sum())
    rows = list(zip(chosen, certified.certified_accuracy, curve.accuracy, strict=True))
    if as_json:
        print_json(
            {
                "checkpoint": checkpoint,
                "data": inputs.name,
                "method": method,
                "inputs": len(labels),
                "accuracy": certified.accuracy,
                "at": [{"eps": e, "certified": c, "attacked": a} for e, c, a in rows],
                "broken_certificates": count,
            }
        )
    else:
        clean = ("0", percent(certified.accuracy), percent(certified.accuracy))
        print_table(
            f"{network.name}: {len(labels)} inputs of {inputs.name}, attacked by {method}",
            ["radius", "certified", "attacked"],
            [clean, *((radius_text(e), percent(c), percent(a)) for e, c, a in rows)],
        )
        print(f"Broken certificates: {count}")
    return 1 if count else 0
