"""Certified-robustness metrics for `torchmetrics`, accumulated exactly over batches and processes.

They need the extra `[train]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.certification.radii import VRA, Head, certified_radii, check_head, exceeds
from orthogonium.errors import GuaranteeWarning, ParameterError, lacking, warn
from orthogonium.layers.head import check_last_linear_layer_type

try:
    from torchmetrics import Metric
except ModuleNotFoundError as error:
    raise lacking(
        "orthogonium.metrics needs torchmetrics", otherwise="The function orthogonium.losses.VRA does without."
    ) from error

__all__ = ["VRA", "CertifiedAccuracy", "MeanCertifiedRadius"]


class _CertifiedMetric(Metric):
    """Radii of batches, counted against their labels."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    total: Tensor

    def __init__(self, last_layer_type: Head | nn.Module | None, L: float, **metric_options: Any) -> None:
        super().__init__(**metric_options)  # torchmetrics rejects unknown options
        head = self._found(last_layer_type) if isinstance(last_layer_type, nn.Module) else last_layer_type
        self.assumed = head is None  # until a batch comes with the weight of its head
        self.last_layer_type: Any = head or "classwise"
        check_head(self.last_layer_type, L)
        self.L = L
        self.add_state("total", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def _found(self, model: nn.Module) -> str:
        """The type of the head of a model."""
        found = check_last_linear_layer_type(model)
        if found == "unknown":
            raise ParameterError(
                f"{type(self).__name__}: the head of the model is none of OrthoLinear, SpectralLinear and "
                "UnitNormLinear. Pass last_layer_type='global' or 'classwise' if you know it, or head_weight with each "
                "batch."
            )
        return found

    def _radii(self, logits: Tensor, labels: Tensor, head_weight: Tensor | None) -> Tensor:
        if self.assumed and head_weight is None:
            self.assumed = False  # warn only once
            warn(
                f"{type(self).__name__} was not told the head of the network and assumes 'classwise', rows of norm 1 "
                f"behind {self.L:.4g}-Lipschitz features. Pass last_layer_type: 'global', 'classwise' or the model.",
                GuaranteeWarning,
            )
        head = self.last_layer_type if head_weight is None else head_weight
        radii = certified_radii(logits.detach(), labels, head, self.L)
        self.total += radii.numel()
        return radii


class CertifiedAccuracy(_CertifiedMetric):
    """Fraction of samples classified correctly, and provably so within each radius in `eps` (verified robust accuracy).

    With radius 0 this is the accuracy (ties count as wrong).

    Args:
        eps: one radius, or several.
        last_layer_type: "classwise" or "global", see `orthogonium.certification.radii`; or the model, whose head is
            looked up. If None, "classwise" is assumed, with a warning.
        L: Lipschitz constant of the network or, with a head weight, of everything before the head.
        metric_options: options of `torchmetrics.Metric`.

    >>> from orthogonium.metrics import CertifiedAccuracy
    >>> metric = CertifiedAccuracy(eps=[0.0, 0.5, 2.0], last_layer_type="classwise")
    >>> metric.update(torch.tensor([[3.0, 1.0], [1.0, 1.2]]), torch.tensor([0, 1]))
    >>> metric.compute()
    tensor([1.0000, 0.5000, 0.0000])
    """

    certified: Tensor
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        eps: float | Sequence[float] = 36 / 255,
        last_layer_type: Head | nn.Module | None = None,
        L: float = 1.0,
        **metric_options: Any,
    ) -> None:
        super().__init__(last_layer_type, L, **metric_options)
        self.eps = tuple(eps) if isinstance(eps, Sequence) else eps
        radii = self.eps if isinstance(self.eps, tuple) else (self.eps,)
        if not radii or any(not e >= 0 for e in radii):
            raise ParameterError(f"CertifiedAccuracy needs one or more radii ≥ 0: got eps={eps}.")
        shape = (len(radii),) if isinstance(self.eps, tuple) else ()
        self.add_state("certified", torch.zeros(shape, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor, head_weight: Tensor | None = None) -> None:
        """Count a batch; a `head_weight` (classes, features) takes the place of `last_layer_type`."""
        radii = self._radii(logits, labels, head_weight)
        thresholds = torch.tensor(self.eps, dtype=radii.dtype, device=radii.device)
        self.certified += exceeds(radii, thresholds[..., None]).sum(dim=-1)

    def compute(self) -> Tensor:
        """The fraction for each radius: a scalar for a single radius, (k,) for a sequence of k."""
        return self.certified / self.total


class MeanCertifiedRadius(_CertifiedMetric):
    """Mean certified l2 radius over all samples, where a wrong prediction counts as 0 (average certified radius).

    Args:
        last_layer_type: "classwise" or "global", see `orthogonium.certification.radii`; or the model, whose head is
            looked up. If None, "classwise" is assumed, with a warning.
        L: Lipschitz constant of the network or, with a head weight, of everything before the head.
        metric_options: options of `torchmetrics.Metric`.

    >>> from orthogonium.metrics import MeanCertifiedRadius
    >>> metric = MeanCertifiedRadius("classwise")
    >>> metric.update(torch.tensor([[3.0, 1.0], [1.0, 5.0]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.5000)
    """

    radius_sum: Tensor
    plot_lower_bound = 0.0

    def __init__(self, last_layer_type: Head | nn.Module | None = None, L: float = 1.0, **metric_options: Any) -> None:
        super().__init__(last_layer_type, L, **metric_options)
        self.add_state("radius_sum", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor, head_weight: Tensor | None = None) -> None:
        """Add a batch; a `head_weight` (classes, features) takes the place of `last_layer_type`."""
        self.radius_sum += self._radii(logits, labels, head_weight).clamp(min=0).sum()

    def compute(self) -> Tensor:
        """The mean radius over all samples counted so far."""
        return self.radius_sum / self.total
