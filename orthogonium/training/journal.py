"""The record of a run: a row per epoch, in checkpoints and as `history.csv`, and loggers for what happens between."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from orthogonium.errors import DivergenceError
from orthogonium.training.run_folder import RunFolder, partial, publish
from orthogonium.training.tally import means


def create_loggers(folder: RunFolder, tensorboard: bool) -> list[Logger]:
    """A CSV logger and, if requested, one for TensorBoard."""
    loggers: list[Logger] = [CSVLogger(folder.path, name=folder.logs.name)]
    if tensorboard:
        try:
            loggers.append(TensorBoardLogger(folder.path, name=folder.tensorboard.name))
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "TensorBoard logs were asked for, but tensorboard is not installed: pip install tensorboard. "
                "The CSV logs are always written."
            ) from error
    return loggers


def write_history(path: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Write the whole history as CSV."""
    columns = list(dict.fromkeys(key for row in history for key in row))
    with partial(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(history)
    publish(path)


def best_row(history: list[dict[str, float]], key: str) -> int | None:
    """Index of the first row with the largest value; None if no row has one."""
    rows = [i for i, row in enumerate(history) if key in row]
    return max(rows, key=lambda i: (history[i][key], -i)) if rows else None


class Journal(Callback):
    """Adds a row to the history after each epoch, logs steps in between, and refuses losses that are not finite."""

    def __init__(self, folder: RunFolder, log_every: int) -> None:
        self.folder = folder
        self.log_every = log_every
        self.recent: dict[str, float] = {}  # what a progress bar may show
        self._logged_step = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin a new tally."""
        pl_module.tally.reset()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the steps since the last log; only then does training wait for the device."""
        step = trainer.global_step
        if step == self._logged_step or step % self.log_every:
            return
        self._logged_step = step
        values = pl_module.tally.recent()
        self._check_finite(values, step)
        self.recent |= values
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        steps = {key.replace("train_", "step_"): value for key, value in values.items()}  # not those of an epoch
        self._log(trainer, {**steps, "lr": rate}, step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Add the row of the epoch."""
        totals = trainer.strategy.reduce(pl_module.tally.totals().to(pl_module.device), reduce_op="sum")
        values = means(totals)
        self._check_finite(values, trainer.global_step)
        self._check_weights(pl_module, trainer.global_step)
        pl_module.clock.tick(pl_module.device)
        values |= {"lr": trainer.optimizers[0].param_groups[0]["lr"], **pl_module.validation}
        pl_module.validation = {}
        row = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step, "seconds": pl_module.clock.elapsed}
        pl_module.history.append({**row, **values})
        self.recent |= values
        self._log(trainer, values, trainer.global_step)
        if trainer.is_global_zero:
            write_history(self.folder.history_file, pl_module.history)

    @staticmethod
    def _log(trainer: Trainer, values: dict[str, float], step: int) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(values, step)
            logger.save()

    @staticmethod
    def _check_weights(pl_module: Any, step: int) -> None:
        """Refuse weights that are not finite: the loss was computed before the step that made them so."""
        if pl_module.is_sharded:  # a process that raises alone would leave the others waiting
            return
        if not torch.stack([p.detach().isfinite().all() for p in pl_module.model.parameters()]).all():
            raise DivergenceError(
                f"Weights are not finite after step {step}. Lower lr=, lengthen warmup= or set clip_norm=; the last "
                "checkpoint is from before."
            )

    @staticmethod
    def _check_finite(values: dict[str, float], step: int) -> None:
        loss = values.get("train_loss", 0.0)
        if not math.isfinite(loss):
            raise DivergenceError(
                f"The training loss is {loss} at step {step}. Lower lr=, lengthen warmup= or set clip_norm=; the last "
                "checkpoint is from before."
            )
