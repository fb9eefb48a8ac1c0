"""Kantorovich–Rubinstein duality as a loss: KR and hinge-KR, for one logit and for several.

Serrurier et al., "Achieving robustness in classification using optimal transport with hinge regularization" (2021).
`KR = E[f | +] − E[f | −]` is at most the Wasserstein distance between the classes for a 1-Lipschitz `f`; all losses
here contain `−KR`, so minimising them separates the classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.certification.radii import values_known
from orthogonium.errors import NumericalWarning, ShapeError, warn
from orthogonium.losses.targets import (
    Loss,
    Reduction,
    as_probabilities,
    check,
    check_positive,
    check_unit_interval,
)

_OLD_ALPHA = "An α > 1 of the older convention, KR + α·hinge, is α/(1 + α) here."


def kr_values(
    f: Tensor,  # (n, k): one-vs-all scores
    p: Tensor,  # (n, k): probability of the positive class
) -> Tensor:  # (n, k), with KR of column k as mean over n
    """`f·(p·N/N₊ − (1 − p)·N/N₋)`; a class that is absent from the batch contributes nothing."""
    n = f.shape[0]
    positive, negative = p.sum(dim=0), (1 - p).sum(dim=0)
    rate = torch.where(positive > 0, n / positive, 0.0), torch.where(negative > 0, n / negative, 0.0)
    return f * (p * rate[0] - (1 - p) * rate[1])


def hinge_values(
    f: Tensor,  # (n, k)
    p: Tensor,  # (n, k)
    min_margin: float,
    positive_weight: float = 1.0,
) -> Tensor:  # (n, k)
    """`p·w·relu(m/2 − f) + (1 − p)·relu(m/2 + f)`: a margin `m` between the classes, centered at 0."""
    half = min_margin / 2
    return positive_weight * p * F.relu(half - f) + (1 - p) * F.relu(half + f)


def _binary(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and probabilities of the positive class as columns (n, 1)."""
    if scores.dim() not in (1, 2) or scores.shape[1:] not in ((), (1,)) or scores.numel() != labels.numel():
        raise ShapeError(
            f"A binary loss takes scores (n,) or (n, 1) and as many labels: got {tuple(scores.shape)} and "
            f"{tuple(labels.shape)}. For several logits use the multiclass loss."
        )
    scores = scores.reshape(-1, 1).to(torch.promote_types(scores.dtype, torch.float32))
    p = labels.reshape(-1, 1).to(scores.dtype)
    if values_known(p) and ((p < 0) & (p != -1) | (p > 1)).any():
        raise ShapeError("Binary labels are 0 and 1, −1 and 1, or probabilities in [0, 1]: got other values.")
    p = torch.where(p < 0, 0.0, p)
    if values_known(p) and (p == p[0]).all() and p[0] in (0, 1):
        warn(
            f"All {len(p)} labels are {'positive' if p[0] else 'negative'}: the other class has no mean, and KR is "
            "that of one class alone, which moves all scores one way. Use larger or stratified batches.",
            NumericalWarning,
        )
    return scores, p


def _multiclass(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits, labels = check(logits, labels)
    return logits, as_probabilities(labels, logits)


class HingeKR(Loss):
    """What all hinge-KR losses share: a weight of the hinge and a margin.

    Args:
        alpha: weight `α` of the hinge, in [0, 1].
        min_margin: the margin `m`, positive.
        reduction: mean, sum or none.
    """

    def __init__(self, alpha: float, min_margin: float, reduction: Reduction) -> None:
        super().__init__(reduction)
        check_unit_interval("alpha", alpha, _OLD_ALPHA)
        check_positive("min_margin", min_margin)
        self.alpha = alpha
        self.min_margin = min_margin


class KRLoss(Loss):
    """Negative Kantorovich–Rubinstein term of one logit: `−KR = E[f | −] − E[f | +]`.

    Args:
        reduction: mean (the value above), sum (n times it) or none (n values with that mean).

    >>> from orthogonium.losses import KRLoss
    >>> KRLoss()(torch.tensor([3.0, 1.0, -1.0]), torch.tensor([1, 1, 0]))
    tensor(-3.)
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of scores (n,) or (n, 1); labels are 0/1, −1/1 or probabilities."""
        return self.reduce(-kr_values(*_binary(scores, labels))[:, 0])


class HKRLoss(HingeKR):
    """Hinge-KR of one logit: `α·E[relu(m/2 − s·f)] − (1 − α)·KR`, with `s = ±1` the sign of the label.

    Args:
        alpha: weight `α` of the hinge, in [0, 1].
        min_margin: the margin `m`, positive.
        reduction: mean (the value above), sum (n times it) or none (n values with that mean).

    >>> from orthogonium.losses import HKRLoss
    >>> HKRLoss(alpha=0.5, min_margin=4.0)(torch.tensor([3.0, 1.0, -1.0]), torch.tensor([1, 1, -1]))
    tensor(-1.1667)
    """

    def __init__(self, alpha: float, min_margin: float = 1.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(alpha, min_margin, reduction)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of scores (n,) or (n, 1); labels are 0/1, −1/1 or probabilities."""
        f, p = _binary(scores, labels)
        values = self.alpha * hinge_values(f, p, self.min_margin) - (1 - self.alpha) * kr_values(f, p)
        return self.reduce(values[:, 0])


class KRMulticlassLoss(Loss):
    """Negative KR of each class against the rest, averaged over the classes.

    Args:
        reduction: mean (the value above), sum (n times it) or none (n values with that mean).

    >>> from orthogonium.losses import KRMulticlassLoss
    >>> KRMulticlassLoss()(torch.tensor([[2.0, -2.0], [-2.0, 2.0]]), torch.tensor([0, 1]))
    tensor(-4.)
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss; labels are indices (n,) or probabilities (n, classes)."""
        return self.reduce(-kr_values(*_multiclass(logits, labels)).mean(dim=1))


class HKRMulticlassLoss(HingeKR):
    """Hinge-KR of each of `C` classes against the rest, averaged over the classes: `α·hinge − (1 − α)·KR`.

    The hinge of the true class counts `C − 1` times, as much as all others together.

    Args:
        alpha: weight `α` of the hinge, in [0, 1].
        min_margin: the margin `m`, positive.
        reduction: mean (the value above), sum (n times it) or none (n values with that mean).

    >>> from orthogonium.losses import HKRMulticlassLoss
    >>> HKRMulticlassLoss(0.9)(torch.tensor([[2.0, -2.0], [-2.0, 2.0]]), torch.tensor([0, 1]))
    tensor(-0.4000)
    """

    def __init__(self, alpha: float, min_margin: float = 1.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(alpha, min_margin, reduction)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss; labels are indices (n,) or probabilities (n, classes)."""
        f, p = _multiclass(logits, labels)
        hinge = hinge_values(f, p, self.min_margin, positive_weight=f.shape[1] - 1)
        values = self.alpha * hinge - (1 - self.alpha) * kr_values(f, p)
        return self.reduce(values.mean(dim=1))
