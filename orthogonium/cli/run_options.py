"""The options of `orthogonium train` beside the fields of a recipe, as types."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from orthogonium.cli.arguments import new_folder


class Logger(str, Enum):
    """Who reads the logs of a run."""

    csv = "csv"
    tensorboard = "tensorboard"


_NAME, _NUMBER, _COUNT = "NAME", "X", "N"


def _what(help: str, *flags: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, rich_help_panel="What to train")


def _where(help: str, metavar: str, min: int | None = None) -> Any:
    return typer.Option(help=help, metavar=metavar, min=min, rich_help_panel="Devices and machines")


def _run(help: str, *flags: str, metavar: str | None = None, min: int | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, min=min, rich_help_panel="The run")


def out_option(help: str, default: str) -> Any:
    """The option --out of a command that makes a folder, by default the one described."""
    return typer.Option(help=help, metavar="DIR", show_default=default, callback=new_folder, rich_help_panel="The run")


Preset = Annotated[
    str | None,
    _what(
        "Start from a recipe worth starting from: digits, cifar10-cpu-30min, cifar10-cpu-2h, imagenet.", metavar=_NAME
    ),
]
RecipeFile = Annotated[
    Path | None, _what("Start from a recipe.json, such as that of another run.", "--recipe", metavar="FILE")
]
Method = Annotated[
    str | None,
    _what("How its layers are constrained, see `orthogonium methods`; for models that let one choose.", metavar=_NAME),
]

Devices = Annotated[int, _where("Processes per machine.", _COUNT, 1)]
Nodes = Annotated[int, _where("Machines; start it on each by torchrun or SLURM.", _COUNT, 1)]
Strategy = Annotated[str, _where("auto, ddp, fsdp, ….", _NAME)]
Accelerator = Annotated[str, _where("auto, cpu, gpu, ….", _NAME)]
Workers = Annotated[int, _where("Processes that read images from disk.", _COUNT, 0)]

Out = Annotated[Path | None, out_option("Folder of the run.", "runs/MODEL-DATA")]
Resume = Annotated[bool, _run("Continue the run in --out, with its own recipe unless one is given.", "--resume")]
CheckpointMinutes = Annotated[
    float, _run("Minutes between checkpoints within an epoch.", "--checkpoint-minutes", metavar=_NUMBER)
]
LoggerName = Annotated[Logger, _run("csv, or tensorboard beside it.", "--logger", metavar=_NAME)]
LogEvery = Annotated[int, _run("Steps between two lines of the logs.", metavar=_COUNT, min=1)]
NoReport = Annotated[bool, _run("Do not certify, attack and audit the result into report.html.", "--no-report")]
Quiet = Annotated[bool, _run("No progress bar.", "--quiet", "-q")]
DryRun = Annotated[bool, _run("Check everything up to training, print the recipe and stop.", "--dry-run")]
