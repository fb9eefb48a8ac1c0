"""One progress bar for the whole training, redrawn a few times per second at most."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from orthogonium.training.classifier import certified_key
from orthogonium.training.journal import Journal

_REDRAW_SECONDS = 0.2


class ProgressBar(Callback):
    """Shows progress, step and the latest numbers of the journal, on standard error of the first process."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._drawn = 0.0
        self._certified = ""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Show the bar, in the first process."""
        if not trainer.is_global_zero:
            return
        self._certified = certified_key(pl_module.recipe.eps[0])
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=Console(stderr=True),
            auto_refresh=False,  # no thread beside training
        )
        self._task = self._bar.add_task("training", total=1.0, numbers="")
        self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Redraw if it is time."""
        if self._bar is not None and time.monotonic() - self._drawn > _REDRAW_SECONDS:
            self._draw(trainer, pl_module.training_progress)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Draw the end and close the bar."""
        if self._bar is not None:
            self._draw(trainer, 1.0)
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        self._close()

    def _draw(self, trainer: Trainer, progress: float) -> None:
        assert self._bar is not None
        self._drawn = time.monotonic()
        shown = {"train_loss": "loss {:.3f}", "val_accuracy": "val {:.1%}", self._certified: "certified {:.1%}"}
        recent = self.journal.recent
        numbers = "  ".join(text.format(recent[key]) for key, text in shown.items() if key in recent)
        description = f"step {trainer.global_step}"
        self._bar.update(self._task, completed=progress, description=description, numbers=numbers)
        self._bar.refresh()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
