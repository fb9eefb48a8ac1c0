"""Build weights once per optimizer step, for all parts of a batch, and share the builds among processes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from orthogonium.building import build_once


class BuildOnce(Callback):
    """Wraps the passes of each optimizer step in `build_once` if there are several passes or processes (DDP)."""

    def __init__(self) -> None:
        self._block: ExitStack | None = None

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin with the first part of a batch."""
        shared = trainer.world_size > 1 and isinstance(trainer.strategy, DDPStrategy)
        alone = trainer.world_size == 1 and trainer.accumulate_grad_batches > 1
        if self._block is None and (shared or alone):
            self._block = ExitStack()
            self._block.enter_context(build_once(module.model, dist.group.WORLD if shared else None))  # type: ignore[arg-type]
        self._is_last = (batch_idx + 1) % trainer.accumulate_grad_batches == 0

    def on_after_backward(self, trainer: Trainer, module: LightningModule) -> None:
        """End after the last part, before gradients are unscaled and clipped."""
        if self._block is not None and self._is_last:
            block, self._block = self._block, None
            block.close()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        """Leave gradients as they are."""
        if self._block is not None:
            block, self._block = self._block, None
            block.__exit__(type(exception), exception, exception.__traceback__)
