"""Hinge-KR of the true class against its rivals, by softmax weights or by a smooth maximum."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.losses.hkr import HingeKR
from orthogonium.losses.targets import (
    Reduction,
    check,
    check_positive,
    check_unit_interval,
    expectation,
    of_label,
    without_label,
)


class SoftHKRMulticlassLoss(HingeKR):
    """Hinge-KR with softmax weights on the wrong classes: `(1 − α)·KR + α·hinge`.

    With weights `w_y = 1` and `w_j = softmax_{j≠y}(τ z)_j`, and signed logits `s_y = z_y`, `s_j = −z_j`:
    `KR = −Σ w s` and `hinge = Σ w·relu(m/2 − s)`. The temperature `τ = T·m/μ`, within [0.005, 250], follows the running
    mean `μ` of |z|, a buffer that starts at `m` and moves only with training steps (training mode, gradients enabled).

    Args:
        alpha: weight `α` of the hinge, in [0, 1].
        min_margin: the margin `m`, positive.
        alpha_mean: weight of the past in the running mean, in [0, 1].
        temperature: the factor `T`, positive.
        reduction: mean, sum or none.

    >>> from orthogonium.losses import SoftHKRMulticlassLoss
    >>> loss = SoftHKRMulticlassLoss(alpha=0.5).eval()
    >>> loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor(-0.2500)
    """

    mean: Tensor
    _MEAN_RANGE = (0.005, 1000.0)
    _TEMPERATURE_RANGE = (0.005, 250.0)

    def __init__(
        self,
        alpha: float = 0.9,
        min_margin: float = 1.0,
        alpha_mean: float = 0.99,
        temperature: float = 1.0,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(alpha, min_margin, reduction)
        check_unit_interval("alpha_mean", alpha_mean)
        check_positive("temperature", temperature)
        self.alpha_mean = alpha_mean
        self.temperature = temperature
        self.register_buffer("mean", torch.tensor(float(min_margin)))

    @torch.no_grad()
    def _update(self, logits: Tensor) -> None:
        moved = self.alpha_mean * self.mean + (1 - self.alpha_mean) * logits.abs().mean()
        # An empty batch, or one with infinities, leaves the mean as it is.
        self.mean.copy_(torch.where(moved.isfinite(), moved.clamp(*self._MEAN_RANGE), self.mean))

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits; targets are indices (n,) or probabilities (n, classes)."""
        logits, labels = check(input, target)
        if self.training and torch.is_grad_enabled():
            self._update(logits.detach())  # forward derivatives pass through no_grad
        mean = self.mean.clone().clamp(min=self.min_margin)  # a copy: the next step changes the buffer in place
        tau = (self.temperature * self.min_margin / mean).clamp(*self._TEMPERATURE_RANGE)
        return self.reduce(expectation(lambda z, y: self._of_index(z, y, tau), logits, labels))

    def _of_index(self, z: Tensor, y: Tensor, tau: Tensor) -> Tensor:
        weights = without_label(F.softmax(without_label(tau * z, y, -math.inf), dim=1), y, 1.0)
        signed = torch.where(without_label(torch.zeros_like(z), y, 1.0) > 0, z, -z)
        kr = -(weights * signed).sum(dim=1)
        hinge = (weights * F.relu(self.min_margin / 2 - signed)).sum(dim=1)
        return (1 - self.alpha) * kr + self.alpha * hinge


class LseHKRMulticlassLoss(HingeKR):
    """Hinge-KR against a smooth maximum of the wrong classes: `(1 − α)·KR + α·hinge`.

    With the smooth rival `r = logsumexp_{j≠y}(t z_j)/t`: `KR = −(z_y − r)`, `hinge = relu(m/2 − z_y) + relu(m/2 + r)`.
    The temperature `t = 2 ln(C − 1)/(penalty·m)` bounds its excess: `max z_j ≤ r ≤ max z_j + penalty·m/2`. With two
    classes `r` is the other logit.

    Args:
        alpha: weight `α` of the hinge, in [0, 1].
        min_margin: the margin `m`, positive.
        penalty: largest excess of the smooth maximum, in units of `m/2`, positive.
        reduction: mean, sum or none.

    >>> from orthogonium.losses import LseHKRMulticlassLoss
    >>> LseHKRMulticlassLoss(alpha=0.5)(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor(-0.2500)
    """

    def __init__(
        self, alpha: float = 0.9, min_margin: float = 1.0, penalty: float = 1.0, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(alpha, min_margin, reduction)
        check_positive("penalty", penalty)
        self.penalty = penalty

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss; labels are indices (n,) or probabilities (n, classes)."""
        logits, labels = check(logits, labels)
        return self.reduce(expectation(self._of_index, logits, labels))

    def _of_index(self, z: Tensor, y: Tensor) -> Tensor:
        true = of_label(z, y)[:, 0]
        wrong = without_label(z, y, -math.inf)
        if z.shape[1] == 2:
            rival = wrong.amax(dim=1)
        else:
            t = 2 * math.log(z.shape[1] - 1) / (self.penalty * self.min_margin)
            rival = torch.logsumexp(t * wrong, dim=1) / t
        half = self.min_margin / 2
        return (1 - self.alpha) * (rival - true) + self.alpha * (F.relu(half - true) + F.relu(half + rival))
