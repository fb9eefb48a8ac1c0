"""Stop training by the clock."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer

from orthogonium.training.validation import validate_at_end


class TimeLimit(Callback):
    """Reads the clock after each optimizer step, and ends training when the time limit of its recipe is reached.

    Note [One clock for all processes].
    """

    def __init__(self) -> None:
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """From here on a signal means: finish the step, save, stop."""
        self._step = trainer.global_step
        pl_module.clock.listen()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Read the clock once for each optimizer step; stop if it is time."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        pl_module.clock.tick(pl_module.device)
        limit = pl_module.recipe.minutes
        if limit is not None and pl_module.clock.elapsed >= 60 * limit:
            trainer.should_stop = True
            validate_at_end(trainer)
