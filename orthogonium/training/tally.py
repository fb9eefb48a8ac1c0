"""Mean loss and accuracy of an epoch, accumulated on the device: nothing waits for it until they are read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Tally:
    """Sums over the samples of an epoch so far.

    They are part of a checkpoint, so the numbers of an epoch that was interrupted still cover the whole epoch.
    """

    def __init__(self) -> None:
        self.loss: Tensor | float = 0.0
        self.hits: Tensor | int = 0
        self.samples = 0
        self._mark = torch.zeros(3)

    @torch.no_grad()
    def add(
        self,
        loss: Tensor,  # mean of the batch
        logits: Tensor,  # (n, classes)
        labels: Tensor,  # (n,) or (n, classes)
    ) -> None:
        """Add the losses and hits of a batch."""
        if labels.dim() == 2:
            labels = labels.argmax(dim=1)
        n = labels.shape[0]
        self.loss = self.loss + loss.detach() * n
        self.hits = self.hits + (logits.argmax(dim=1) == labels).sum()
        self.samples += n

    def totals(self) -> Tensor:
        """Sums of loss, hits and samples, on the CPU."""
        return torch.tensor([float(self.loss), float(self.hits), float(self.samples)])

    def recent(self) -> dict[str, float]:
        """Means since the last call, of this process."""
        sums = self.totals()
        window, self._mark = sums - self._mark, sums
        return means(window)

    def reset(self) -> None:
        """Reset all sums at the start of an epoch."""
        self.loss, self.hits, self.samples = 0.0, 0, 0
        self._mark = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        """The sums so far, for a checkpoint within an epoch."""
        return {"loss": self.loss, "hits": self.hits, "samples": self.samples}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from a checkpoint, in the precision of its sums."""
        loss, hits = (v.to(device) if isinstance(v, Tensor) else v for v in (state["loss"], state["hits"]))
        self.loss, self.hits, self.samples = loss, hits, state["samples"]
        self._mark = self.totals()


def means(
    sums: Tensor,  # (loss, hits, samples)
) -> dict[str, float]:
    """Mean loss and accuracy from sums over samples; empty if there are none."""
    loss, hits, samples = sums.tolist()
    return {"train_loss": loss / samples, "train_accuracy": hits / samples} if samples else {}
