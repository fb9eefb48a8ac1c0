"""Losses on the direction of the logits, with and without a term for certified radii."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from orthogonium.certification.radii import Head, pair_constants
from orthogonium.losses.targets import (
    Loss,
    RadiusLoss,
    Reduction,
    as_probabilities,
    check,
    check_positive,
    check_unit_interval,
    expectation,
    of_label,
    without_label,
)


def cosine_loss(
    logits: Tensor,  # (n, classes)
    labels: Tensor,  # (n,) or (n, classes)
) -> Tensor:  # (n,)
    """`−cos(z, q)` for label probabilities `q`, i.e. `−z_y/‖z‖` for an index `y`."""
    logits, labels = check(logits, labels)
    return -F.cosine_similarity(logits, as_probabilities(labels, logits), dim=1)


def soft_violation(
    logits: Tensor,  # (n, classes)
    labels: Tensor,  # (n,)
    eps: float,
    last_layer_type: Head | Tensor,
    L: float,
) -> Tensor:  # (n,)
    """By how much certified radii miss `eps`: `Σ_{j≠y} softmax(h)_j h_j`, `h_j = relu(ε − (z_y − z_j)/L_yj)`."""
    constants = pair_constants(labels, last_layer_type, L)
    if isinstance(constants, Tensor):
        constants = without_label(constants, labels, 1.0)  # the label against itself is left out anyway
    shortfall = F.relu(eps - (of_label(logits, labels) - logits) / constants)
    weights = F.softmax(without_label(shortfall, labels, -float("inf")), dim=1)
    return (weights * shortfall).sum(dim=1)


class CosineLoss(Loss):
    """Negative cosine between logits and label: `−z_y/‖z‖`.

    It ignores the norm of the logits, which a 1-Lipschitz network cannot raise at will. Labels given as
    probabilities `q` are used as vectors: `−cos(z, q)`.

    Args:
        reduction: mean, sum or none.

    >>> from orthogonium.losses import CosineLoss
    >>> CosineLoss()(torch.tensor([[3.0, -4.0]]), torch.tensor([0]))
    tensor(-0.6000)
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)

    def forward(self, yp: Tensor, yt: Tensor) -> Tensor:
        """The loss of logits `yp`; labels `yt` are indices (n,) or probabilities (n, classes)."""
        return self.reduce(cosine_loss(yp, yt))


class Cosine_VRA_Loss(RadiusLoss):  # the published name
    """Cosine loss and a soft form of verified robust accuracy: `−(1 − γ) cos(z, e_y) + γ Σ_{j≠y} softmax(h)_j h_j`.

    `h_j = relu(ε − (z_y − z_j)/L_yj)` is how far the certified radius against class `j` falls short of `ε`; `L_yj` is
    `2L` for a classwise head, `√2·L` for a global one, `L‖w_y − w_j‖` if the weight of the head is given. Labels given
    as probabilities `q` enter as `cos(z, q)` and as the expectation of the second term.

    Args:
        gamma: weight `γ` of the second term, in [0, 1].
        L: Lipschitz constant of the network or, with a head weight, of everything before the head.
        eps: the radius `ε` to reach.
        last_layer_type: "classwise" or "global".
        reduction: mean, sum or none.

    >>> from orthogonium.losses import Cosine_VRA_Loss
    >>> Cosine_VRA_Loss(gamma=0.5, eps=1.0)(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor(-0.2500)
    """

    def __init__(
        self,
        gamma: float = 0.1,
        L: float = 1.0,
        eps: float = 36 / 255,
        last_layer_type: Head = "classwise",
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(L, last_layer_type, reduction)
        check_unit_interval("gamma", gamma)
        check_positive("eps", eps)
        self.gamma = gamma
        self.eps = eps

    def forward(self, yp: Tensor, yt: Tensor, gamma: float | None = None, head_weight: Tensor | None = None) -> Tensor:
        """The loss of logits `yp` and labels `yt`; `gamma`, if given, overrides the stored one (for schedules).

        A `head_weight` (classes, features) takes the place of `last_layer_type`.
        """
        if gamma is None:
            gamma = self.gamma
        check_unit_interval("gamma", gamma)
        head = self.head(head_weight)
        logits, labels = check(yp, yt)
        violation = expectation(lambda z, y: soft_violation(z, y, self.eps, head, self.L), logits, labels)
        values = (1 - gamma) * cosine_loss(logits, labels) + gamma * violation
        return self.reduce(values)
