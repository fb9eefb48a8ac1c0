"""From results to the file."""

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

    It asks nothing of the network (pictures are inside), follows the light or dark scheme of its reader, and is
    readable on a phone. What is not given is left out.

    Args:
        path: of the file; its folder is made if needed.
        certificates: what `orthogonium.certify` returned.
        audit: what `orthogonium.audit` returned.
        recipe: a dataclass or mapping, shown as JSON.
        history: a mapping for each epoch, e.g. {"epoch": 0, "train_loss": 1.2, "val_acc": 0.9}.
        attack_curve: what `orthogonium.attacks.empirical_accuracy` returned.
        attacked: (m,) indices of the inputs it is about, all by default. The curves then show these inputs alone.
        broken: certificates broken by other attacks than that of the curve, which are counted here.
        spectra: what `layer_spectra` returned.
        samples: what `choose_samples` returned.
        title: heading of the page; by default the name of the model.
        facts: further lines for the last table, e.g. the time of training.

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
