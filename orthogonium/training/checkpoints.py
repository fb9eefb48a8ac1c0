"""Checkpoints: when they are written, and how they are read back.

Note [Exact resume]
Checkpoints are written only after whole optimizer steps, since they do not contain accumulated gradients. They hold the
weights and their average, the optimizer, the position in the epoch, the history, the elapsed time and the state of the
random generator; the learning rate, the order of samples and the augmentation are functions of these. So in a single
process a resumed run ends with the same weights as a run that was never interrupted, bit for bit. A kill at any moment
leaves the previous checkpoint whole (`RunFolder`).
"""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import nn

from orthogonium.errors import CheckpointError, OrthogoniumError
from orthogonium.models import create_model
from orthogonium.recipes.recipe import Recipe
from orthogonium.training.classifier import CHECKPOINT_FORMAT, CHECKPOINT_KEY
from orthogonium.training.clock import Interrupted
from orthogonium.training.journal import best_row
from orthogonium.training.run_folder import RunFolder, partial, publish


class CheckpointWriter(Checkpoint):
    """Writes `last.ckpt` after and during epochs and on SIGINT and SIGTERM, and `best.ckpt` for the best epoch.

    Note [Exact resume].
    """

    def __init__(self, folder: RunFolder, every_minutes: float | None, every_steps: int | None) -> None:
        self.folder = folder
        self.every_minutes = every_minutes
        self.every_steps = every_steps
        self._step = 0
        self._saved_at = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Measure steps and minutes between checkpoints from here."""
        self._step = trainer.global_step
        self._saved_at = pl_module.clock.elapsed

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save after an optimizer step if it is time or a signal came; the last one of an epoch is saved at its end."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if trainer.is_last_batch or trainer.should_stop:
            return
        clock = pl_module.clock
        if clock.signum or self._is_due(clock.elapsed):
            self._save(trainer, pl_module)
        if clock.signum:
            raise Interrupted(clock.signum)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save, and keep a copy if this epoch is the best so far."""
        pl_module.finished = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        is_best = best_row(pl_module.history, pl_module.monitored) == len(pl_module.history) - 1
        self._save(trainer, pl_module, is_best)
        if pl_module.clock.signum and not pl_module.finished:
            raise Interrupted(pl_module.clock.signum)

    def _is_due(self, elapsed: float) -> bool:
        by_steps = self.every_steps is not None and self._step % self.every_steps == 0
        return by_steps or (self.every_minutes is not None and elapsed - self._saved_at >= 60 * self.every_minutes)

    def _save(self, trainer: Trainer, pl_module: Any, is_best: bool = False) -> None:
        last, best = self.folder.last, self.folder.best
        trainer.save_checkpoint(partial(last), weights_only=False)  # by all processes, which wait for each other
        if trainer.is_global_zero:
            if is_best:  # before `last`: a kill in between repeats the epoch and writes the same best again
                shutil.copyfile(partial(last), partial(best))
                publish(best)
            publish(last)
        self._saved_at = pl_module.clock.elapsed


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint of this library, with tensors on the CPU; nothing in the file is executed."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint {path}.")
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is not a checkpoint, or was cut off while it was copied.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint: it is damaged, or holds other objects than weights and numbers."
        ) from error
    state = checkpoint.get(CHECKPOINT_KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(state, dict) or "state_dict" not in checkpoint:
        raise CheckpointError(
            f"{path} is not a checkpoint of orthogonium.training. Other networks are certified from Python: "
            "orthogonium.certify(model, data)."
        )
    if state.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {state.get('format')}, this version reads {CHECKPOINT_FORMAT}: use the "
            "version of orthogonium that wrote it."
        )
    return checkpoint


def read_recipe(checkpoint: dict[str, Any], path: str | os.PathLike[str]) -> Recipe:
    """The recipe a checkpoint was trained with."""
    try:
        return Recipe.from_json(checkpoint[CHECKPOINT_KEY]["recipe"])
    except OrthogoniumError as error:
        raise CheckpointError(f"{path} was trained by a recipe that this version does not know: {error}") from error


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds, ready to use.

    Args:
        model: the network in eval mode, with averaged weights if the run averaged them.
        recipe: how it was trained.
        history: a row per epoch.
        image_shape: channels, height and width of its inputs, where known.
        n_classes: number of its logits.
        seconds: training time.
        finished: whether training was complete.
    """

    model: nn.Module
    recipe: Recipe
    history: list[dict[str, float]]
    image_shape: tuple[int, int, int] | None
    n_classes: int
    seconds: float
    finished: bool


def _build(recipe: Recipe, image_shape: tuple[int, int, int] | None, n_classes: int, path: Any) -> nn.Module:
    try:
        return create_model(recipe.model, image_shape, n_classes, **recipe.model_options)
    except (OrthogoniumError, TypeError) as error:
        raise CheckpointError(f"{path} holds a network that cannot be built here: {error}") from error


def load_checkpoint(path: str | os.PathLike[str], *, model: nn.Module | None = None) -> Trained:
    """Read a checkpoint that `fit` wrote. Nothing in the file is executed.

    Args:
        path: the file.
        model: a network to load the weights into, for runs that were given a network instead of a name.

    Returns:
        The trained network and its history.

    Raises:
        CheckpointError: the file is absent, cut off, not ours, or does not fit the network.
    """
    checkpoint = read_checkpoint(path)
    state = checkpoint[CHECKPOINT_KEY]
    recipe = read_recipe(checkpoint, path)
    image_shape = None if state["image_shape"] is None else tuple(state["image_shape"])
    if model is None:
        if not state["named"]:
            raise CheckpointError(
                f"{path} was trained from a network of your own: pass one as load_checkpoint(…, model=…)."
            )
        model = _build(recipe, image_shape, state["n_classes"], path)
    if recipe.precision == "64":
        model = model.double()
    weights = {
        name.removeprefix("model."): value
        for name, value in checkpoint["state_dict"].items()
        if name.startswith("model.")
    }
    if recipe.ema is not None:
        weights |= checkpoint["callbacks"]["WeightAverage"]["average"]
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"The weights of {path} do not fit the network: {' '.join(str(error).split())}"
        ) from error
    return Trained(
        model=model.eval(),
        recipe=recipe,
        history=list(state["history"]),
        image_shape=image_shape,
        n_classes=state["n_classes"],
        seconds=state["elapsed"],
        finished=state["finished"],
    )
