"""Chooses the inputs worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orthogonium.attacks import AttackCurve
from orthogonium.certification import Certificates
from orthogonium.errors import ShapeError


@dataclass(frozen=True)
class Sample:
    """An input, its class, the prediction of the model, and its certified radius (negative if misclassified).

    Attributes:
        index: index in the data.
        x: shown as a picture if (channels, height, width), floats in [0, 1] or uint8; other shapes by their numbers.
        label: the true class.
        prediction: the class predicted by the model.
        radius: certified l2 radius.
        attacked: l2 norm of the smallest perturbation known to change the class, None if none was found.
        adversarial: the input with this perturbation.
        mistaken_for: the class of `adversarial`.
    """

    index: int
    x: Tensor
    label: str
    prediction: str
    radius: float
    attacked: float | None = None
    adversarial: Tensor | None = None
    mistaken_for: str | None = None


@dataclass(frozen=True)
class Samples:
    """The most robust inputs, the least robust of the correct ones, and wrong ones."""

    most: tuple[Sample, ...]
    least: tuple[Sample, ...]
    wrong: tuple[Sample, ...]


def choose_samples(
    certificates: Certificates,
    inputs: Tensor,
    classes: Sequence[str] | None = None,
    *,
    attack_curve: AttackCurve | None = None,
    attacked: Tensor | None = None,
    count: int = 8,
) -> Samples:
    """Choose the inputs worth a look: largest and smallest certified radii, and the most confident mistakes.

    Args:
        certificates: the certificates of these inputs.
        inputs: (n, …), in the order of the certificates.
        classes: names of the classes; their numbers by default.
        attack_curve: the result of `orthogonium.attacks.empirical_accuracy`; its points are shown beside the inputs.
        attacked: (m,) indices of the attacked inputs, all by default; of the correct inputs, only these are chosen.
        count: number of inputs of each kind.
    """
    if len(inputs) != len(certificates.labels):
        raise ShapeError(f"{len(certificates.labels)} certificates need as many inputs: got {len(inputs)}.")
    rows = _rows(attack_curve, attacked, len(inputs))
    names = [] if classes is None else list(classes)
    radii = certificates.radii

    def sample(i: int) -> Sample:
        label, prediction = int(certificates.labels[i]), int(certificates.predictions[i])
        known = (i, inputs[i], _name(names, label), _name(names, prediction), float(radii[i]))
        row = rows.get(i)
        if attack_curve is None or row is None or not attack_curve.distances[row].isfinite():
            return Sample(*known)
        points, others = attack_curve.points, attack_curve.mistaken_for
        return Sample(
            *known,
            attacked=float(attack_curve.distances[row]),
            adversarial=None if points is None else points[row].to(inputs),
            mistaken_for=None if others is None else _name(names, int(others[row])),
        )

    order = torch.argsort(radii, descending=True)
    right = [i for i in order[certificates.correct[order]].tolist() if i in rows]
    wrong = order[~certificates.correct[order]].flip(0).tolist()  # most confident mistakes first
    most = right[:count]
    least = [i for i in right[::-1][:count] if i not in most]
    return Samples(tuple(map(sample, most)), tuple(map(sample, least)), tuple(map(sample, wrong[:count])))


def _rows(curve: AttackCurve | None, attacked: Tensor | None, total: int) -> dict[int, int]:
    """For each attacked input, or each input if none was attacked, its position among them."""
    index = range(total) if attacked is None else attacked.tolist()
    if curve is not None and len(index) != len(curve.distances):
        raise ShapeError(f"The attack is on {len(curve.distances)} inputs, `attacked` names {len(index)}.")
    return {i: row for row, i in enumerate(index)}


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else str(index)
