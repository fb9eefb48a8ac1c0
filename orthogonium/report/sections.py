"""The parts of a report, each from the results it shows to HTML."""

from __future__ import annotations

import html
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy
import torch

import orthogonium
from orthogonium.attacks import AttackCurve
from orthogonium.certification import AuditReport, Certificates
from orthogonium.certification.render import at_most, html_table, number
from orthogonium.report.choice import Samples
from orthogonium.report.curves import survival_curve
from orthogonium.report.gallery import gallery, sample_table
from orthogonium.report.pictures import is_picture
from orthogonium.report.spectra import LayerSpectrum
from orthogonium.report.svg import Series, legend, line_chart, sparkline, spectrum_ends
from orthogonium.web_page import cards, section, table

History = Sequence[Mapping[str, Any]]


def percent(x: float) -> str:
    """A fraction with one decimal, in percent."""
    return f"{100 * x:.1f}%"


def headline(certificates: Certificates, compared: Certificates, attack: AttackCurve | None, broken: int) -> str:
    """The key numbers; `compared` holds the certificates of the inputs that were attacked."""
    found = [("Clean accuracy", percent(certificates.accuracy), f"of {len(certificates.labels)} inputs", "plain")]
    for e, accuracy in zip(certificates.eps, certificates.certified_accuracy, strict=True):
        note = f"attacked: {_left(attack, e)}"
        if len(compared.labels) < len(certificates.labels):  # a different sample: not comparable with the whole
            own = percent(compared.certified_accuracy_at(e))
            note = f"of {len(compared.labels)}: {own}, attacked {_left(attack, e)}"
        found.append((f"Certified at {radius_text(e)}", percent(accuracy), note, "plain"))
    found.append(("Lipschitz constant ≤", at_most(certificates.bound.value), "measured by layers", "plain"))
    if attack is not None:
        note = f"of {len(attack.distances)}, by {attack_name(attack)}"
        found.append(("Broken certificates", str(broken), note, "bad" if broken else "good"))
    return cards(found)


def attack_name(attack: AttackCurve) -> str:
    """The attack, as its name is usually written."""
    return attack.method.upper() if len(attack.method) <= 4 else attack.method


def radius_text(e: float) -> str:
    """A radius; those customary for 8-bit images are written in 255ths."""
    of_255 = e * 255
    if abs(of_255 - round(of_255)) < 1e-6 and abs(e * 100 - round(e * 100)) > 1e-6:
        return f"{round(of_255)}/255"
    return f"{e:.4g}"


def robustness(certificates: Certificates, attack: AttackCurve | None, total: int) -> str:
    """Certified accuracy against the radius, and accuracy under attack, for some of `total` inputs."""
    largest = _last_radius(certificates, attack)
    eps, proved = survival_curve(certificates.radii, largest)
    lines = [Series("certified: proved for every attack", eps, proved, 0)]
    words = f"Certified accuracy falls from {percent(proved[0])} at radius 0 to {percent(proved[-1])}"
    if attack is not None:
        _, standing = survival_curve(attack.distances, largest)
        lines.append(Series(f"accuracy under {attack_name(attack)}", eps, standing, 1))
        words += f", accuracy under attack from {percent(standing[0])} to {percent(standing[-1])}"
    options: dict[str, Any] = {
        "name": f"{words}, at radius {largest:.3g}.",
        "x_label": "l2 radius of the perturbation",
        "y_label": "accuracy",
        "percent": True,
        "between": attack is not None,
    }
    part = (
        f" Both are of the {len(certificates.labels)} inputs that were attacked."
        if len(certificates.labels) < total
        else ""
    )
    radii = sorted({*certificates.eps, *(attack.eps if attack else ())})
    rows = [[radius_text(e), percent(certificates.certified_accuracy_at(e)), _left(attack, e)] for e in radii]
    return section(
        "robustness",
        "Accuracy against the radius",
        "The true robust accuracy lies between the two curves: below, what is proved; above, what an attack left "
        "standing. "
        "An attack below the certified curve would refute a certificate." + part
        if attack
        else "Certified accuracy: the fraction of inputs that are right and provably stay so within the radius.",
        figure(lines, (960, 400), **options),
        "<details><summary>The numbers</summary>"
        + table("Accuracy at each radius", ["radius", "certified", "attacked"], rows, numbers=(1, 2))
        + "</details>",
        f'<p class="muted">Deducted from every certificate: rounding of the constant {certificates.bound.slack:.1e}, '
        "of "
        f"margins {2 * certificates.forward_error:.1e}.</p>",
    )


_NOTHING = 0.005  # fraction of all inputs that is hidden by the width of a line


def _last_radius(certificates: Certificates, attack: AttackCurve | None) -> float:
    """Where the chart ends: nothing remains, neither proved nor withstanding, or the attack went no further."""
    distances = certificates.radii.cpu().double()
    if attack is not None:
        distances = torch.maximum(distances, attack.distances.cpu())
    survivors = int(_NOTHING * len(distances))
    last = float(distances.sort(descending=True).values[survivors])
    end = max([1.02 * last if math.isfinite(last) else 1.0, *certificates.eps, 1e-6])
    return end if attack is None else min(end, max(attack.eps)) if math.isfinite(last) else max(attack.eps)


def _left(attack: AttackCurve | None, e: float) -> str:
    return percent(attack.accuracy[attack.eps.index(e)]) if attack is not None and e in attack.eps else "–"


def figure(lines: Sequence[Series], size: tuple[int, int], *, named: bool = True, **options: Any) -> str:
    """A chart, with its legend if `named`, for wide and for narrow screens: text has the same size on both."""
    wide, narrow = line_chart(lines, size=size, **options), line_chart(lines, size=(358, 280), **options)
    names = legend(lines) if named else ""
    return f'<figure>{names}<div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>'


def training(history: History) -> str:
    """Losses and accuracies against the epoch."""
    losses = _curves(history, lambda key: "loss" in key)
    accuracies = _curves(history, lambda key: "acc" in key or "certified" in key or "vra" in key)
    if not (losses or accuracies):
        return ""
    figures = []
    for lines, label, of_one in ((losses, "loss", False), (accuracies, "accuracy", True)):
        if lines:
            last = "; ".join(f"{s.label}: {_shown(s.y[-1], of_one)}" for s in lines)
            name = f"Training, {label}. At the end {last}."
            figures.append(figure(lines, (540, 300), name=name, x_label="epoch", y_label=label, percent=of_one))
    return section("training", "Training", "", f'<div class="pair">{"".join(figures)}</div>')


def _shown(value: float, of_one: bool) -> str:
    return percent(value) if of_one else f"{value:.4g}"


def _curves(history: History, wanted: Callable[[str], bool]) -> list[Series]:
    """The logged quantities with a wanted name, at most five of them, against the epoch (or their number)."""
    keys = dict.fromkeys(key for row in history for key in row if wanted(key))
    found: list[Series] = []
    for key in sorted(keys, key=lambda key: "train" not in key)[:5]:
        points = [
            (float(row.get("epoch", index)), float(row[key]))
            for index, row in enumerate(history)
            if isinstance(row.get(key), (int, float)) and math.isfinite(row[key])
        ]
        if points:
            found.append(Series(_label(key), [x for x, _ in points], [y for _, y in points], len(found)))
    return found


def _label(key: str) -> str:
    """A logged name in words, e.g. val_certified@0.1412: the radii of 8-bit images are logged with four digits."""
    name, _, radius = key.partition("@")
    words = name.replace("val_certified", "certified").replace("train_", "training ").replace("val_", "validation ")
    words = words.replace("_", " ")
    if not radius.replace(".", "", 1).isdigit():
        return words
    nearest = round(float(radius) * 255) / 255
    logged = f"{nearest:.4f}" == radius
    return f"{words} at {radius_text(nearest if logged else float(radius))}"


def spectra(layers: Sequence[LayerSpectrum]) -> str:
    """Sorted singular values of every layer."""
    if not layers:
        return ""
    top = max(1.05, *(s.sigma_max for s in layers))
    cut = any(s.count is None for s in layers)
    rows = []
    for s in layers:
        middle = s.values[len(s.values) // 2] if s.count is not None else math.nan
        down = "" if math.isnan(s.sigma_min) else f" down to {s.sigma_min:.4g}"
        words = f"{s.name}: singular values from {s.sigma_max:.4g}{down}"
        drawing = (
            spectrum_ends(s.sigma_min, s.sigma_max, name=words, top=top)
            if s.count is None
            else sparkline(s.values, name=words, top=top)
        )
        counted = "" if s.count is None else str(s.count)
        numbers = [number(s.sigma_min), number(middle), number(s.sigma_max)]
        rows.append([s.name, s.type, drawing, counted, *numbers, _KINDS[s.kind]])
    return section(
        "spectra",
        "Singular values of the layers",
        "From the largest on the left to the smallest on the right; dotted: 1. An orthogonal layer is flat at 1. A "
        "layer that promises no more than to be 1-Lipschitz stays below, and may go down to 0: the audit tells what "
        "each one "
        "promises." + (" Of spectra too large to compute, the two ends are drawn." if cut else ""),
        table(
            "Singular values of every layer",
            ["layer", "type", "sorted singular values", "count", "σ min", "median", "σ max", "kind"],
            rows,
            numbers=(3, 4, 5, 6),
            names=(1,),
            drawn=(2,),
        ),
    )


_KINDS = {"exact": "exact", "jacobian": "Jacobian at one input", "bounds": "ends only, from the audit"}


def samples(chosen: Samples, attack: AttackCurve | None, total: int) -> str:
    """The most and the least robust of `total` inputs, and misclassified ones, each with its radius."""
    groups = (
        ("Most robust", chosen.most, "None was classified correctly."),
        ("Least robust", chosen.least, "All correct ones are shown above."),
        ("Wrong", chosen.wrong, "None: every input was classified correctly."),
    )
    pictures = all(is_picture(sample.x) for _, group, _ in groups for sample in group)
    parts = []
    for title, group, none in groups:
        shown = gallery(group) if pictures else sample_table(title, group)
        parts.append(f"<h3>{title}</h3>" + (shown if group else f"<p>{none}</p>"))
    text = "No perturbation shorter than the radius, in the Euclidean norm, changes the prediction."
    if any(sample.adversarial is not None for sample in (*chosen.most, *chosen.least)):
        found_by = "the attack" if attack is None else attack_name(attack)
        text += f" Beside an input: the nearest one of another class that {found_by} found" + (
            ", and the perturbation between them, stretched so that its largest change is black or white. Values "
            "outside of [0,\u00a01] are shown as the nearest in it."
            if pictures
            else "."
        )
    if attack is not None and len(attack.distances) < total:
        text += f" The most and the least robust are those of the {len(attack.distances)} inputs that were attacked."
    return section("samples", "Inputs and their radii", text, *parts)


def audit_table(report: AuditReport) -> str:
    """Every operation with its share of the bound."""
    return section(
        "audit",
        "Audit",
        f"{report.summary} Every operation of the forward pass, with the factor by which it multiplies the bound.",
        *html_table(report.cells(), report.warnings),
    )


def provenance(recipe: Any, facts: Mapping[str, Any]) -> str:
    """The exact recipe, and the versions it was run with."""
    plain = asdict(recipe) if is_dataclass(recipe) and not isinstance(recipe, type) else dict(recipe or {})
    rows = [[name, str(value)] for name, value in {**facts, **versions()}.items()]
    text = html.escape(json.dumps(plain, indent=2, ensure_ascii=False, default=str))
    return section(
        "recipe",
        "Recipe and versions",
        "",
        '<div class="pair">' + (f"<div><h3>Recipe</h3><pre>{text}</pre></div>" if plain else ""),
        f"<div><h3>Made with</h3>{table('Facts and versions', [], rows, prose=(1,))}</div></div>",
    )


def versions() -> dict[str, str]:
    """Versions of the software that affects the numbers."""
    return {
        "orthogonium": orthogonium.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
