"""Mean loss and accuracy of an epoch, added up on the device: nothing waits for it until it is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Tally:
    """Sums over the samples of an epoch so far.

    They are part of a checkpoint, so that the numbers of an epoch that was interrupted are those of the whole epoch.
    """

    def __init__(self) -> None:
        self.sums: Tensor | None = None  # (loss, hits, samples)
        self._mark = torch.zeros(3)

    @torch.no_grad()
    def add(
        self,
        loss: Tensor,  # mean of the batch
        logits: Tensor,  # (n, classes)
        labels: Tensor,  # (n,) or (n, classes)
    ) -> None:
        """Count a batch."""
        if labels.dim() == 2:
            labels = labels.argmax(dim=1)
        n = labels.shape[0]
        hits = (logits.argmax(dim=1) == labels).sum()
        batch = torch.stack([loss.detach().float() * n, hits.float(), hits.new_full((), n, dtype=torch.float32)])
        self.sums = batch if self.sums is None else self.sums + batch

    def recent(self) -> dict[str, float]:
        """Means since the last call, of this process."""
        if self.sums is None:
            return {}
        sums = self.sums.cpu()
        window, self._mark = sums - self._mark, sums
        return means(window)

    def totals(self, device: torch.device) -> Tensor:
        """The sums, as a tensor to be reduced over processes."""
        return torch.zeros(3, device=device) if self.sums is None else self.sums.to(device)

    def reset(self) -> None:
        """Start an epoch."""
        self.sums = None
        self._mark = torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        """Sums for a checkpoint."""
        return {"sums": None if self.sums is None else self.sums.cpu()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue from a checkpoint."""
        self.reset()
        if state["sums"] is not None:
            self.sums = state["sums"].to(device)
            self._mark = state["sums"].clone()


def means(
    sums: Tensor,  # (loss, hits, samples)
) -> dict[str, float]:
    """Mean loss and accuracy from sums over samples; nothing where there are none."""
    loss, hits, samples = sums.tolist()
    return {"train_loss": loss / samples, "train_accuracy": hits / samples} if samples else {}
