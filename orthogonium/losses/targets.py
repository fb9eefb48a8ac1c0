"""What all losses share: how they treat labels, and how they reduce values per sample.

Labels are class indices (n,), or probabilities (n, classes): one-hot, smoothed or mixed. A loss `ℓ(z, y)` of an index
extends to probabilities as the expectation `Σ_k q_k ℓ(z, k)`, unless its docstring gives another formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from orthogonium.certification.radii import Head, check_head, check_indices, check_logits, values_known
from orthogonium.errors import ParameterError, ShapeError

Reduction = Literal["mean", "sum", "none"]
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "none": lambda values: values,
}


class Loss(nn.Module):
    """A loss with one value per sample, and a reduction.

    Args:
        reduction: mean, sum or none.
    """

    def __init__(self, reduction: Reduction) -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise ParameterError(f"reduction is 'mean', 'sum' or 'none': got {reduction!r}.")
        self.reduction = reduction

    def reduce(self, values: Tensor) -> Tensor:
        """Mean, sum, or the values themselves."""
        return _REDUCTIONS[self.reduction](values)


class RadiusLoss(Loss):
    """A loss on certified radii, which depend on the Lipschitz constant of the network and on its last layer.

    Args:
        L: Lipschitz constant of the network or, with a head weight, of everything before the head.
        last_layer_type: "classwise" or "global".
        reduction: mean, sum or none.
    """

    def __init__(self, L: float, last_layer_type: Head, reduction: Reduction) -> None:
        super().__init__(reduction)
        check_head(last_layer_type, L)
        self.L = L
        self.last_layer_type = last_layer_type

    def head(self, head_weight: Tensor | None) -> Head | Tensor:
        """The type of the last layer, or its weight if that is given."""
        return self.last_layer_type if head_weight is None else head_weight


def check_unit_interval(name: str, value: float, remedy: str = "") -> None:
    """Check that a weight is between 0 and 1."""
    if not 0 <= value <= 1:
        raise ParameterError(f"{name} is a weight in [0, 1]: got {value}. {remedy}".rstrip())


def check_positive(name: str, value: float) -> None:
    """Check that a number is positive and finite."""
    if not 0 < value < float("inf"):
        raise ParameterError(f"{name} must be positive and finite: got {value}.")


def check(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in float32 or better; labels as int64 indices (n,) or as probabilities (n, classes) of that type."""
    logits = check_logits(logits)
    if labels.shape == logits.shape:
        probabilities = labels.to(logits.dtype)
        if values_known(labels):
            rows = probabilities.sum(dim=1)
            if probabilities.min() < 0 or (rows - 1).abs().max() > 1e-3:
                raise ShapeError(
                    "Labels with a column for each class are probabilities, not negative and with sum 1 in each row: "
                    f"got a smallest entry {probabilities.min().item():.3g} and sums up to {rows.max().item():.3g}."
                )
        return logits, probabilities
    check_indices(logits, labels)
    return logits, labels.long()


def as_probabilities(labels: Tensor, logits: Tensor, smoothing: float = 0.0) -> Tensor:
    """Checked labels as (n, classes), moved by `smoothing` towards the uniform distribution."""
    # F.one_hot reads the labels, which `vmap` does not allow; like it, `scatter` accepts no others than classes.
    one_hot = labels if labels.dim() == 2 else torch.zeros_like(logits).scatter(1, labels.unsqueeze(1), 1.0)
    return (1 - smoothing) * one_hot + smoothing / logits.shape[1] if smoothing else one_hot


def expectation(
    loss: Callable[[Tensor, Tensor], Tensor],  # (m, classes) and indices (m,) → (m,)
    logits: Tensor,
    labels: Tensor,  # checked
) -> Tensor:  # (n,)
    """The loss of an index, or its expectation over the classes of positive probability."""
    if labels.dim() == 1:
        return loss(logits, labels)
    rows, classes = labels.nonzero(as_tuple=True)
    values = labels[rows, classes] * loss(logits[rows], classes)
    return torch.zeros_like(logits[:, 0]).index_add(0, rows, values)


def without_label(
    values: Tensor,  # (n, classes)
    labels: Tensor,  # (n,)
    fill: float,
) -> Tensor:
    """`values` with the entry of the label replaced."""
    return values.scatter(1, labels[:, None], fill)


def of_label(
    values: Tensor,  # (n, classes)
    labels: Tensor,  # (n,)
) -> Tensor:  # (n, 1)
    """The entry of the label, as a column."""
    return values.gather(1, labels[:, None])
