"""`orthogonium train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orthogonium.cli import train_options as o
from orthogonium.cli.recipes import compose
from orthogonium.cli.shared import console, new_folder, print_json
from orthogonium.cli.values import options, radii

if TYPE_CHECKING:
    from orthogonium.training import Recipe, TrainingResult


def train(
    preset: o.Preset = None,
    recipe_file: o.RecipeFile = None,
    model: o.Model = None,
    method: o.Method = None,
    model_option: o.ModelOption = None,
    data: o.Data = None,
    root: o.Root = None,
    augment: o.Augment = None,
    validation: o.Validation = None,
    loss: o.Loss = None,
    loss_option: o.LossOption = None,
    optimizer: o.Optimizer = None,
    optimizer_option: o.OptimizerOption = None,
    lr: o.Rate = None,
    weight_decay: o.WeightDecay = None,
    decay_biases: o.DecayBiases = False,
    schedule: o.Schedule = None,
    warmup: o.Warmup = None,
    epochs: o.Epochs = None,
    minutes: o.Minutes = None,
    batch_size: o.BatchSize = None,
    accumulate: o.Accumulate = None,
    clip_norm: o.ClipNorm = None,
    ema: o.Average = None,
    precision: o.Precision = None,
    seed: o.Seed = None,
    early_stop: o.EarlyStop = None,
    monitor: o.Monitor = None,
    validate_every: o.ValidateEvery = None,
    eps: o.Eps = None,
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
    attacked: o.Attacked = 512,
    quiet: o.Quiet = False,
    dry_run: o.DryRun = False,
    as_json: o.AsJson = False,
) -> int:
    r"""Train a network, certify it, and write a report.

    Options override the preset. Ctrl-C (or SIGTERM) finishes the step and leaves a checkpoint;
    --resume continues as if nothing had happened.

    [bold]orthogonium train --preset digits --out runs/digits[/bold]

    [bold]orthogonium train --preset cifar10-cpu-30min --root data/cifar-10-batches-bin[/bold]

    [bold]orthogonium train --data digits --model aocnet_tiny -O widths=\[16,32] --loss cosine --epochs 20[/bold]

    [bold]orthogonium train --out runs/digits --resume[/bold]
    """
    changes: dict[str, Any] = {
        "model": model,
        "data": data,
        "root": None if root is None else str(root),
        "augment": augment,
        "validation": validation,
        "loss": loss,
        "optimizer": optimizer,
        "lr": lr,
        "weight_decay": weight_decay,
        "decay_biases": decay_biases or None,
        "schedule": schedule,
        "warmup": warmup,
        "batch_size": batch_size,
        "accumulate": accumulate,
        "precision": precision,
        "seed": seed,
        "monitor": monitor,
        "validate_every": validate_every,
        "radii": list(radii(eps)) if eps else None,
    }
    limits = {"epochs": epochs, "max_minutes": minutes, "clip_norm": clip_norm, "ema": ema, "patience": early_stop}
    given = {key: value for key, value in changes.items() if value is not None}
    given |= {key: value or None for key, value in limits.items() if value is not None}
    chosen = {
        "model_options": options(model_option or [], "--model-option") | ({"method": method} if method else {}),
        "loss_options": options(loss_option or [], "--loss-option"),
        "optimizer_options": options(optimizer_option or [], "--optimizer-option"),
    }
    recipe = compose(preset, recipe_file, out if resume else None, given, chosen)
    folder = out or Path("runs") / f"{recipe.model}-{recipe.data}"
    new_folder(folder)
    _check_names(recipe.model, strategy, accelerator)
    result = _fit(
        recipe, folder, resume=resume, devices=devices, nodes=nodes, strategy=strategy, accelerator=accelerator,
        progress=not quiet, tensorboard=logger is o.Logger.tensorboard, log_every=log_every,
        checkpoint_minutes=checkpoint_minutes, workers=workers, dry_run=dry_run,
    )  # fmt: skip
    if result is None:
        return 130
    if dry_run:
        print(recipe.to_json())
        return 0
    return _finish(result, folder, not no_report, attacked, as_json)


def _check_names(model: str, strategy: str, accelerator: str) -> None:
    """What Python would tell otherwise, in words of this command."""
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


def _fit(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool,
    devices: int,
    nodes: int,
    strategy: str,
    accelerator: str,
    progress: bool,
    tensorboard: bool,
    log_every: int,
    checkpoint_minutes: float,
    workers: int,
    dry_run: bool,
) -> TrainingResult | None:
    """Train; None if it was interrupted, having said how to continue."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from orthogonium.errors import ParameterError
    from orthogonium.training import fit

    try:
        return fit(
            recipe,
            folder,
            devices=devices,
            num_nodes=nodes,
            strategy=strategy,
            accelerator=accelerator,
            resume="auto" if resume else None,
            progress=progress,
            tensorboard=tensorboard,
            log_every=log_every,
            checkpoint_minutes=checkpoint_minutes,
            num_workers=workers,
            dry_run=dry_run,
        )
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

        network = load_network(str(result.checkpoint))
        inputs = load_inputs(network, None, None, None)
        page = folder / "report.html"
        found = reporting.write(network, inputs, page, eps=network.radii, attacked=attacked)
        broken = found.broken
        values |= {"report": str(page), **reporting.summary(found)}
        if not as_json:
            reporting.show(found, network, inputs, page)
    if as_json:
        print_json({**values, "last_epoch": result.history[-1] if result.history else None})
    else:
        print(f"Checkpoint: {result.checkpoint}  ({result.steps} steps, {result.seconds:.0f} s)")
    return 1 if broken else 0
