"""Cross-entropy for networks whose logits cannot grow: with an offset and a temperature."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.losses.targets import (
    Loss,
    Reduction,
    as_probabilities,
    check,
    check_positive,
    check_unit_interval,
)


def offset_cross_entropy(
    logits: Tensor,  # (n, classes)
    labels: Tensor,  # (n,) or (n, classes)
    offset: float,
    temperature: float,
    label_smoothing: float,
) -> Tensor:  # (n,)
    """`T · CE((z − o·q)/T, q)` for label probabilities `q`, the unit vector `e_y` for an index `y`."""
    logits, labels = check(logits, labels)
    q = as_probabilities(labels, logits, label_smoothing)
    log_p = F.log_softmax((logits - offset * q) / temperature, dim=1)
    return -temperature * (q * log_p).sum(dim=1)


class LossXent(Loss):
    """Cross-entropy with an offset and a temperature: `T · CE((z − o·e_y)/T, y)`.

    The offset `o` asks for a margin: for `T → 0` the loss becomes `relu(o − margin)`. Prach, Lampert,
    "Almost-orthogonal layers for efficient general-purpose Lipschitz networks" (2022) use `o = √2`, `T = 1/4`.

    Args:
        n_classes: number of classes.
        offset: the offset `o`; the default is 1.5·√2.
        temperature: the temperature `T`, positive.
        label_smoothing: weight of the uniform distribution in the labels.
        reduction: mean, sum or none.

    >>> from orthogonium.losses import LossXent
    >>> LossXent(3, offset=1.0, temperature=0.01)(torch.tensor([[2.0, 1.5, 0.0]]), torch.tensor([0]))
    tensor(0.5000)
    """

    def __init__(
        self,
        n_classes: int,
        offset: float = 2.12132,
        temperature: float = 0.25,
        *,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if n_classes < 2:
            raise ParameterError(f"LossXent needs at least two classes: got n_classes={n_classes}.")
        check_positive("temperature", temperature)
        check_unit_interval("label_smoothing", label_smoothing)
        self.n_classes = n_classes
        self.offset = offset
        self.temperature = temperature
        self.label_smoothing = label_smoothing

    @property
    def criterion(self) -> nn.CrossEntropyLoss:
        """What is left without offset and temperature: torch's cross-entropy, with the same smoothing and reduction."""
        return nn.CrossEntropyLoss(label_smoothing=self.label_smoothing, reduction=self.reduction)

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss; labels are indices (n,) or probabilities (n, classes)."""
        if outputs.dim() != 2 or outputs.shape[1] != self.n_classes:
            raise ShapeError(f"LossXent was built for logits (n, {self.n_classes}): got {tuple(outputs.shape)}.")
        values = offset_cross_entropy(outputs, labels, self.offset, self.temperature, self.label_smoothing)
        return self.reduce(values)


class TauCrossEntropyLoss(Loss):
    """Cross-entropy of scaled logits: `CE(τ·z, y)/τ`.

    `τ` sets how far apart logits must be before the loss is satisfied: small values favour accuracy with large margins,
    large ones accuracy alone. Béthune et al., "Pay attention to your loss" (2022).

    Args:
        tau: the scale `τ`, positive.
        label_smoothing: weight of the uniform distribution in the labels.
        reduction: mean, sum or none.

    >>> from orthogonium.losses import TauCrossEntropyLoss
    >>> TauCrossEntropyLoss(tau=100.0)(torch.tensor([[2.0, 1.5, 0.0]]), torch.tensor([1]))
    tensor(0.5000)
    """

    def __init__(self, tau: float, *, label_smoothing: float = 0.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        check_positive("tau", tau)
        check_unit_interval("label_smoothing", label_smoothing)
        self.tau = tau
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss; labels are indices (n,) or probabilities (n, classes)."""
        return self.reduce(offset_cross_entropy(logits, labels, 0.0, 1 / self.tau, self.label_smoothing))
