"""When to validate, beside the interval of the recipe: the weights that a run ends with always are."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer


class ValidateLast(Callback):
    """Validates the last epoch, whatever the interval. Where the clock ends a run, `TimeLimit` does the same."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Check here, too: training may continue within the last epoch, which then is not started."""
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Validate at the end if this is the last epoch."""
        if trainer.current_epoch + 1 == trainer.max_epochs:
            validate_at_end(trainer)


def validate_at_end(trainer: Trainer) -> None:
    """Validate at the end of the present epoch."""
    trainer.check_val_every_n_epoch = 1
