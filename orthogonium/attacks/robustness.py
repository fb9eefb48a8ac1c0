"""What attacks reveal about a classifier: a curve of accuracy under attack, and whether certificates hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.attacks.distances import finite_radii
from orthogonium.attacks.options import AttackOptions
from orthogonium.attacks.search import attack, gathered
from orthogonium.errors import ParameterError, ShapeError


@dataclass(frozen=True)
class AttackCurve:
    """Accuracy under attack at several radii.

    Attributes:
        method: name of the attack.
        eps: the radii, as given.
        accuracy: fraction of inputs that withstood the attack at each radius: an upper bound of the robust accuracy.
        distances: (n,) distances to the nearest point of another class found at any radius, ∞ where there was none.
        points: these points, (n, …), or the input where none was found; None if they were not kept.
        mistaken_for: (n,) the class the model prefers to the label at these points; None if they were not kept.
    """

    method: str
    eps: tuple[float, ...]
    accuracy: tuple[float, ...]
    distances: Tensor
    points: Tensor | None = None
    mistaken_for: Tensor | None = None

    def __str__(self) -> str:
        lines = [f"      eps  accuracy under attack ({self.method}, {len(self.distances)} inputs)"]
        return "\n".join(lines + [f"{e:9.4f}  {a:.4f}" for e, a in zip(self.eps, self.accuracy, strict=True)])


def empirical_accuracy(
    model: nn.Module | Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    eps_list: Sequence[float] = (36 / 255, 72 / 255, 108 / 255),
    **options: Any,
) -> AttackCurve:
    """Accuracy under attack at several radii; an input broken at one radius counts as broken at every larger one.

    Args:
        model: from inputs to logits (n, classes), in eval mode.
        images: inputs (n, …).
        labels: class indices (n,).
        eps_list: the radii; 0 gives the clean accuracy.
        options: fields of `AttackOptions`.

    >>> from orthogonium.attacks import empirical_accuracy
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.5, 0.0]])  # other classes at 0.71, 2.12, 0.35
    >>> empirical_accuracy(torch.nn.Identity().eval(), x, x.argmax(1), [0.0, 0.5, 1.0, 3.0]).accuracy
    (1.0, 0.666..., 0.333..., 0.0)
    """
    radii = tuple(float(e) for e in eps_list)
    if not radii or any(not (math.isfinite(e) and e >= 0) for e in radii):
        raise ParameterError(f"eps_list holds finite radii ≥ 0: got {list(eps_list)}.")
    images, labels = gathered((images, labels), model)
    how = AttackOptions(**options)
    nearest, points = torch.full((len(images),), math.inf, dtype=torch.float64, device=images.device), images.clone()
    for eps in sorted(set(radii)):
        standing = (nearest > eps).nonzero().flatten()
        if not len(standing):
            break
        found = attack(model, (images[standing], labels[standing]), eps, **options)
        better = found.distances < nearest[standing]
        nearest[standing[better]], points[standing[better]] = found.distances[better], found.points[better]
    accuracy = tuple(float((nearest > e).double().mean()) for e in radii)
    mistaken_for = _best_other_class(model, points, labels, how.batch_size)
    return AttackCurve(how.method, radii, accuracy, nearest, points, mistaken_for)


@torch.no_grad()
def _best_other_class(
    model: nn.Module | Callable[[Tensor], Tensor], points: Tensor, labels: Tensor, batch_size: int
) -> Tensor:
    """The class with the largest logit other than the label."""
    found = []
    for x, y in zip(points.split(batch_size), labels.split(batch_size), strict=True):
        found.append(model(x).scatter(1, y[:, None], -math.inf).argmax(1))
    return torch.cat(found)


@dataclass(frozen=True)
class AttackedCertificates:
    """What `break_certificates` returns; tensors have shape (n,), in the order of the data.

    Attributes:
        method: name of the attack.
        attacked: which inputs had a certificate (a radius > 0) and were attacked.
        broken: which of them change their class strictly inside the attacked fraction of their radius.
        radii: the certified radii.
        distances: distances to the nearest point of another class found, ∞ where there was none.
        points: these points, (n, …); the input where none was found.
    """

    method: str
    attacked: Tensor
    broken: Tensor
    radii: Tensor
    distances: Tensor
    points: Tensor

    def __str__(self) -> str:
        return f"{self.method}: {int(self.broken.sum())} of {int(self.attacked.sum())} certificates broken"


def break_certificates(
    model: nn.Module | Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    radii: Tensor,
    *,
    fraction: float = 0.999,
    **options: Any,
) -> AttackedCertificates:
    """Attack every input inside its own certified radius: valid certificates cannot be broken.

    An input counts as broken only if the point found, at a distance computed in float64 and smaller than `fraction`
    times the radius, is of another class when the model is called on it again. Misclassified inputs that have a radius
    > 0 count as broken at distance 0.

    Args:
        model: from inputs to logits (n, classes), in eval mode.
        images: inputs (n, …).
        labels: the certified classes, (n,).
        radii: certified radii (n,), such as `certify(…).radii`; those ≤ 0 claim nothing.
        fraction: fraction of the radius to attack, so that the rounding of a perturbation does not matter.
        options: fields of `AttackOptions`.

    >>> from orthogonium.attacks import break_certificates
    >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    >>> break_certificates(torch.nn.Identity().eval(), x, torch.tensor([0, 0]), torch.tensor([0.70, 2.2])).broken
    tensor([False,  True])
    """
    if not 0 < fraction <= 1:
        raise ParameterError(f"The attacked fraction of the radius lies in (0, 1]: got {fraction}.")
    images, labels = gathered((images, labels), model)
    radii = torch.as_tensor(radii, dtype=torch.float64, device=images.device).detach()
    if radii.shape != images.shape[:1]:
        raise ShapeError(f"One radius per input is needed: got {tuple(radii.shape)} for {len(images)} inputs.")
    if radii.isnan().any():
        raise ParameterError(
            f"{int(radii.isnan().sum())} of {len(radii)} radii are NaN: they are no certificates that could hold. Look "
            "for NaN in the logits or in the bound that they come from."
        )
    attacked = radii > 0
    reach = finite_radii(images, fraction * radii)
    nearest, points = torch.full_like(radii, math.inf), images.clone()
    if attacked.any():
        found = attack(model, (images[attacked], labels[attacked]), reach[attacked], **options)
        nearest[attacked], points[attacked] = found.distances, found.points
    broken = attacked & (nearest < fraction * radii)
    return AttackedCertificates(AttackOptions(**options).method, attacked, broken, radii, nearest, points)
