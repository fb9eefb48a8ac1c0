"""Arguments that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A checkpoint file, the folder of a run or of a saved network, or the name of a pretrained model.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="Dataset to evaluate on.", show_default="the one it was trained on", metavar="NAME"),
]
Root = Annotated[
    Path | None, typer.Option("--root", help="Folder of the dataset, for those that are not bundled.", metavar="DIR")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Use only the first inputs of the test split.")]
Eps = Annotated[
    list[str] | None,
    typer.Option(
        "--eps",
        help="l2 radii in units of pixels in [0, 1]: 0.25,0.5 or 36/255; may be repeated.",
        show_default="those of training",
        metavar="RADII",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Attacked = Annotated[
    int, typer.Option("--attacked", min=1, metavar="N", help="How many inputs to attack; attacks are the slow part.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, max=2**31 - 1, help="Inputs per forward pass.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of everything random.")]


def _known_attack(name: str) -> str:
    from orthogonium.attacks import list_attacks

    if name not in list_attacks():
        raise typer.BadParameter(f"attacks are {', '.join(list_attacks())}: got {name!r}.")
    return name


AttackMethod = Annotated[
    str,
    typer.Option(
        "--method",
        help="Of the attack: pgd is built in; ddn, cw, deepfool, … of foolbox and autoattack need the extra "
        "\\[attack].",
        callback=_known_attack,
    ),
]


def new_file(path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before any work is done for it. A callback of options."""
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{path} is a folder, and a file is to be written.")
    return _writable(path)


def new_folder(path: Path | None) -> Path | None:
    """Refuse a folder that could not be made or written to. A callback of options."""
    if path is not None and path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is a file, and a folder is needed.")
    return _writable(path)


def _writable(path: Path | None) -> Path | None:
    if path is not None:
        place = next(p for p in (path, *path.absolute().parents) if p.exists())  # folders on the way are made
        if place != path and not place.is_dir():
            raise typer.BadParameter(f"{path} cannot be written: {place} is not a folder.")
        if not os.access(place, os.W_OK):
            raise typer.BadParameter(f"{path} cannot be written: no permission to write to {place}.")
    return path
