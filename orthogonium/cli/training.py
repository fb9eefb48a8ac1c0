"""`orthogonium train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orthogonium.cli import run_options as o
from orthogonium.cli.arguments import AsJson, Attacked, new_folder
from orthogonium.cli.output import console, print_json
from orthogonium.cli.recipe_flags import fields_given, with_recipe_flags
from orthogonium.cli.recipes import compose

if TYPE_CHECKING:
    from orthogonium.training import Recipe, TrainingResult


@with_recipe_flags(before="devices")
def train(
    *,
    preset: o.Preset = None,
    recipe_file: o.RecipeFile = None,
    method: o.Method = None,
    devices: o.Devices = 1,
    nodes: o.Nodes = 1,
    strategy: o.Strategy = "auto",
    accelerator: o.Accelerator = "auto",
    workers: o.Workers = 0,
    out: o.Out = None,
    resume: o.Resume = False,
    checkpoint_minutes: o.CheckpointMinutes = 5.0,
    logger: o.LoggerName = o.Logger.csv,
    log_every: o.LogEvery = 50,
    no_report: o.NoReport = False,
    attacked: Attacked = 512,
    quiet: o.Quiet = False,
    dry_run: o.DryRun = False,
    as_json: AsJson = False,
    **fields: Any,
) -> int:
    r"""Train a network, certify it, and write a report.

    Options override the preset. Ctrl-C (or SIGTERM) finishes the step and leaves a checkpoint;
    --resume continues as if nothing had happened.

    [bold]orthogonium train --preset digits --out runs/digits[/bold]

    [bold]orthogonium train --preset cifar10-cpu-30min --root data/cifar-10-batches-bin[/bold]

    [bold]orthogonium train --data digits --model aocnet_tiny -O widths=\[16,32] --loss cosine --epochs 20[/bold]

    [bold]orthogonium train --out runs/digits --resume[/bold]
    """
    from orthogonium.errors import ParameterError

    given = fields_given(fields)
    if method is not None:
        options = given.setdefault("model_options", {})
        if options.setdefault("method", method) != method:
            raise ParameterError(f"--method {method} and -O method={options['method']} contradict each other.")
    recipe = compose(preset, recipe_file, out if resume else None, given)
    folder = out or Path("runs") / f"{recipe.model}-{recipe.data}"
    new_folder(folder)
    check_names(recipe.model, strategy, accelerator)
    result = _fit(
        recipe, folder, resume="auto" if resume else None, devices=devices, nodes=nodes, strategy=strategy,
        accelerator=accelerator, progress=not quiet, tensorboard=logger is o.Logger.tensorboard, log_every=log_every,
        checkpoint_minutes=checkpoint_minutes, workers=workers, dry_run=dry_run,
    )  # fmt: skip
    if result is None:
        return 130
    if dry_run:
        print(recipe.to_json())
        return 0
    return _finish(result, folder, not no_report, attacked, as_json)


def check_names(model: str, strategy: str, accelerator: str) -> None:
    """Report what Python would report otherwise, in the terms of this command."""
    from lightning.pytorch.accelerators import AcceleratorRegistry
    from lightning.pytorch.strategies import StrategyRegistry

    from orthogonium.errors import ParameterError
    from orthogonium.models import describe_pretrained, list_models

    if model in list_models(pretrained=True):
        trained = describe_pretrained(model).model
        raise ParameterError(f"--model {model}: these are trained weights of the model {trained}. Name that.")
    if strategy not in ("auto", "fsdp", *StrategyRegistry.available_strategies()):
        raise ParameterError(f"--strategy {strategy!r} is unknown: it is auto, ddp, fsdp or another one of Lightning.")
    if accelerator not in ("auto", "gpu", *AcceleratorRegistry.available_accelerators()):
        raise ParameterError(
            f"--accelerator {accelerator!r} is unknown: it is auto, cpu, gpu or another one of Lightning."
        )


def _fit(recipe: Recipe, folder: Path, **options: Any) -> TrainingResult | None:
    """Train; None if it was interrupted, having said how to continue."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from orthogonium.errors import ParameterError
    from orthogonium.training import fit

    try:
        return fit(recipe, folder, **options)
    except MisconfigurationException as error:
        raise ParameterError(str(error)) from error
    except KeyboardInterrupt:
        if _is_first_process():
            console(stderr=True).print(
                f"Interrupted. Continue with: orthogonium train --out {folder} --resume", markup=False
            )
        return None


def _is_first_process() -> bool:
    from lightning.pytorch.utilities import rank_zero_only

    return getattr(rank_zero_only, "rank", 0) == 0


def _finish(result: TrainingResult, folder: Path, report: bool, attacked: int, as_json: bool) -> int:
    """Evaluate what was trained, in the first process alone."""
    if not _is_first_process():
        return 0
    values = {"checkpoint": str(result.checkpoint), "training_seconds": result.seconds, "steps": result.steps}
    broken = 0
    if report:
        from orthogonium.cli import reporting
        from orthogonium.cli.networks import load_inputs, load_network
        from orthogonium.training.run_folder import RunFolder

        network = load_network(str(result.checkpoint))
        inputs = load_inputs(network, None, None, None)
        page = RunFolder(folder).report
        found = reporting.write(network, inputs, page, eps=network.eps, attacked=attacked)
        broken = found.broken
        values |= {"report": str(page), **reporting.summary(found)}
        if not as_json:
            reporting.show(found, network, inputs, page)
    if as_json:
        print_json({**values, "last_epoch": result.history[-1] if result.history else None})
    else:
        print(f"Checkpoint: {result.checkpoint}  ({result.steps} steps, {result.seconds:.0f} s)")
    return 1 if broken else 0
