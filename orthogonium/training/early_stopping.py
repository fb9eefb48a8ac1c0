"""When to stop waiting for a better epoch."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer

from orthogonium.training.journal import best_row


def is_stalled(history: list[dict[str, float]], key: str, patience: int) -> bool:
    """Whether the last `patience` validations brought nothing better than those before them."""
    best = best_row(history, key)
    return best is not None and sum(key in row for row in history[best + 1 :]) >= patience


class EarlyStopping(Callback):
    """Stops a run that no longer improves, once the journal has added the row of the epoch."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Stop if the last validations brought nothing better."""
        patience = pl_module.recipe.early_stop
        if patience is not None and is_stalled(pl_module.history, pl_module.monitored, patience):
            trainer.should_stop = True
