"""Losses of the certified-training literature: logit annealing, EMMA, certificate regularization."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.certification.radii import Head, certified_radii, pair_constants
from orthogonium.errors import ParameterError
from orthogonium.losses.targets import (
    Loss,
    RadiusLoss,
    Reduction,
    as_probabilities,
    check,
    check_positive,
    expectation,
    of_label,
    without_label,
)


def _check_not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ParameterError(f"{name} must be finite and at least 0: got {value}.")


class LALoss(Loss):
    """Logit annealing: `T·(1 − p)^β·(−log p)` with `p = softmax((z − ξ·e_y)/T)_y`.

    The offset `ξ` asks for a margin; the power `β` anneals the gradient of samples that have it, so capacity goes to
    the others. `β = 0` is `LossXent`. Lai et al., "Enhancing certified robustness via block reflector orthogonal
    layers and logit annealing loss" (2025).

    Args:
        temperature: the temperature `T`, positive.
        offset: the offset `ξ`.
        beta: the power `β`, at least 0.
        reduction: mean, sum or none.

    >>> from orthogonium.losses import LALoss
    >>> LALoss(temperature=1.0, offset=0.0, beta=1.0)(torch.zeros(1, 2), torch.tensor([0]))  # ln(2)/2
    tensor(0.3466)
    """

    def __init__(
        self, temperature: float = 0.75, offset: float = 2.0, beta: float = 5.0, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        check_positive("temperature", temperature)
        _check_not_negative("beta", beta)
        self.temperature = temperature
        self.offset = offset
        self.beta = beta

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss; labels are indices (n,) or probabilities (n, classes)."""
        logits, labels = check(logits, labels)
        return self.reduce(expectation(self._of_index, logits, labels))

    def _of_index(self, z: Tensor, y: Tensor) -> Tensor:
        shifted = z - self.offset * as_probabilities(y, z)
        log_p = of_label(F.log_softmax(shifted / self.temperature, dim=1), y)[:, 0]
        # 1 − p without cancellation; bounded away from 0, where powers below 1 have an infinite slope
        doubt = (-torch.expm1(log_p)).clamp(min=torch.finfo(log_p.dtype).tiny)
        return -self.temperature * doubt**self.beta * log_p


class EMMALoss(RadiusLoss):
    """Efficient margin maximisation: cross-entropy of the logits an adversary of radius `ε` could reach.

    `CE` over `j` of `z_j − z_y + ε_j·ε·L_yj` with `ε_j = clip((z_y − z_j)/(ε·L_yj), 0.01, 1)`, treated as constant:
    each class gets only as much of the radius as brings it level. `L_yj` is `2L` for a classwise head, `√2·L` for a
    global one, `L‖w_y − w_j‖` if the weight of the head is given. Hu et al., "Unlocking deterministic robustness
    certification on ImageNet" (2023).

    Args:
        eps: the radius `ε`, positive.
        L: Lipschitz constant of the network or, with a head weight, of everything before the head.
        last_layer_type: "classwise" or "global".
        reduction: mean, sum or none.

    >>> from orthogonium.losses import EMMALoss
    >>> EMMALoss(eps=0.5)(torch.tensor([[0.5, 0.0]]), torch.tensor([0]))  # brought level: ln(2)
    tensor(0.6931)
    """

    _SHARE = (0.01, 1.0)

    def __init__(
        self,
        eps: float = 36 / 255,
        L: float = 1.0,
        last_layer_type: Head = "classwise",
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(L, last_layer_type, reduction)
        check_positive("eps", eps)
        self.eps = eps

    def forward(self, logits: Tensor, labels: Tensor, head_weight: Tensor | None = None) -> Tensor:
        """The loss; a `head_weight` (classes, features) takes the place of `last_layer_type`."""
        head = self.head(head_weight)
        logits, labels = check(logits, labels)
        return self.reduce(expectation(lambda z, y: self._of_index(z, y, head), logits, labels))

    def _of_index(self, z: Tensor, y: Tensor, head: Head | Tensor) -> Tensor:
        constants = pair_constants(y, head, self.L)
        # A fill, not a copy of a number from the host, for which accelerators would wait.
        reach = self.eps * (constants.to(z) if isinstance(constants, Tensor) else z.new_full((), constants))
        gaps = of_label(z, y) - z
        # Equal rows, among them the label itself, have no reach: any share gives the same result.
        share = (gaps / torch.where(reach > 0, reach, 1.0)).detach().clamp(*self._SHARE)
        attacked = without_label(share * reach - gaps, y, 0.0)
        return -of_label(F.log_softmax(attacked, dim=1), y)[:, 0]


class CertificateRegularizedLoss(RadiusLoss):
    """Cross-entropy minus a reward for certified radii: `CE(z, y) − γ·relu(radius)`.

    The radius is that of `certified_radii`. Singla, Singla, Feizi, "Improved deterministic l2 robustness on CIFAR-10
    and CIFAR-100" (2022).

    Args:
        gamma: weight `γ` of the radius, at least 0.
        L: Lipschitz constant of the network or, with a head weight, of everything before the head.
        last_layer_type: "classwise" or "global".
        reduction: mean, sum or none.

    >>> from orthogonium.losses import CertificateRegularizedLoss
    >>> CertificateRegularizedLoss(gamma=0.5)(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor(-0.3731)
    """

    def __init__(
        self, gamma: float = 0.1, L: float = 1.0, last_layer_type: Head = "classwise", *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(L, last_layer_type, reduction)
        _check_not_negative("gamma", gamma)
        self.gamma = gamma

    def forward(self, logits: Tensor, labels: Tensor, head_weight: Tensor | None = None) -> Tensor:
        """The loss; a `head_weight` (classes, features) takes the place of `last_layer_type`."""
        head = self.head(head_weight)
        logits, labels = check(logits, labels)

        def of_index(z: Tensor, y: Tensor) -> Tensor:
            reward = F.relu(certified_radii(z, y, head, self.L))
            return F.cross_entropy(z, y, reduction="none") - self.gamma * reward

        return self.reduce(expectation(of_index, logits, labels))
