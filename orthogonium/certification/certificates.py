"""Certificates of a classifier on data: how far each input may be moved without changing its class.

Note [What is deducted]
A radius is a margin divided by a Lipschitz constant. Both are numbers a computer has rounded:

- the constant is an upper bound with the rounding of its own computation included (`LipschitzBound.slack`);
- the logits are computed in the dtype of the model. Their error is measured against the same weights in float64 on the
  first batch, and four times the largest deviation of a logit is taken as the error of any margin, once for the input
  and once for its perturbation (`forward_error`). This is a measurement with a safety factor, not a proof;
- the radius itself is rounded down.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.certification.bound import LipschitzBound, kind_of_input, lipschitz_bound, unwrapped
from orthogonium.certification.radii import certified_radii, check_indices, check_logits
from orthogonium.errors import ParameterError, ShapeError

_DOWN = 1 - 1e-12  # more than the rounding of a distance and a quotient in float64
_REFERENCE = 64  # samples on which the forward pass is compared with float64


@dataclass(frozen=True)
class Certificates:
    """What `certify` returns; tensors (n,) in the order of the data.

    Attributes:
        predictions: class indices.
        labels: the true ones.
        correct: whether they agree.
        radii: no perturbation of smaller l2 norm changes the class from the label; negative where it is wrong. The better
            of the two below.
        pair_radii: by the distances ‖w_i − w_j‖ of the rows of the last dense layer; None if there is none.
        coarse_radii: by √2 times the constant of the whole model.
        eps: the radii that were asked for.
        certified_accuracy: fraction of inputs that are right and provably stay so within each `eps`.
        bound: of the whole model.
        forward_error: deducted from every margin twice. Note [What is deducted].
    """

    predictions: Tensor
    labels: Tensor
    correct: Tensor
    radii: Tensor
    pair_radii: Tensor | None
    coarse_radii: Tensor
    eps: tuple[float, ...]
    certified_accuracy: tuple[float, ...]
    bound: LipschitzBound
    forward_error: float

    @property
    def accuracy(self) -> float:
        """Fraction of correct predictions."""
        return float(self.correct.double().mean())

    def certified_accuracy_at(self, eps: float) -> float:
        """Fraction of inputs with a radius strictly larger than `eps`."""
        return float((self.radii > eps).double().mean())

    def __str__(self) -> str:
        lines = [f"{len(self.labels)} inputs, {self.bound.value:.7g}-Lipschitz", "", "      eps  certified accuracy"]
        lines += [f"{0:9.4f}  {self.accuracy:.4f} (accuracy)"]
        lines += [f"{e:9.4f}  {a:.4f}" for e, a in zip(self.eps, self.certified_accuracy, strict=True)]
        deducted = f"Deducted: rounding of the bound {self.bound.slack:.1e}, of margins {2 * self.forward_error:.1e}."
        return "\n".join([*lines, "", deducted])


def certify(
    model: nn.Module,
    loader: Iterable[Sequence[Tensor]],
    eps: Sequence[float] = (36 / 255, 72 / 255, 108 / 255),
    *,
    forward_error: float | None = None,
) -> Certificates:
    """Certified l2 radii of a classifier on data, and its certified accuracy.

    The constant of the model is measured (`lipschitz_bound`), so radii refer to the inputs as the loader gives them: a
    normalization inside the model is accounted for, one inside the loader is not (see `input_scaling`). If the model ends
    in a dense layer, the distances of its rows give sharper radii.

    Args:
        model: from inputs to logits (n, classes), in eval mode.
        loader: batches (inputs, labels), all inputs of one shape.
        eps: radii at which to report certified accuracy.
        forward_error: largest error of a difference of two logits; measured by default. Note [What is deducted].

    >>> from orthogonium import certify
    >>> from orthogonium.layers import MaxMin, OrthoLinear
    >>> model = torch.nn.Sequential(OrthoLinear(4, 4), MaxMin(), OrthoLinear(4, 2)).eval()
    >>> x = torch.randn(8, 4)
    >>> found = certify(model, [(x, model(x).argmax(1))], eps=[0.0])
    >>> found.certified_accuracy, bool((found.radii >= found.coarse_radii).all())
    ((1.0,), True)
    """
    model = unwrapped(model)
    if any(module.training for module in model.modules()):
        raise ParameterError("A certificate is of the model as it is deployed: call model.eval() first.")
    if any(not (math.isfinite(e) and e >= 0) for e in eps):
        raise ParameterError(f"eps are finite radii ≥ 0: got {list(eps)}.")
    dtype, device = kind_of_input(model)
    bound: LipschitzBound | None = None
    shape: torch.Size | None = None
    logits, labels = [], []
    for batch in loader:
        x, y = _batch(batch)
        x = x.to(device, dtype)
        if bound is None or shape is None:
            shape, bound = x.shape[1:], lipschitz_bound(model, tuple(x.shape[1:]))
            forward_error = _forward_error(model, x[:_REFERENCE]) if forward_error is None else float(forward_error)
        if x.shape[1:] != shape:
            raise ShapeError(f"All inputs must have one shape: got {tuple(x.shape[1:])} after {tuple(shape)}.")
        with torch.no_grad():
            out = check_logits(model(x)).cpu().double()
        check_indices(out, y.cpu())
        logits.append(out)
        labels.append(y.cpu().long())
    if bound is None or forward_error is None:
        raise ParameterError("The loader gave no batch.")
    return _certificates(torch.cat(logits), torch.cat(labels), bound, tuple(eps), forward_error)


def _batch(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise ShapeError("A batch is a pair of tensors (inputs, labels).")
    return batch[0], batch[1]


def _certificates(
    logits: Tensor, labels: Tensor, bound: LipschitzBound, eps: tuple[float, ...], forward_error: float
) -> Certificates:
    deduction = torch.zeros_like(logits).scatter(1, labels[:, None], 2 * forward_error)
    lowered = logits - deduction
    tiny = torch.finfo(torch.float64).tiny
    coarse = certified_radii(lowered, labels, "global", max(bound.value, tiny)) * _DOWN
    pairs = None
    if bound.head is not None:
        weight = bound.head.layer.weight.detach().double().cpu()
        pairs = certified_radii(lowered, labels, weight, max(bound.head.features_bound, tiny)) * _DOWN
    radii = coarse if pairs is None else torch.where(coarse > 0, torch.maximum(pairs, coarse), coarse)
    predictions = logits.argmax(dim=1)
    return Certificates(
        predictions,
        labels,
        predictions == labels,
        radii,
        pairs,
        coarse,
        eps,
        tuple(float((radii > e).double().mean()) for e in eps),
        bound,
        forward_error,
    )


def _forward_error(model: nn.Module, x: Tensor) -> float:
    """Note [What is deducted]; float64 itself is compared with float32, and the deviation scaled to its precision."""
    own = torch.float64 if x.dtype == torch.float64 else x.dtype
    other = torch.float32 if own == torch.float64 else torch.float64
    twin = copy.deepcopy(model)
    for module in twin.modules():
        for name in list(getattr(module, "parametrizations", ())):
            parametrize.remove_parametrizations(module, name)  # the same weights, not weights built anew
    twin.to(other)
    with torch.no_grad():
        deviation = float((twin(x.to(other)).double() - model(x).double()).abs().max())
    return 4 * deviation * (torch.finfo(own).eps / torch.finfo(other).eps if own == torch.float64 else 1.0)
