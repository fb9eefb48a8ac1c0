"""Certificates of a classifier on data: how far each input may be moved without a change of class.

Note [What is deducted]
A radius is a margin divided by a Lipschitz constant. Both are rounded numbers:

- the constant is an upper bound that includes the rounding of its own computation (`LipschitzBound.slack`);
- the logits are computed in the arithmetic of the model, and so are those of a perturbed input, perhaps later and with
  another batch size. The error of a difference of two logits is deducted twice, once for the input and once for its
  perturbation (`Certificates.forward_errors`, one for each sample):

  `rounding="measured"`: four times the largest deviation of the sample's logits from the same computation in float64,
  plus the floor of Note [Rounding along the walk], for inputs at which nothing happens to be rounded. A measurement
  with a margin, not a proof. All in all, `certify` takes about four times as long as inference. With `stride=k` only
  every k-th batch is measured, and the largest deviation found is used for the others.
  `rounding="proved"`: the a-priori bound of the same note, for every order of summation: no measurement, but larger.

- inputs with more digits than the dtype of the model are moved by the cast, and so are their perturbations;
- the radius itself is rounded down;
- nothing is certified for inputs so large that an intermediate number may overflow (`LipschitzBound.reach`).

Note [Self-refutation] Before certificates are returned, the certifier itself attacks some of them: by a few gradient
steps towards another class within 0.99 of the radius, and by running the samples alone, in a batch of another size. A
single success raises `RefutedError`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from orthogonium.certification.bound import LipschitzBound, kind_of_input, lipschitz_bound
from orthogonium.certification.evaluation import Deviations, Evaluated, evaluated, rounding_of_inputs
from orthogonium.certification.failures import RefutedError
from orthogonium.certification.radii import pair_constants
from orthogonium.certification.refutation import broken_certificates
from orthogonium.certification.render import at_most
from orthogonium.errors import GuaranteeWarning, ParameterError, ShapeError, warn
from orthogonium.layers.wrappers import unwrapped

Rounding = Literal["measured", "proved"]
_DOWN = 1 - 1e-12  # covers the rounding of a distance and a quotient in float64
_MARGIN = 4.0  # times a measured deviation
_ATTACKED = 64  # number of certificates that are attacked


@dataclass(frozen=True)
class Certificates:
    """What `certify` returns; tensors have shape (n,), in the order of the data.

    Attributes:
        predictions: class indices.
        labels: the true class indices.
        correct: whether prediction and label agree.
        radii: no perturbation of smaller l2 norm changes the class from the label; negative where the prediction is
            wrong, 0 where logits are not finite. The better of the two below.
        pair_radii: radii from the distances ‖w_i − w_j‖ between rows of the last matrix; None if there is none.
        coarse_radii: radii from √2 times the constant of the whole model.
        eps: the radii given to `certify`.
        certified_accuracy: fraction of inputs that are classified correctly and provably stay so within each `eps`.
        bound: Lipschitz bound of the whole model.
        forward_errors: errors of differences of logits; deducted twice, for the input and for its perturbation.
        rounding: how these errors were obtained.
        measured: fraction of the samples whose rounding was measured.
        non_finite: number of samples with logits that are not finite.
        attacked: number of certificates that were attacked inside their radius, without success.
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
    forward_errors: Tensor
    rounding: str
    measured: float
    non_finite: int
    attacked: int

    @property
    def forward_error(self) -> float:
        """The largest of `forward_errors`."""
        return float(self.forward_errors.max()) if len(self.forward_errors) else 0.0

    @property
    def accuracy(self) -> float:
        """Fraction of correct predictions."""
        return float(self.correct.double().mean())

    def certified_accuracy_at(self, eps: float) -> float:
        """Fraction of inputs with a radius strictly larger than `eps`."""
        return float((self.radii > eps).double().mean())

    def __str__(self) -> str:
        lines = [
            f"{len(self.labels)} inputs, {at_most(self.bound.value)}-Lipschitz",
            "",
            "      eps  certified accuracy",
        ]
        lines += [f"{0:9.4f}  {self.accuracy:.4f} (accuracy)"]
        lines += [f"{e:9.4f}  {a:.4f}" for e, a in zip(self.eps, self.certified_accuracy, strict=True)]
        share = "" if self.measured == 1 or self.rounding != "measured" else f" on {self.measured:.0%} of the samples"
        deducted = (
            f"Deducted: rounding of the bound {self.bound.slack:.1e}, of margins up to {2 * self.forward_error:.1e} "
            f"({self.rounding}{share})."
        )
        lines += ["", deducted, f"{self.attacked} certificates were attacked, none was broken."]
        if self.non_finite:
            lines.append(
                f"{self.non_finite} inputs have logits that are infinite or NaN: nothing is certified for them."
            )
        return "\n".join(lines)


def certify(
    model: nn.Module,
    loader: Iterable[Sequence[Tensor]],
    eps: float | Sequence[float] = (36 / 255, 72 / 255, 108 / 255),
    *,
    rounding: Rounding = "measured",
    stride: int = 1,
    forward_error: float | None = None,
) -> Certificates:
    """Certified l2 radii of a classifier on data, and its certified accuracy.

    The constant of the model is measured (`lipschitz_bound`), so radii refer to the inputs as the loader yields them: a
    normalization inside the model is accounted for, one inside the loader is not (see `input_scaling`). If the model
    ends in a matrix product, the distances between the rows of that matrix give sharper radii.

    Args:
        model: maps inputs to logits (n, classes); in eval mode.
        loader: yields batches (inputs, labels, …), all inputs of one shape; anything after the labels is ignored.
        eps: l2 radii at which to report certified accuracy.
        rounding: how to obtain the error of the forward pass, which is deducted from every margin: "measured" against
            float64, or "proved" for any order of summation, which deducts more.
        stride: measure the rounding of every `stride`-th batch.
        forward_error: largest error of a difference of two logits, if you know a better value.

    >>> from orthogonium import certify
    >>> from orthogonium.layers import MaxMin, OrthoLinear
    >>> model = torch.nn.Sequential(OrthoLinear(4, 4), MaxMin(), OrthoLinear(4, 2)).eval()
    >>> x = torch.randn(8, 4)
    >>> found = certify(model, [(x, model(x).argmax(1))], eps=[0.0])
    >>> found.certified_accuracy, bool((found.radii >= found.coarse_radii).all())
    ((1.0,), True)
    """
    model = unwrapped(model)
    radii = _radii(eps)
    _check(model, rounding, stride, forward_error)
    dtype, device = kind_of_input(model)
    bound: LipschitzBound | None = None
    shape: torch.Size | None = None
    collected: list[Evaluated] = []
    deviations = Deviations(model)
    for number, batch in enumerate(loader):
        x, y = _fields(batch)
        if not len(x):
            continue
        if bound is None and x.dtype == torch.uint8:
            warn(
                "certify got inputs of type uint8: it takes them as numbers from 0 to 255, which is the unit of radii, "
                "too. For a network of pixels in [0, 1], give it `orthogonium.data.unit_pixels(images)`.",
                GuaranteeWarning,
            )
        moved = rounding_of_inputs(x, dtype)
        x = x.to(device, dtype)
        if bound is None or shape is None:
            shape, bound = x.shape[1:], lipschitz_bound(model, tuple(x.shape[1:]))
        if x.shape[1:] != shape:
            raise ShapeError(f"All inputs must have one shape: got {tuple(x.shape[1:])} after {tuple(shape)}.")
        collected.append(evaluated(model, x, y, keep=_ATTACKED // 4, moved=moved))
        if rounding == "measured" and forward_error is None and number % stride == 0:
            deviations.measure_later(collected[-1], x)
    deviations.measure_now()
    if bound is None:
        raise ParameterError("The loader gave no batch with samples.")
    return _certificates(model, collected, bound, radii, rounding, forward_error)


def _radii(eps: float | Sequence[float]) -> tuple[float, ...]:
    """Radii as floats, whatever container holds them."""
    try:
        radii = tuple(torch.as_tensor(eps, dtype=torch.float64).flatten().tolist())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ParameterError(f"eps is a radius or several of them: got {eps!r}.") from error
    if any(not (math.isfinite(e) and e >= 0) for e in radii):
        raise ParameterError(f"eps are finite radii ≥ 0: got {list(radii)}.")
    return radii


def _in_training(module: nn.Module) -> bool:
    """Whether some module is in training mode. An exported program keeps the mode it was exported in."""
    exported = isinstance(module, torch.fx.GraphModule) and "eval" in vars(module)  # which raises an error
    return not exported and (getattr(module, "training", False) or any(map(_in_training, module.children())))


def _check(model: nn.Module, rounding: str, stride: int, forward_error: float | None) -> None:
    if _in_training(model):
        raise ParameterError("A certificate is of the model as it is deployed: call model.eval() first.")
    if rounding not in ("measured", "proved"):
        raise ParameterError(f"rounding is 'measured' or 'proved': got {rounding!r}.")
    if not isinstance(stride, int) or stride < 1:
        raise ParameterError(f"stride is a number of batches, at least 1: got {stride!r}.")
    if forward_error is not None and not (math.isfinite(forward_error) and forward_error >= 0):
        raise ParameterError(f"forward_error is a finite error ≥ 0: got {forward_error}.")


def _fields(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    listed = isinstance(batch, (tuple, list))
    if not listed or len(batch) < 2 or not all(isinstance(part, Tensor) for part in batch[:2]):
        raise ShapeError(f"A batch begins with a pair of tensors (inputs, labels): got a {type(batch).__name__}.")
    return batch[0], batch[1]


def _certificates(
    model: nn.Module,
    batches: list[Evaluated],
    bound: LipschitzBound,
    eps: tuple[float, ...],
    rounding: Rounding,
    forward_error: float | None,
) -> Certificates:
    logits, labels = torch.cat([b.logits for b in batches]), torch.cat([b.labels for b in batches])
    norms = torch.cat([b.norms for b in batches])
    errors, slope = _errors(batches, bound, norms, rounding, forward_error)
    finite = logits.isfinite().all(1) & errors.isfinite()
    margins = logits.gather(1, labels[:, None]) - logits - 2 * errors[:, None]
    coarse = _smallest(margins, labels, pair_constants(labels, "global", max(bound.value, _TINY)), slope) * _DOWN
    pairs = None
    if bound.head is not None and bound.head.weight.shape[0] == logits.shape[1]:
        constants = pair_constants(labels, bound.head.weight, max(bound.head.features_bound, _TINY))
        pairs = _smallest(margins, labels, constants, slope) * _DOWN
    radii = coarse if pairs is None else torch.where(coarse > 0, torch.maximum(pairs, coarse), coarse)
    within = (bound.reach - norms).clamp_min(0.0)  # beyond this, numbers may overflow
    # The cast moves an input and its perturbation by one rounding each.
    moved = torch.cat([b.norms.new_tensor([b.moved]).expand(len(b.norms), 2) for b in batches])
    coarse, radii = (
        torch.where(finite, torch.minimum(_before_cast(r, norms, moved), within), 0.0) for r in (coarse, radii)
    )
    if pairs is not None:
        pairs = torch.where(finite, torch.minimum(_before_cast(pairs, norms, moved), within), 0.0)
    predictions = logits.nan_to_num(nan=-math.inf).argmax(dim=1)
    measured = sum(len(b.labels) for b in batches if b.deviations is not None) / len(labels)
    return Certificates(
        predictions,
        labels,
        (predictions == labels) & finite,
        radii,
        pairs,
        coarse,
        eps,
        tuple(float((radii > e).double().mean()) for e in eps),
        bound,
        errors,
        rounding if forward_error is None else "given",
        measured,
        int((~finite).sum()),
        _attacked(model, batches, radii),
    )


_TINY = torch.finfo(torch.float64).tiny


def _before_cast(radii: Tensor, norms: Tensor, moved: Tensor) -> Tensor:
    """Radii around the original inputs, before a cast moves them and their perturbations."""
    relative, lost = moved.unbind(1)
    left = ((radii - 2 * relative * norms - 2 * lost) / (1 + relative)).clamp_min(0.0)
    return torch.where(radii > 0, left, radii)


def _errors(
    batches: list[Evaluated], bound: LipschitzBound, norms: Tensor, rounding: Rounding, given: float | None
) -> tuple[Tensor, float]:
    """Errors of differences of logits at the inputs, and how fast they may grow with the distance from them."""
    if given is not None:
        return torch.full_like(norms, given), 0.0
    constant, slope = bound.error.proved if rounding == "proved" else bound.error.floor
    along = math.sqrt(2) * (constant + slope * norms)  # of two logits, from the norm of the error of all of them
    if rounding == "measured":
        largest = max(float(b.deviations.nan_to_num(nan=math.inf).max()) for b in batches if b.deviations is not None)
        measured = [b.deviations if b.deviations is not None else torch.full_like(b.norms, largest) for b in batches]
        along = along + _MARGIN * torch.cat(measured).nan_to_num(nan=math.inf)
    return along, math.sqrt(2) * slope


def _smallest(margins: Tensor, labels: Tensor, constants: float | Tensor, slope: float) -> Tensor:
    """`min_j margin_j/(L_j + slope)` over the other classes; equal rows of a head never change their order."""
    constants = torch.as_tensor(constants, dtype=torch.float64).expand(margins.shape) + slope
    radii = torch.where(
        constants > 0, margins / constants.clamp_min(_TINY), torch.copysign(torch.full_like(margins, math.inf), margins)
    )
    radii = torch.where((constants <= 0) & (margins <= 0), torch.minimum(margins, torch.zeros_like(margins)), radii)
    return radii.scatter(1, labels[:, None], math.inf).amin(1)


def _attacked(model: nn.Module, batches: list[Evaluated], radii: Tensor) -> int:
    """Note [Self-refutation]: attack some certificates, from different batches, and return their number."""
    chosen: list[tuple[Tensor, int, float, int]] = []
    first = 0
    share = max(1, -(-_ATTACKED // len(batches)))
    for batch in batches:
        own = radii[first + batch.places]
        claimed = (own > 0).nonzero().flatten()[:share].tolist()
        chosen += [
            (batch.inputs[i], int(batch.labels[batch.places[i]]), float(own[i]), first + int(batch.places[i]))
            for i in claimed
        ]
        first += len(batch.labels)
    chosen = chosen[:: max(1, len(chosen) // _ATTACKED)][:_ATTACKED]
    if not chosen:
        return 0
    x = torch.stack([c[0] for c in chosen])
    labels, around = torch.tensor([c[1] for c in chosen]), torch.tensor([c[2] for c in chosen], dtype=torch.float64)
    broken, distances = broken_certificates(model, x, labels, around)
    if bool(broken.any()):
        i = int(broken.nonzero()[0])
        raise RefutedError(
            f"Sample {chosen[i][3]} changes its class at distance {float(distances[i]):.6g}, but {chosen[i][2]:.6g} "
            f"was to be certified ({int(broken.sum())} of {len(chosen)} that were attacked): some part of the model is "
            "not what it seems to be. Nothing is certified."
        )
    return len(chosen)
