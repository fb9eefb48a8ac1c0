"""`orthogonium report`, and the report that training ends with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orthogonium.cli.arguments import AsJson, Attacked, AttackMethod, Checkpoint, Data, Eps, Limit, Root, Seed, new_file
from orthogonium.cli.output import console, percent, print_json, print_table
from orthogonium.cli.parsing import radii

if TYPE_CHECKING:
    from orthogonium.cli.networks import Inputs, Network
    from orthogonium.report import Evaluation


def report(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Option("--out", help="The file to write.", metavar="FILE", callback=new_file)] = Path(
        "report.html"
    ),
    eps: Eps = None,
    data: Data = None,
    root: Root = None,
    limit: Limit = None,
    attacked: Attacked = 512,
    method: AttackMethod = "pgd",
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Certify, attack and audit a network, and write one self-contained web page about it.

    Exit code 1 if a certificate is broken, which would be a bug.

    Example: [bold]orthogonium report runs/digits --out report.html[/bold]
    """
    from orthogonium.cli.networks import load_inputs, load_network

    chosen = radii(eps) if eps else None
    network = load_network(checkpoint)
    inputs = load_inputs(network, data, root, limit)
    found = write(network, inputs, out, eps=chosen or network.eps, attacked=attacked, method=method, seed=seed)
    if as_json:
        print_json({"checkpoint": checkpoint, "data": inputs.name, **summary(found), "report": str(out)})
    else:
        show(found, network, inputs, out)
    return 1 if found.broken else 0


def write(
    network: Network,
    inputs: Inputs,
    path: Path,
    *,
    eps: tuple[float, ...],
    attacked: int = 512,
    method: str = "pgd",
    seed: int = 0,
) -> Evaluation:
    """Evaluate, reporting progress on standard error, and write the page."""
    from orthogonium.report import evaluate

    with console(stderr=True).status("evaluating") as status:
        found = evaluate(
            network.model,
            inputs.images,
            inputs.labels,
            eps=eps,
            classes=inputs.classes,
            attacked=attacked,
            method=method,
            seed=seed,
            tell=status.update,
        )
        found.write(path, recipe=network.recipe, history=network.history, title=network.name, facts=network.facts)
    return found


def summary(found: Evaluation) -> dict[str, Any]:
    """The evaluation as JSON values."""
    from orthogonium.cli.certifying import summary as certified

    compared, curve = found.compared, found.curve
    attacked = [
        {"eps": e, "accuracy": a, "certified": compared.certified_accuracy_at(e)}
        for e, a in zip(curve.eps, curve.accuracy, strict=True)
    ]
    return {
        **certified(found.certificates),
        "attack": found.curve.method,
        "attacked_inputs": len(found.index),
        "attacked_accuracy": attacked,
        "broken_certificates": found.broken,
    }


def show(found: Evaluation, network: Network, inputs: Inputs, path: Path) -> None:
    """Print the table, and where the page is."""
    from orthogonium.certification.render import at_most
    from orthogonium.report.sections import radius_text

    certificates, compared, curve = found.certificates, found.compared, found.curve
    total, attacked = len(certificates.labels), len(found.index)
    columns = ["radius", "certified", f"attacked ({curve.method})"]
    rows = [["0 (clean)", percent(certificates.accuracy), percent(curve.accuracy[curve.eps.index(0.0)])]]
    for e, proved in zip(certificates.eps, certificates.certified_accuracy, strict=True):
        rows.append([radius_text(e), percent(proved), percent(curve.accuracy[curve.eps.index(e)])])
    if attacked < total:  # another sample: not to be compared with the whole
        columns[2:] = [f"certified, {attacked} inputs", f"attacked ({curve.method}), the same"]
        for row, e in zip(rows, (0.0, *certificates.eps), strict=True):
            row.insert(2, percent(compared.certified_accuracy_at(e) if e else compared.accuracy))
    title = f"{network.name}: {len(inputs.labels)} held-out inputs, {at_most(certificates.bound.value)}-Lipschitz"
    print_table(title, columns, rows)
    print(f"Broken certificates: {found.broken} of {attacked}")
    print(f"Report: {path.resolve()}")
