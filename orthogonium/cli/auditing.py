"""`orthogonium audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orthogonium.cli.arguments import AsJson, Checkpoint, new_file


def audit(
    checkpoint: Checkpoint,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Also write the table as a web page.", metavar="FILE", callback=new_file),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure every layer: its singular values, its share of the Lipschitz constant, what is wrong with it.

    Example: [bold]orthogonium audit runs/digits[/bold]
    """
    import orthogonium
    from orthogonium.cli.networks import load_network

    network = load_network(checkpoint)
    report = orthogonium.audit(network.model, network.image_shape)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        report.to_html(html)
    if as_json:
        print(report.to_json())
        return
    report.show()
    if html is not None:
        print(f"Written to {html}")
