"""Everything a report shows about a model on data, computed in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.attacks import AttackCurve, AttackedCertificates, break_certificates, empirical_accuracy
from orthogonium.certification import AuditReport, Certificates, audit, certify
from orthogonium.report.choice import Samples, choose_samples
from orthogonium.report.curves import default_radii, refuted, subset
from orthogonium.report.spectra import LayerSpectrum, layer_spectra
from orthogonium.report.write import write_report

_CURVE_STEPS = 20  # of the attack at each radius of the curve


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` returns.

    Attributes:
        certificates: certificates of all inputs.
        index: (m,) indices of the inputs that were attacked.
        curve: accuracy of these inputs under attack.
        inside: the attack on each of these inputs within its own certified radius.
        audit: audit of every layer.
        spectra: spectra of every layer with weights.
        samples: inputs worth a look.
    """

    certificates: Certificates
    index: Tensor
    curve: AttackCurve
    inside: AttackedCertificates
    audit: AuditReport
    spectra: list[LayerSpectrum]
    samples: Samples

    @property
    def compared(self) -> Certificates:
        """The certificates of the inputs that were attacked."""
        return subset(self.certificates, self.index)

    @property
    def broken(self) -> int:
        """Certificates that an attack refuted."""
        return int((refuted(self.compared, self.curve) | self.inside.broken.cpu()).sum())

    def write(
        self,
        path: str | Path,
        *,
        recipe: Any = None,
        history: Sequence[Mapping[str, Any]] = (),
        title: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the report; see `write_report`."""
        return write_report(
            path,
            certificates=self.certificates,
            audit=self.audit,
            recipe=recipe,
            history=history,
            attack_curve=self.curve,
            attacked=self.index,
            broken=self.broken,
            spectra=self.spectra,
            samples=self.samples,
            title=title,
            facts=facts,
        )


def evaluate(
    model: nn.Module,
    images: Tensor,  # (n, c, h, w), or inputs (n, …) of other shapes
    labels: Tensor,  # (n,)
    *,
    eps: Sequence[float],
    classes: Sequence[str] | None = None,
    attacked: int = 512,
    method: str = "pgd",
    seed: int = 0,
    batch_size: int = 500,
    tell: Callable[[str], None] = lambda what: None,
) -> Evaluation:
    """Certify, attack and audit a classifier.

    Args:
        model: maps inputs to logits; in eval mode.
        images: floats in [0, 1], which the report shows as pictures. Other inputs (vectors, sequences, more than three
            channels) are certified and attacked in the same way, and shown by their numbers.
        labels: class indices.
        eps: radii at which to report certified accuracy.
        classes: names of the classes.
        attacked: how many inputs to attack, evenly spread over the data; attacks are the slow part.
        method: method of the attack; see `orthogonium.attacks.list_attacks`.
        seed: seed of the random starts of the attack.
        batch_size: inputs per forward pass.
        tell: called with the name of each stage when it begins.

    >>> from orthogonium.layers import OrthoLinear
    >>> from orthogonium.report import evaluate
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), OrthoLinear(16, 2)).eval()
    >>> images = torch.rand(8, 1, 4, 4)
    >>> evaluate(model, images, model(images).argmax(1), eps=[0.1]).broken
    0
    """
    tell("certifying")
    certificates = certify(model, batches(images, labels, batch_size), eps)
    tell("auditing")
    report = audit(model, tuple(images.shape[1:]))
    spectra = layer_spectra(model, images[:1], report)
    tell("attacking")
    index = torch.linspace(0, len(images) - 1, min(attacked, len(images))).round().long()
    few, few_labels = images[index], labels[index]
    radii = certificates.radii[index]
    inside = break_certificates(model, few, few_labels, radii, method=method, seed=seed, batch_size=batch_size)
    curve = empirical_accuracy(
        model,
        few,
        few_labels,
        default_radii(certificates),
        method=method,
        steps=_CURVE_STEPS if method == "pgd" else None,
        restarts=1 if method == "pgd" else None,
        seed=seed,
        batch_size=batch_size,
    )
    samples = choose_samples(certificates, images, classes, attack_curve=curve, attacked=index)
    return Evaluation(certificates, index, curve, inside, report, spectra, samples)


def batches(images: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of at most `size` inputs and labels."""
    yield from zip(images.split(size), labels.split(size), strict=True)
