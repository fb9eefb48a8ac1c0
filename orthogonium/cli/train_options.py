"""The options of `orthogonium train`, as types."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from orthogonium.cli.shared import new_folder


class Logger(str, Enum):
    """What to log for."""

    csv = "csv"
    tensorboard = "tensorboard"


_NAME, _NUMBER, _COUNT, _OPTION = "NAME", "X", "N", "NAME=VALUE"


def _what(help: str, *flags: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, rich_help_panel="What to train")


def _how(help: str, *flags: str, metavar: str | None = None, min: int | None = None, max: int | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, min=min, max=max, rich_help_panel="How to train")


def _where(help: str, metavar: str, min: int | None = None) -> Any:
    return typer.Option(help=help, metavar=metavar, min=min, rich_help_panel="Devices and machines")


def _run(help: str, *flags: str, metavar: str | None = None, min: int | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, min=min, rich_help_panel="The run")


Preset = Annotated[str | None, _what("Start from a recipe known to work: digits, cifar10-cpu-30min.", metavar=_NAME)]
RecipeFile = Annotated[
    Path | None, _what("Start from a recipe.json, such as that of another run.", "--recipe", metavar="FILE")
]
Model = Annotated[str | None, _what("Architecture, see `orthogonium models`.", metavar=_NAME)]
Method = Annotated[
    str | None,
    _what("How its layers are constrained, see `orthogonium methods`; for models that let one choose.", metavar=_NAME),
]
ModelOption = Annotated[
    list[str] | None, _what("Option of the model; may be repeated.", "--model-option", "-O", metavar=_OPTION)
]
Data = Annotated[str | None, _what("digits, cifar10, mnist, fashion-mnist or image-folder.", metavar=_NAME)]
Root = Annotated[Path | None, _what("Folder of the dataset; digits need none.", metavar="DIR")]
Augment = Annotated[str | None, _what("Augmentation: none, shift, crop-flip, ….", metavar=_NAME)]
Validation = Annotated[
    float | None, _what("Share of the training data to validate on; 0: validate on the test data.", metavar=_NUMBER)
]
Loss = Annotated[str | None, _how("offset-cross-entropy, hkr, cosine, emma, ….", metavar=_NAME)]
LossOption = Annotated[list[str] | None, _how("Option of the loss.", "--loss-option", metavar=_OPTION)]
Optimizer = Annotated[str | None, _how("adam, adamw, sgd, ….", metavar=_NAME)]
OptimizerOption = Annotated[list[str] | None, _how("Option of the optimizer.", "--optimizer-option", metavar=_OPTION)]
Rate = Annotated[float | None, _how("Peak learning rate.", metavar=_NUMBER)]
WeightDecay = Annotated[float | None, _how("Decay of matrices and kernels.", metavar=_NUMBER)]
DecayBiases = Annotated[bool, _how("Decay vectors too.", "--decay-biases")]
Schedule = Annotated[str | None, _how("Of the rate: cosine, linear, one-cycle, constant.", metavar=_NAME)]
Warmup = Annotated[float | None, _how("Fraction of training over which the rate rises.", metavar=_NUMBER)]
Epochs = Annotated[int | None, _how("At most; 0: as many as --minutes allow.", metavar=_COUNT)]
Minutes = Annotated[float | None, _how("At most; the rate anneals to its end within. 0: any.", metavar=_NUMBER)]
BatchSize = Annotated[int | None, _how("Samples of one step, over all devices.", metavar=_COUNT)]
Accumulate = Annotated[int | None, _how("Parts in which each device runs its share, to save memory.", metavar=_COUNT)]
ClipNorm = Annotated[float | None, _how("Largest norm of the gradient; 0: any.", metavar=_NUMBER)]
Average = Annotated[float | None, _how("Average weights, with this weight of the past; 0: do not.", metavar=_NUMBER)]
Precision = Annotated[str | None, _how("32, bf16-mixed, 16-mixed or 64.", metavar=_NAME)]
Seed = Annotated[int | None, _how("Of weights, order and augmentation.", metavar=_COUNT, min=0, max=2**63 - 1)]
EarlyStop = Annotated[
    int | None, _how("Stop after so many validations without a better one, keep the best; 0: do not.", metavar=_COUNT)
]
Monitor = Annotated[str | None, _how("What better means: certified or accuracy.", metavar=_NAME)]
ValidateEvery = Annotated[int | None, _how("Epochs between validations.", metavar=_COUNT)]
Eps = Annotated[list[str] | None, _how("l2 radii to report at: 0.25,0.5 or 36/255.", "--eps", metavar="RADII")]

Devices = Annotated[int, _where("Processes per machine.", _COUNT, 1)]
Nodes = Annotated[int, _where("Machines; start it on each by torchrun or SLURM.", _COUNT, 1)]
Strategy = Annotated[str, _where("auto, ddp, fsdp, ….", _NAME)]
Accelerator = Annotated[str, _where("auto, cpu, gpu, ….", _NAME)]
Workers = Annotated[int, _where("Processes that read images from disk.", _COUNT, 0)]

Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the run.",
        metavar="DIR",
        show_default="runs/MODEL-DATA",
        callback=new_folder,
        rich_help_panel="The run",
    ),
]
Resume = Annotated[bool, _run("Continue the run in --out, with its own recipe unless one is given.", "--resume")]
CheckpointMinutes = Annotated[
    float, _run("Minutes between checkpoints within an epoch.", "--checkpoint-minutes", metavar=_NUMBER)
]
LoggerName = Annotated[Logger, _run("csv, or tensorboard beside it.", "--logger", metavar=_NAME)]
LogEvery = Annotated[int, _run("Steps between two lines of the logs.", metavar=_COUNT, min=1)]
NoReport = Annotated[bool, _run("Do not certify, attack and audit the result into report.html.", "--no-report")]
Attacked = Annotated[int, _run("Inputs the report attacks.", metavar=_COUNT, min=1)]
Quiet = Annotated[bool, _run("No progress bar.", "--quiet", "-q")]
DryRun = Annotated[bool, _run("Check everything up to training, print the recipe and stop.", "--dry-run")]
AsJson = Annotated[bool, _run("Print one JSON object and nothing else on standard output.", "--json")]
