"""Exponential moving average of weights, validated and loaded in place of the weights that the optimizer moves."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn


def _averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and running statistics: all that must be averaged for the average to be a network of its own."""
    return {name: value for name, value in model.state_dict(keep_vars=True).items() if value.is_floating_point()}


class WeightAverage(Callback):
    """Keeps `w̄ ← w̄ + (1 − d)(w − w̄)` after each optimizer step, with `d = min(decay, (1 + t)/(10 + t))` at step t.

    The smaller decay of the first steps forgets the initial weights. Raw parameters are averaged, so the averaged
    network satisfies its constraints exactly; so are the running means of centering, which belong to the weights, but
    not counters. The optimizer's own weights stay in the network, and in the checkpoint beside the average.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.steps = 0  # optimizer steps averaged
        self.average: dict[str, Tensor] | None = None
        self._aside: list[Tensor] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start from the initial weights, or move a loaded average to the device of the weights."""
        current = _averaged_tensors(pl_module.model)
        source = self.average if self.average is not None else current
        self.average = {name: source[name].detach().to(value.device, copy=True) for name, value in current.items()}

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the average, once per optimizer step."""
        assert self.average is not None
        if trainer.global_step == self.steps:
            return
        self.steps = trainer.global_step
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(
            list(self.average.values()), [v.detach() for v in _averaged_tensors(pl_module.model).values()], 1 - decay
        )

    @torch.no_grad()
    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Put the average in place of the weights, for validation."""
        if self.average is not None:
            tensors = _averaged_tensors(pl_module.model)
            self._aside = [value.detach().clone() for value in tensors.values()]
            for value, averaged in zip(tensors.values(), self.average.values(), strict=True):
                value.copy_(averaged)

    @torch.no_grad()
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Continue with the weights of the optimizer."""
        if self._aside is not None:
            for value, kept in zip(_averaged_tensors(pl_module.model).values(), self._aside, strict=True):
                value.copy_(kept)
            self._aside = None

    def state_dict(self) -> dict[str, Any]:
        """The average, for a checkpoint."""
        return {"steps": self.steps, "average": self.average}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the average of a checkpoint."""
        self.steps = state_dict["steps"]
        self.average = state_dict["average"]
