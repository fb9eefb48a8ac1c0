"""Train by a recipe: assemble the data, the network, the callbacks and Lightning's trainer."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch import nn

from orthogonium.data import ImageDataModule
from orthogonium.errors import CheckpointError, ParameterError
from orthogonium.recipes.recipe import PRECISIONS, Recipe
from orthogonium.training.averaging import WeightAverage
from orthogonium.training.builds import BuildOnce
from orthogonium.training.checkpoints import CheckpointWriter, read_checkpoint, read_recipe
from orthogonium.training.classifier import CHECKPOINT_KEY, LipschitzClassifier
from orthogonium.training.clock import Interrupted
from orthogonium.training.early_stopping import EarlyStopping
from orthogonium.training.journal import Journal, create_loggers
from orthogonium.training.memory import keep_freed_memory
from orthogonium.training.progress import ProgressBar
from orthogonium.training.run_folder import RunFolder
from orthogonium.training.time_limit import TimeLimit
from orthogonium.training.validation import ValidateLast

# Lightning's remarks on what is deliberate here (loaders index tensors in memory, steps are logged by our journal), and
# torch's on Lightning's code.
_REMARKS = (
    r"The '\w+_dataloader' does not have many workers",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The number of training batches \(\d+\) is smaller than the logging interval",
)


class _NoProfiler(PassThroughProfiler):
    """Lightning times some thirty actions per step with a generator; here, each is one context that does nothing."""

    _nothing = nullcontext()

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return self._nothing


@dataclass(frozen=True)
class TrainingResult:
    """Where a run ended.

    Args:
        checkpoint: the checkpoint to use: the best one after early stopping, else the last one.
        history: a row per epoch, with loss, accuracies, certified accuracies, learning rate and seconds.
        seconds: training time, restarts included.
        steps: optimizer steps.
    """

    checkpoint: Path
    history: list[dict[str, float]]
    seconds: float
    steps: int


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning's remarks; its warnings are left as they are, except for `_REMARKS`."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for remark in _REMARKS:
            warnings.filterwarnings("ignore", message=remark)
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _find_checkpoint(recipe: Recipe, folder: RunFolder, resume: str | os.PathLike[str] | None) -> Path | None:
    """The checkpoint to continue from, checked to have the same recipe; None to start a new run."""
    if resume is None:
        if folder.last.exists():
            raise ParameterError(
                f"{folder.path} already holds a training run: continue it (resume='auto'), or choose another folder "
                "out=."
            )
        return None
    path = folder.last if resume == "auto" else Path(resume)
    if resume == "auto" and not folder.last.exists():
        return None
    theirs, ours = read_recipe(read_checkpoint(path), path).to_dict(), recipe.to_dict()
    moved = {"root", *(("extra",) if None not in (theirs["extra"], ours["extra"]) else ())}  # may lie elsewhere now
    changed = [key for key in ours if theirs[key] != ours[key] and key not in moved]
    if changed:
        values = ", ".join(f"{key}={ours[key]!r} (there {theirs[key]!r})" for key in changed)
        raise CheckpointError(f"{path} belongs to another recipe: {values}. A run is continued as it began.")
    return path


def _check_machine(recipe: Recipe, accelerator: str) -> None:
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not has_gpu)
    if recipe.precision == "16-mixed" and on_cpu:
        raise ParameterError("precision='16-mixed' needs a GPU: use 'bf16-mixed' or '32' on a CPU.")


def _create_strategy(strategy: str | Strategy, recipe: Recipe, processes: int) -> str | Strategy:
    """FSDP by name: parameters, gradients and optimizer state sharded over all processes, checkpoints whole."""
    if strategy != "fsdp":
        return strategy
    if recipe.lookahead is not None:
        raise ParameterError(
            f"lookahead={recipe.lookahead}, a return to slow weights, needs whole weights: use strategy='ddp', or "
            "leave it out."
        )
    if recipe.ema is not None:
        raise ParameterError(
            f"ema={recipe.ema}, an average of weights, needs whole weights: use strategy='ddp', or leave ema= out."
        )
    return ModelParallelStrategy(
        data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False
    )


def _whole_steps(data: LightningDataModule, accumulate: int) -> int | None:
    """Batches of an epoch that make up whole optimizer steps; None where all of them do."""
    if accumulate == 1:
        return None
    batches = len(data.train_dataloader())
    if batches < accumulate:
        raise ParameterError(
            f"An epoch has {batches} parts of a batch, fewer than accumulate={accumulate}: use a smaller batch_size=."
        )
    return batches - batches % accumulate


def load_data(recipe: Recipe, workers: int = 0) -> ImageDataModule:
    """The data of a recipe, read by this many worker processes."""
    return ImageDataModule(
        recipe.data,
        recipe.root,
        batch_size=recipe.batch_size // recipe.accumulate,
        augment=recipe.augment,
        seed=recipe.seed,
        num_workers=workers,
        validation=recipe.validation,
        extra=recipe.extra,
        extra_share=recipe.extra_share,
    )


def _result(folder: RunFolder, recipe: Recipe, history: list[dict[str, float]], seconds: float) -> TrainingResult:
    return TrainingResult(folder.result(recipe), history, seconds, int(history[-1]["step"]) if history else 0)


def fit(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    data: LightningDataModule | None = None,
    devices: int = 1,
    nodes: int = 1,
    strategy: str | Strategy = "auto",
    accelerator: str = "auto",
    resume: str | os.PathLike[str] | None = None,
    progress: bool = True,
    tensorboard: bool = False,
    log_every: int = 50,
    checkpoint_minutes: float | None = 5.0,
    checkpoint_steps: int | None = None,
    workers: int = 0,
    dry_run: bool = False,
) -> TrainingResult:
    """Train according to a recipe, into a folder.

    The folder receives `last.ckpt` (written after each epoch, during long ones, and when the process is asked to stop),
    `best.ckpt`, `history.csv`, `recipe.json` and `logs/`. A run that was cut short, for whatever reason, is continued
    with `resume="auto"`; in a single process it then ends with the same weights as if it had never stopped, bit for bit
    (a run limited by `minutes` depends on the clock, so no two are the same). On SIGINT or SIGTERM the current step is
    finished, a checkpoint is written, and the process exits with KeyboardInterrupt or exit code 143.

    Multiple processes run under `torch.distributed`, through Lightning, started by torchrun, by SLURM or, from a
    script, by Lightning itself with `devices` > 1. Each takes its share of every batch and, with DDP, of building the
    constrained weights, which happens once per optimizer step (`orthogonium.build_once`).

    On a CPU, the process keeps the memory that it frees from then on (`training/memory.py`), which makes steps up to a
    third faster.

    Args:
        recipe: what to train and how.
        out: the folder, created if need be. It must not hold another run.
        model: a network to train in place of `recipe.model`.
        data: data to train on in place of `recipe.data`; it must give `image_shape` and `n_classes`, and its batches
            must be of the recipe's size.
        devices: processes per machine.
        nodes: machines.
        strategy: Lightning's ("auto", "ddp", …, or an object), or "fsdp" to shard parameters.
        accelerator: Lightning's ("auto", "cpu", "gpu", …).
        resume: None to start a new run, "auto" to continue the folder's run if there is one, or a checkpoint.
        progress: whether to show a progress bar on standard error.
        tensorboard: whether to log for TensorBoard in addition to CSV.
        log_every: optimizer steps between two lines of the logs.
        checkpoint_minutes: minutes between checkpoints within an epoch.
        checkpoint_steps: optimizer steps between checkpoints within an epoch.
        workers: processes that read images, for data that is not in memory.
        dry_run: whether to stop where training would begin: by then, data, network, loss and devices have been tried,
            and nothing has been written. The result then has no history.

    Returns:
        The checkpoint and the history.
    """
    folder = RunFolder(Path(out))
    for name, count in (("log_every", log_every), ("checkpoint_steps", checkpoint_steps)):
        if count is not None and count < 1:
            raise ParameterError(f"{name}={count} must be at least 1.")
    if checkpoint_minutes is not None and not checkpoint_minutes > 0:
        raise ParameterError(f"checkpoint_minutes={checkpoint_minutes} must be positive.")
    _check_machine(recipe, accelerator)
    start = _find_checkpoint(recipe, folder, resume)
    if start is not None:
        state = read_checkpoint(start)[CHECKPOINT_KEY]
        if state["finished"]:
            return _result(folder, recipe, state["history"], state["elapsed"])
    if data is not None and recipe.extra is not None:
        raise ParameterError(
            f"extra={recipe.extra!r} goes with the data of a recipe: got data= beside it. Mix them there."
        )
    if data is None:
        data = load_data(recipe, workers)
    shape: dict[str, Any] = {"image_shape": data.image_shape, "n_classes": data.n_classes}  # type: ignore[attr-defined]
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        classifier = LipschitzClassifier(recipe, model, **shape)
        journal = Journal(folder, log_every)
        trainer = Trainer(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=_create_strategy(strategy, recipe, devices * nodes),
            precision=PRECISIONS[recipe.precision],  # type: ignore[arg-type]
            max_epochs=-1 if recipe.epochs is None else recipe.epochs,
            accumulate_grad_batches=recipe.accumulate,
            limit_train_batches=_whole_steps(data, recipe.accumulate),
            gradient_clip_val=recipe.clip_norm,
            check_val_every_n_epoch=recipe.validate_every,
            num_sanity_val_steps=0,
            logger=create_loggers(folder, tensorboard),
            callbacks=[
                *([WeightAverage(recipe.ema)] if recipe.ema is not None else []),
                ValidateLast(),
                journal,
                EarlyStopping(),
                *([ProgressBar(journal)] if progress else []),
                TimeLimit(),
                CheckpointWriter(folder, checkpoint_minutes, checkpoint_steps),
                BuildOnce(),
            ],
            # the scheduler sends the signal, and the job continues from last.ckpt: no second file to choose from
            plugins=SLURMEnvironment(auto_requeue=False) if SLURMEnvironment.detect() else None,
            default_root_dir=folder.path,
            profiler=_NoProfiler(),
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        if dry_run:
            return _result(folder, recipe, [], 0.0)
        folder.path.mkdir(parents=True, exist_ok=True)  # not before all else is known to exist
        if trainer.is_global_zero:
            folder.begin(recipe)
        if trainer.strategy.root_device.type == "cpu":
            keep_freed_memory()
        torch.manual_seed(recipe.seed + trainer.global_rank)  # random layers differ between processes
        try:
            trainer.fit(classifier, datamodule=data, ckpt_path=start, weights_only=True)
        except Interrupted as interruption:
            if interruption.signum == signal.SIGINT:
                raise KeyboardInterrupt from None
            sys.exit(128 + interruption.signum)
    return _result(folder, recipe, classifier.history, classifier.clock.elapsed)
