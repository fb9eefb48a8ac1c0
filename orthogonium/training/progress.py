"""One progress bar for the whole training, redrawn a few times per second at most."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from orthogonium.training.classifier import LipschitzClassifier
from orthogonium.training.journal import Journal

_REDRAW_SECONDS = 0.2


class ProgressBar(Callback):
    """Shows progress, epoch and the latest numbers of the journal, on standard error of the first process."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._drawn = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LipschitzClassifier) -> None:
        """Open the bar."""
        if not trainer.is_global_zero:
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=Console(stderr=True),
            auto_refresh=False,  # no thread beside training
        )
        self._task = self._bar.add_task("training", total=1.0, numbers="")
        self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LipschitzClassifier, *batch: Any) -> None:
        """Redraw if it is time."""
        if self._bar is not None and time.monotonic() - self._drawn > _REDRAW_SECONDS:
            self._draw(trainer, pl_module.training_progress)

    def on_train_end(self, trainer: Trainer, pl_module: LipschitzClassifier) -> None:
        """Draw the end and close the bar."""
        if self._bar is not None:
            self._draw(trainer, 1.0)
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LipschitzClassifier, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        self._close()

    def _draw(self, trainer: Trainer, progress: float) -> None:
        assert self._bar is not None
        self._drawn = time.monotonic()
        names = {"train_loss": "loss {:.3f}", "train_accuracy": "train {:.1%}", "val_accuracy": "val {:.1%}"}
        shown = [text.format(self.journal.recent[key]) for key, text in names.items() if key in self.journal.recent]
        shown += [
            f"{key.removeprefix('val_')} {value:.1%}"
            for key, value in self.journal.recent.items()
            if key.startswith("val_certified@")
        ]
        numbers = Text("  ".join(shown)).plain
        description = f"epoch {trainer.current_epoch + 1} step {trainer.global_step}"
        self._bar.update(self._task, completed=progress, description=description, numbers=numbers)
        self._bar.refresh()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
