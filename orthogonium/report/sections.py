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
from orthogonium.certification.render import html_table, number
from orthogonium.report.curves import survival_curve
from orthogonium.report.pictures import Sample, Samples, data_uri
from orthogonium.report.spectra import LayerSpectrum
from orthogonium.report.svg import Series, legend, line_chart, range_bar, sparkline
from orthogonium.web_page import section, table

History = Sequence[Mapping[str, Any]]


def percent(x: float) -> str:
    """A fraction with one decimal, in percent."""
    return f"{100 * x:.1f}%"


def headline(certificates: Certificates, compared: Certificates, attack: AttackCurve | None, broken: int) -> str:
    """The numbers to remember; `compared` are the certificates of the inputs that were attacked."""
    cards = [("Clean accuracy", percent(certificates.accuracy), f"of {len(certificates.labels)} inputs", "plain")]
    for e, accuracy in zip(certificates.eps, certificates.certified_accuracy, strict=True):
        note = f"attacked: {_left(attack, e)}"
        if len(compared.labels) < len(certificates.labels):  # another sample: not to be compared with the whole
            own = percent(compared.certified_accuracy_at(e))
            note = f"of {len(compared.labels)}: {own}, attacked {_left(attack, e)}"
        cards.append((f"Certified at {radius_text(e)}", percent(accuracy), note, "plain"))
    cards.append(("Lipschitz constant ≤", f"{certificates.bound.value:.6f}", "measured by layers", "plain"))
    if attack is not None:
        note = f"of {len(attack.distances)}, by {attack_name(attack)}"
        cards.append(("Broken certificates", str(broken), note, "bad" if broken else "good"))
    items = (
        f'<div><dt>{html.escape(name)}</dt><dd class="{style}">{html.escape(value)}'
        f"<small>{html.escape(note)}</small></dd></div>"
        for name, value, note, style in cards
    )
    return f'<dl class="cards">{"".join(items)}</dl>'


def attack_name(attack: AttackCurve) -> str:
    """The attack, as it is written."""
    return attack.method.upper() if len(attack.method) <= 4 else attack.method


def radius_text(e: float) -> str:
    """A radius; those customary for 8-bit images in 255ths."""
    of_255 = e * 255
    if abs(of_255 - round(of_255)) < 1e-6 and abs(e * 100 - round(e * 100)) > 1e-6:
        return f"{round(of_255)}/255"
    return f"{e:.4g}"


def robustness(certificates: Certificates, attack: AttackCurve | None, total: int) -> str:
    """Certified accuracy against the radius, and what an attack leaves, of some of `total` inputs."""
    largest = max(attack.eps) if attack else max([float(certificates.radii.max()), *certificates.eps, 1e-6])
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
        "The true robust accuracy lies between the two curves: below, what is proved; above, what an attack left standing. "
        "An attack below the certified curve would refute a certificate." + part
        if attack
        else "Certified accuracy: the fraction of inputs that are right and provably stay so within the radius.",
        figure(lines, (960, 400), **options),
        "<details><summary>The numbers</summary>"
        + table("Accuracy at each radius", ["radius", "certified", "attacked"], rows, numbers=(1, 2))
        + "</details>",
        f'<p class="muted">Deducted from every certificate: rounding of the constant {certificates.bound.slack:.1e}, of '
        f"margins {2 * certificates.forward_error:.1e}.</p>",
    )


def _left(attack: AttackCurve | None, e: float) -> str:
    return percent(attack.accuracy[attack.eps.index(e)]) if attack is not None and e in attack.eps else "–"


def figure(lines: Sequence[Series], size: tuple[int, int], *, named: bool = True, **options: Any) -> str:
    """A chart with its legend, if it is `named`, drawn for wide and for narrow screens: text has the same size on both."""
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
    rows = []
    for s in layers:
        middle = s.values[len(s.values) // 2] if s.count is not None else math.nan
        words = f"{s.name}: singular values from {s.sigma_max:.4g} down to {s.sigma_min:.4g}"
        drawing = (
            range_bar(s.sigma_min, s.sigma_max, name=words, top=top)
            if s.count is None
            else sparkline(s.values, name=words, top=top)
        )
        counted = "" if s.count is None else str(s.count)
        numbers = [number(s.sigma_min), number(middle), number(s.sigma_max)]
        rows.append([s.name, s.type, drawing, counted, *numbers, _KINDS[s.kind]])
    return section(
        "spectra",
        "Singular values of the layers",
        "From the largest on the left to the smallest on the right; dotted: 1. An orthogonal layer is flat at 1, a "
        "1-Lipschitz one stays below.",
        table(
            "Singular values of every layer",
            ["layer", "type", "sorted singular values", "count", "σ min", "median", "σ max", "kind"],
            rows,
            numbers=(3, 4, 5, 6),
            drawn=(2,),
        ),
    )


_KINDS = {"exact": "exact", "jacobian": "Jacobian at one input", "bounds": "ends only, from the audit"}


def samples(chosen: Samples) -> str:
    """The inputs that hold out longest and shortest, and wrong ones, each with its radius."""
    groups = (
        ("Most robust", chosen.most, "None was classified correctly."),
        ("Least robust", chosen.least, "All correct ones are shown above."),
        ("Wrong", chosen.wrong, "None: every input was classified correctly."),
    )
    parts = []
    for title, group, none in groups:
        pictures = "".join(_picture(sample) for sample in group)
        parts.append(f"<h3>{title}</h3>" + (f'<ul class="samples">{pictures}</ul>' if group else f"<p>{none}</p>"))
    text = "No perturbation shorter than the radius, in the Euclidean norm of the pixels, changes the prediction."
    return section("samples", "Inputs and their radii", text, *parts)


def _picture(sample: Sample) -> str:
    right = sample.label == sample.prediction
    title = sample.prediction if right else f"{sample.prediction}, not {sample.label}"
    notes = [f"radius {sample.radius:.3f}"] if right else []
    notes += [f"fooled at {sample.attacked:.3f}"] if sample.attacked is not None and right else []
    alt = f"{sample.label}, classified as {sample.prediction}" + (
        f", certified radius {sample.radius:.3f}" if right else ""
    )
    lines = "".join(f"<span>{html.escape(line)}</span>" for line in (title, *notes))
    return f'<li><img src="{data_uri(sample.image)}" alt="{html.escape(alt)}">{lines}</li>'


def audit_table(report: AuditReport) -> str:
    """Every operation with its share of the bound."""
    return section(
        "audit",
        "Audit",
        f"{report.summary} Every operation of the forward pass, with the factor by which it multiplies the bound.",
        *html_table(report.cells(), report.warnings),
    )


def provenance(recipe: Any, facts: Mapping[str, Any]) -> str:
    """The recipe, to the letter, and the versions it was run with."""
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
    """Versions of what decides the numbers."""
    return {
        "orthogonium": orthogonium.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
