"""Accuracy against the radius of the perturbation: what is proved, and what remains under attack."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from orthogonium.attacks import AttackCurve
from orthogonium.certification import Certificates
from orthogonium.errors import ShapeError
from orthogonium.report.axes import nice_ticks

_STEPS = 201  # points of a curve


def survival_curve(
    distances: Tensor,  # (n,)
    largest: float,
) -> tuple[list[float], list[float]]:
    """Radii from 0 to `largest`, and the fraction of distances that are larger than each.

    For certified radii this is the certified accuracy; for distances found by an attack, the accuracy under attack.
    """
    eps = torch.linspace(0, largest, _STEPS, dtype=torch.float64)
    ordered = distances.detach().cpu().double().sort().values
    above = len(ordered) - torch.searchsorted(ordered, eps, right=True)
    return eps.tolist(), (above.double() / len(ordered)).tolist()


def default_radii(certificates: Certificates, count: int = 16) -> list[float]:
    """About `count` round radii that span the certified ones and go well beyond, plus those given to `certify`."""
    top = float(certificates.radii.max().clamp_min(0.1)) * 1.6
    return sorted({*nice_ticks(0.0, top, count), *certificates.eps})


def subset(certificates: Certificates, index: Tensor) -> Certificates:
    """The certificates of some of the inputs."""
    radii = certificates.radii[index]
    return replace(
        certificates,
        predictions=certificates.predictions[index],
        labels=certificates.labels[index],
        correct=certificates.correct[index],
        radii=radii,
        pair_radii=None if certificates.pair_radii is None else certificates.pair_radii[index],
        coarse_radii=certificates.coarse_radii[index],
        certified_accuracy=tuple(float((radii > e).double().mean()) for e in certificates.eps),
    )


def refuted(certificates: Certificates, curve: AttackCurve) -> Tensor:
    """Which certificates an attack has broken: another class strictly inside the certified radius."""
    if curve.distances.shape != certificates.radii.shape:
        raise ShapeError(
            f"The attack is on {len(curve.distances)} inputs, the certificates are of {len(certificates.radii)}: say "
            "which of them were attacked."
        )
    return curve.distances.cpu() < certificates.radii
