"""Writes the results to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from orthogonium.attacks import AttackCurve
from orthogonium.certification import AuditReport, Certificates
from orthogonium.report import sections
from orthogonium.report.choice import Samples
from orthogonium.report.curves import refuted, subset
from orthogonium.report.spectra import LayerSpectrum
from orthogonium.web_page import page


def write_report(
    path: str | Path,
    *,
    certificates: Certificates,
    audit: AuditReport,
    recipe: Any = None,
    history: sections.History = (),
    attack_curve: AttackCurve | None = None,
    attacked: Tensor | None = None,
    broken: int = 0,
    spectra: Sequence[LayerSpectrum] = (),
    samples: Samples | None = None,
    title: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained HTML page: what is certified, what an attack achieves, and what the network is made of.

    The page loads nothing from the internet (pictures are embedded), follows the reader's light or dark scheme, and is
    readable on a phone. Anything not given is left out.

    Args:
        path: path of the file; its folder is created if needed.
        certificates: the result of `orthogonium.certify`.
        audit: the result of `orthogonium.audit`.
        recipe: a dataclass or mapping, shown as JSON.
        history: a mapping for each epoch, e.g. {"epoch": 0, "train_loss": 1.2, "val_acc": 0.9}.
        attack_curve: the result of `orthogonium.attacks.empirical_accuracy`.
        attacked: (m,) indices of the attacked inputs, all by default. The curves then show only these inputs.
        broken: number of certificates broken by attacks other than that of the curve, which is counted here.
        spectra: the result of `layer_spectra`.
        samples: the result of `choose_samples`.
        title: heading of the page; by default the name of the model.
        facts: further lines for the last table, e.g. the training time.

    Returns:
        The path.

    >>> import tempfile
    >>> from orthogonium import audit, certify
    >>> from orthogonium.report import write_report
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()
    >>> found = certify(model, [(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_report(f"{folder}/report.html", certificates=found, audit=audit(model, (4,)))
    ...     path.read_text()[:15]
    '<!doctype html>'
    """
    compared = certificates if attacked is None else subset(certificates, attacked)
    if attack_curve is not None:
        broken = max(broken, int(refuted(compared, attack_curve).sum()))
    parts = [
        sections.headline(certificates, compared, attack_curve, broken),
        sections.robustness(compared, attack_curve, len(certificates.labels)),
        sections.samples(samples, attack_curve, len(certificates.labels)) if samples is not None else "",
        sections.training(history),
        sections.spectra(spectra),
        sections.audit_table(audit),
        sections.provenance(recipe, facts or {}),
    ]
    subtitle = "Certified, attacked and audited" if attack_curve is not None else "Certified and audited"
    text = page(
        title or f"Robustness of {audit.model}", f"{subtitle} by orthogonium.", [part for part in parts if part]
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
