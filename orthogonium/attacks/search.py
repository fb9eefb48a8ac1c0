"""Attacks by name: what an attack finds is checked independently of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from orthogonium.attacks.distances import distances, per_sample
from orthogonium.attacks.libraries import Foolbox, autoattack
from orthogonium.attacks.options import AttackOptions
from orthogonium.attacks.pgd import l2_pgd, misclassified
from orthogonium.errors import ParameterError, ShapeError


class Attack(Protocol):
    """Suggests points near inputs, once or several times."""

    def __call__(
        self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, radii: Tensor, how: AttackOptions
    ) -> Iterable[Tensor]:
        """Points (n, …) for these inputs, labels and radii."""


def _pgd(
    model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, radii: Tensor, how: AttackOptions
) -> Iterator[Tensor]:
    given = {"steps": how.steps, "restarts": how.restarts}
    chosen = {name: number for name, number in given.items() if number is not None}
    yield l2_pgd(model, images, labels, radii, bounds=how.bounds, seed=how.seed, **chosen)


# Ours needs nothing; the others need the extra [attack].
ATTACKS: dict[str, Attack] = {
    "pgd": _pgd,
    "foolbox-pgd": Foolbox("L2ProjectedGradientDescentAttack", False, 60, options=(("rel_stepsize", 0.1),)),
    "adam-pgd": Foolbox("L2AdamPGD", False, 40),
    "bim": Foolbox("L2BasicIterativeAttack", False, 20),
    "fgm": Foolbox("L2FastGradientAttack", False, count=None),
    "noise": Foolbox("L2RepeatedAdditiveGaussianNoiseAttack", False, 30, count="repeats"),
    "ddn": Foolbox("DDNAttack", True, 100),
    "cw": Foolbox("L2CarliniWagnerAttack", True, 200),
    "deepfool": Foolbox("L2DeepFoolAttack", True, 50),
    "autoattack": autoattack,
}


def list_attacks() -> list[str]:
    """Names of the methods; "pgd" needs no extra.

    >>> from orthogonium.attacks import list_attacks
    >>> "pgd" in list_attacks()
    True
    """
    return sorted(ATTACKS)


@dataclass(frozen=True)
class AttackResult:
    """What `attack` returns; tensors have shape (n,), in the order of the data.

    Attributes:
        method: name of the attack.
        eps: radius allowed at each input.
        distances: distances to the nearest point of another class found, in float64: 0 where the input itself is
            misclassified, ∞ where none was found. Attacks that look for the nearest point may find it outside `eps`.
        points: these points, (n, …); the input where none was found.
    """

    method: str
    eps: Tensor
    distances: Tensor
    points: Tensor

    @property
    def success(self) -> Tensor:
        """Which inputs have another class within `eps`."""
        return self.distances <= self.eps

    @property
    def accuracy(self) -> float:
        """Fraction of inputs that withstood the attack."""
        return float((~self.success).double().mean())

    def __str__(self) -> str:
        return f"{self.method}: {int(self.success.sum())} of {len(self.eps)} inputs changed their class"


def attack(
    model: nn.Module | Callable[[Tensor], Tensor],
    data: Sequence[Tensor] | Iterable[Sequence[Tensor]],
    eps: float | Tensor,
    **options: Any,
) -> AttackResult:
    """Search for points of another class near inputs, in the Euclidean norm.

    A point counts only if the model, called on it once more, prefers another class to the label or has a logit that is
    NaN, at a distance computed in float64.

    Args:
        model: maps inputs to logits (n, classes); in eval mode.
        data: a pair (images, labels), or a loader of such pairs.
        eps: radius, one for all inputs, or one for each, (n,).
        options: fields of `AttackOptions`: `method`, `steps`, `restarts`, `bounds`, `seed`, `batch_size`.

    >>> from orthogonium.attacks import attack
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> found = attack(torch.nn.Identity().eval(), (x, x.argmax(1)), eps=1.0)
    >>> found.success, found.distances[0] < 0.72  # the nearest other class is at 1/√2
    (tensor([ True, False]), tensor(True))
    """
    how = AttackOptions(**options)
    if how.method not in ATTACKS:
        raise ParameterError(f"The method of an attack is one of {', '.join(list_attacks())}: got {how.method!r}.")
    if isinstance(model, nn.Module) and any(module.training for module in model.modules()):
        raise ParameterError("An attack is on the model as it is deployed: call model.eval() first.")
    images, labels = gathered(data, model)
    radii = per_sample(eps, images)
    found, points = torch.full((len(images),), math.inf, dtype=torch.float64, device=images.device), images.clone()
    with _frozen(model):
        for index in torch.arange(len(images), device=images.device).split(how.batch_size):
            x, y = images[index], labels[index]
            wrong = _adversarial(model, x, y)
            found[index[wrong]] = 0.0
            index, x, y = index[~wrong], x[~wrong], y[~wrong]
            if not len(index):
                continue
            for suggested in ATTACKS[how.method](model, x, y, radii[index], how):
                distance = distances(suggested, x)
                better = _adversarial(model, suggested, y) & (distance < found[index])
                found[index[better]] = distance[better]
                points[index[better]] = suggested[better]
    return AttackResult(how.method, radii, found, points)


def gathered(
    data: Sequence[Tensor] | Iterable[Sequence[Tensor]], model: nn.Module | Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """All images and labels of a pair or a loader, on the device and in the dtype of the model."""
    single = isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
    pairs: list[Any] = [data] if single else list(data)
    if not pairs:
        raise ParameterError("There is nothing to attack: the loader gave no batch.")
    if any(len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair) for pair in pairs):
        raise ShapeError("The data of an attack are a pair (images, labels), or batches of such pairs.")
    images, labels = torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])
    if labels.shape != images.shape[:1]:
        raise ShapeError(f"One label per input is needed: got {tuple(labels.shape)} for {len(images)} inputs.")
    tensors = (*model.parameters(), *model.buffers()) if isinstance(model, nn.Module) else ()
    held = [t for t in tensors if t.is_floating_point()]
    kind = held[0] if held else images if images.is_floating_point() else torch.empty(0)
    return images.detach().to(kind.device, kind.dtype), labels.to(kind.device).long()


def _adversarial(model: Callable[[Tensor], Tensor], points: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return misclassified(model(points), labels)


@contextmanager
def _frozen(model: nn.Module | Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context without gradients for parameters: constrained weights are built once, and no gradient is left behind."""
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    asked = [p.requires_grad for p in parameters]
    try:
        for p in parameters:
            p.requires_grad_(False)
        yield
    finally:
        for p, before in zip(parameters, asked, strict=True):
            p.requires_grad_(before)
