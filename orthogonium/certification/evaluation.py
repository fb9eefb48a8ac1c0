"""A model on the batches of a loader: its logits, and how far they are from those in another precision."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orthogonium.certification.precise import in_precision
from orthogonium.certification.radii import check_indices, check_logits
from orthogonium.certification.rounding import underflow, unit_roundoff

_MEASURED = 256  # samples measured at a time: all weights are converted each time


@dataclass
class Evaluated:
    """What is kept of a batch: outputs of all samples, and a few inputs to attack."""

    logits: Tensor  # (n, classes), float64
    labels: Tensor  # (n,)
    norms: Tensor  # (n,), of the inputs
    moved: tuple[float, float]  # how far a cast may move inputs: relative to their norm, and absolute
    inputs: Tensor
    places: Tensor  # indices of these inputs
    deviations: Tensor | None = None  # (n,), of logits from another precision


def rounding_of_inputs(x: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """How far the cast to the dtype of the model may move inputs: relative to their norm, and absolute."""
    lost = 0.0
    if x.is_floating_point():
        lost = underflow(dtype) * math.sqrt(x[0].numel()) if x.dtype != dtype else 0.0
        finer = torch.finfo(x.dtype).eps < torch.finfo(dtype).eps
    else:
        finer = bool((x.to(dtype).double() != x.double()).any()) or float(x.double().abs().max()) > 1 / unit_roundoff(
            dtype
        )
    return (unit_roundoff(dtype) if finer else 0.0), lost


def evaluated(model: nn.Module, x: Tensor, y: Tensor, keep: int, moved: tuple[float, float]) -> Evaluated:
    """The model on one batch; `keep` of its correctly classified inputs are kept."""
    with torch.no_grad():
        logits = check_logits(model(x.clone()))
    check_indices(logits, y.to(logits.device))
    logits = logits.cpu().double()
    norms = torch.linalg.vector_norm(x.flatten(1).double(), dim=1).cpu()
    labels = y.cpu().long().clone()  # a loader may reuse its memory
    right = (logits.argmax(1) == labels).nonzero().flatten()
    places = right[:: max(1, len(right) // keep)][:keep]
    return Evaluated(logits, labels, norms, moved, x[places.to(x.device)].clone(), places)


class Deviations:
    """Deviations of logits from the same computation in float64 (in float32, scaled, for a model in float64).

    Batches are queued until there are enough of them, since weights are converted for every computation.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.waiting: list[tuple[Evaluated, Tensor]] = []

    def measure_later(self, batch: Evaluated, x: Tensor) -> None:
        """Set `batch.deviations`, at the latest in `measure_now`."""
        self.waiting.append((batch, x.clone()))
        if sum(len(inputs) for _, inputs in self.waiting) >= _MEASURED:
            self.measure_now()

    def measure_now(self) -> None:
        """Set the deviations of all batches that wait, in one computation."""
        if not self.waiting:
            return
        batches, inputs = zip(*self.waiting, strict=True)
        self.waiting = []
        x = torch.cat(inputs)
        other = torch.float32 if x.dtype == torch.float64 else torch.float64
        scale = torch.finfo(x.dtype).eps / torch.finfo(other).eps if x.dtype == torch.float64 else 1.0
        twin = torch.cat([in_precision(self.model, part, other).cpu().double() for part in x.split(_MEASURED)])
        for batch, own in zip(batches, twin.split([len(b.labels) for b in batches]), strict=True):
            batch.deviations = (own - batch.logits).abs().amax(1) * scale
