"""From logits to certificates: margins, certified l2 radii, verified robust accuracy. Pure functions, on any device.

Note [Constant of a pair of logits]
A perturbation can change the sign of `f_i − f_j` only if it exceeds the value of that difference divided by its
Lipschitz constant. That constant depends on the head `f = Wφ + b`:

- `"global"`: `√2·L` where `f` as a whole is `L`-Lipschitz, as with ‖W‖₂ ≤ 1 behind `L`-Lipschitz features;
- `"classwise"`: `2·L` where each `f_i` alone is `L`-Lipschitz, as with unit rows behind `L`-Lipschitz features;
- the weight `W` itself: `L·‖w_i − w_j‖` behind `L`-Lipschitz features, the sharpest.

`L` must be an upper bound that includes floating-point error and the scaling of the inputs (`input_scaling`).

Note [Logits that are not finite]
A row with NaN or +∞ says nothing about its input: an overflow has lost the order of the logits. Its radius is 0, never
certified, and its margin is never positive. −∞ marks a class that is masked out: it stays out under any perturbation if
the mask does not depend on the input, so it is no rival, and the finite logits decide. A label that is masked out, or a
row without two finite logits, also gets radius 0. All this is decided elementwise, so no device has to wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from orthogonium.errors import ParameterError, ShapeError

Head = Literal["global", "classwise"]
_PAIR_FACTOR = {"global": math.sqrt(2), "classwise": 2.0}


def check_head(last_layer_type: str, L: float) -> None:
    """Check that the type of head is known and the constant usable."""
    if last_layer_type not in _PAIR_FACTOR:
        raise ParameterError(
            f"The type of the last layer decides the certificate: 'global' (the whole matrix has norm ≤ 1) or "
            f"'classwise' (unit rows): got {last_layer_type!r}. For any other linear head pass its weight instead."
        )
    if not (math.isfinite(L) and L > 0):
        raise ParameterError(f"The Lipschitz constant must be positive and finite: got L={L}.")


def check_logits(logits: Tensor) -> Tensor:
    """Check logits (n, classes) of at least two classes, and return them in float32 or better."""
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ShapeError(f"Logits have shape (n, classes) with at least 2 classes: got {tuple(logits.shape)}.")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def values_known(labels: Tensor) -> bool:
    """Whether code may look at the values: not while compilers or `vmap` trace, and not where it stalls the device."""
    if labels.device.type != "cpu" or torch.compiler.is_compiling() or not labels.numel():
        return False
    levels = torch._C._functorch.get_interpreter_stack() or []
    return all(level.key() != torch._C._functorch.TransformType.Vmap for level in levels)


def check_indices(logits: Tensor, labels: Tensor) -> None:
    """Check one class index per row."""
    if labels.shape != logits.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise ShapeError(
            f"Labels of logits {tuple(logits.shape)} are {logits.shape[0]} class indices: got shape "
            f"{tuple(labels.shape)} of {labels.dtype}. For one-hot labels use labels.argmax(dim=1)."
        )
    if values_known(labels):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= logits.shape[1]:
            raise ShapeError(
                f"Class indices of {logits.shape[1]} classes lie in [0, {logits.shape[1] - 1}]: got {low}…{high}."
            )


def pair_constants(
    labels: Tensor,  # (n,)
    last_layer_type: Head | Tensor,  # or the weight of the head, (classes, features)
    L: float = 1.0,
) -> float | Tensor:  # one for all, or (n, classes)
    """Lipschitz constants of `f_y − f_j` for each label `y` and class `j`. Note [Constant of a pair of logits]."""
    if isinstance(last_layer_type, str):
        check_head(last_layer_type, L)
        return _PAIR_FACTOR[last_layer_type] * L
    if last_layer_type.dim() != 2:
        raise ShapeError(f"The weight of a head has shape (classes, features): got {tuple(last_layer_type.shape)}.")
    check_head("global", L)
    dtype = torch.promote_types(last_layer_type.dtype, torch.float32)
    # Long sums of squares lose digits in float32; so do matrix products, for small distances, which mean large radii
    # here. Rows are scaled to order 1 so that their squares do not underflow.
    rows = last_layer_type.to(dtype if last_layer_type.device.type == "mps" else torch.float64)  # mps has no float64
    size = rows.detach().abs().amax().clamp(min=torch.finfo(rows.dtype).tiny) if rows.numel() else 1.0
    distances = size * torch.cdist(rows / size, rows / size, compute_mode="donot_use_mm_for_euclid_dist")
    return L * distances.to(dtype)[labels]


def _runner_up(
    values: Tensor,  # (n, classes)
    labels: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Smallest value among the classes other than the label."""
    return values.scatter(1, labels[:, None], math.inf).amin(dim=1)


def _gaps(
    logits: Tensor,  # (n, classes)
    labels: Tensor,  # (n,)
) -> tuple[Tensor, Tensor]:  # (n, classes), (n,)
    """Differences `f_y − f_j`, and the rows where they are meaningful. Note [Logits that are not finite]."""
    finite = logits.isfinite()
    usable = (finite | (logits == -math.inf)).all(dim=1) & finite.gather(1, labels[:, None])[:, 0]
    values = torch.where(finite, logits, 0.0)  # before the difference: ∞ − ∞ is NaN
    gaps = (values.gather(1, labels[:, None]) - values).clamp(max=torch.finfo(values.dtype).max)
    return torch.where(finite, gaps, math.inf), usable & (finite.sum(dim=1) >= 2)


def margins(
    logits: Tensor,  # (n, classes)
    labels: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """`f_y − max_{j≠y} f_j`: positive where the prediction is right, never positive where a logit is NaN or +∞.

    >>> from orthogonium.certification.radii import margins
    >>> margins(torch.tensor([[3.0, 1.0, 2.5], [3.0, 1.0, 2.5]]), torch.tensor([0, 1]))
    tensor([ 0.5000, -2.0000])
    """
    logits = check_logits(logits)
    check_indices(logits, labels)
    labels = labels.long()
    gaps, usable = _gaps(logits, labels)
    rivals = logits.scatter(1, labels[:, None], -math.inf).amax(dim=1)
    overflown = (logits.gather(1, labels[:, None])[:, 0] - rivals).nan_to_num(0.0, 0.0, -math.inf).clamp(max=0.0)
    return torch.where(usable, _runner_up(gaps, labels), overflown)


def certified_radii(
    logits: Tensor,  # (n, classes)
    labels: Tensor | None = None,  # (n,)
    last_layer_type: Head | Tensor = "classwise",
    L: float = 1.0,
) -> Tensor:  # (n,)
    """Largest l2 perturbation of each input that provably keeps its class: `min_{j≠y} (f_y − f_j) / L_yj`.

    `L_yj` is the Lipschitz constant of `f_y − f_j`: `√2·L` for a "global" head, `2·L` for a "classwise" one,
    `L·‖w_y − w_j‖` for a weight. Radii refer to the label, so they are negative where the prediction is wrong. Rows
    with NaN or +∞ have radius 0.

    Args:
        logits: outputs of the network.
        labels: class indices; if None, the predictions themselves are certified.
        last_layer_type: "global", "classwise", or the weight (classes, features) of a linear head.
        L: Lipschitz constant of the network, for a weight: of everything before the head.

    >>> from orthogonium.certification.radii import certified_radii
    >>> logits, labels = torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0])
    >>> certified_radii(logits, labels), certified_radii(logits, labels, torch.eye(3))
    (tensor([1.]), tensor([1.4142]))
    """
    logits = check_logits(logits)
    labels = logits.argmax(dim=1) if labels is None else labels
    check_indices(logits, labels)
    labels = labels.long()
    if isinstance(last_layer_type, Tensor) and last_layer_type.shape[:1] != logits.shape[1:]:
        raise ShapeError(
            f"A head of weight {tuple(last_layer_type.shape)} gives {last_layer_type.shape[0]} logits: got "
            f"{logits.shape[1]}."
        )
    gaps, usable = _gaps(logits, labels)
    largest = torch.finfo(gaps.dtype).max
    constants = pair_constants(labels, last_layer_type, L)
    if isinstance(constants, float):
        return torch.where(usable, _runner_up(gaps / constants, labels).clamp(max=largest), 0.0)
    # Logits of equal rows of a head never change their order: infinite radius, or 0 where they tie.
    constant = constants == 0
    radii = (gaps / torch.where(constant, 1.0, constants)).clamp(max=largest)
    endless = torch.copysign(torch.full_like(gaps, math.inf), gaps.detach())
    radii = _runner_up(torch.where(constant & (gaps != 0), endless, radii), labels)
    # A head with a row that is not finite gives no distances.
    return torch.where(usable & constants.isfinite().all(dim=1), radii, 0.0)


def VRA(
    output: Tensor,  # (n, classes)
    class_indices: Tensor,  # (n,)
    last_layer_type: Head | Tensor = "classwise",
    L: float = 1.0,
    eps: float = 36 / 255,
    return_certs: bool = False,
) -> Tensor:  # (n,)
    """Verified robust accuracy per sample: 1 where the class is right and provably stays so within `eps`, else 0.

    An input counts if its certified radius is strictly larger than `eps`; one with a logit that is NaN or +∞ does not.
    Over a dataset, average all samples, not the means of batches: `orthogonium.metrics.CertifiedAccuracy` does this.

    Args:
        output: logits.
        class_indices: labels.
        last_layer_type: "global", "classwise", or the weight (classes, features) of a linear head.
        L: Lipschitz constant of the network, for a weight: of everything before the head.
        eps: l2 radius, in the units `L` refers to.
        return_certs: whether to return the radii themselves.

    >>> from orthogonium.certification.radii import VRA
    >>> VRA(torch.tensor([[3.0, 1.0], [1.0, 1.2], [0.0, 4.0]]), torch.tensor([0, 1, 0]), eps=0.5)
    tensor([1., 0., 0.])
    """
    if not eps >= 0:
        raise ParameterError(f"VRA needs a radius eps ≥ 0: got {eps}.")
    radii = certified_radii(output, class_indices, last_layer_type, L)
    return radii if return_certs else exceeds(radii, eps).to(radii.dtype)


def exceeds(radii: Tensor, eps: float | Tensor) -> Tensor:
    """Whether radii are larger than `eps` despite all rounding: of differences, distances, quotients, `eps` itself."""
    return radii * (1 - 4 * torch.finfo(radii.dtype).eps) > eps


def input_scaling(std: float | Sequence[float]) -> float:
    """Lipschitz constant of normalising inputs by `(x − mean)/std`: `1/min std`, the factor on `L` for raw inputs.

    >>> from orthogonium.certification.radii import input_scaling
    >>> input_scaling([0.25, 0.5, 0.5])
    4.0
    """
    smallest = min(std) if isinstance(std, Sequence) else std
    if not 0 < smallest < math.inf:
        raise ParameterError(f"Standard deviations must be positive and finite: got {std}.")
    return 1 / smallest
