"""Inputs beside those that fool the model: as pictures, or as a table if they are not images."""

from __future__ import annotations

import html
from collections.abc import Sequence

from orthogonium.report.choice import Sample
from orthogonium.report.pictures import data_uri, stretched
from orthogonium.web_page import table


def gallery(samples: Sequence[Sample]) -> str:
    """A tile for each picture; a correct one also shows its adversarial neighbour and the perturbation, if any."""
    wide = any(_fooled(sample) for sample in samples)
    return f'<ul class="samples{" fooled" if wide else ""}">{"".join(map(_tile, samples))}</ul>'


def _fooled(sample: Sample) -> bool:
    return sample.adversarial is not None and sample.label == sample.prediction


def _tile(sample: Sample) -> str:
    right = sample.label == sample.prediction
    title = sample.prediction if right else f"{sample.prediction}, not {sample.label}"
    proved = f"radius {sample.radius:.3f}"
    alt = f"{sample.label}, classified as {sample.prediction}" + (f", certified {proved}" if right else "")
    images, notes = [_image(data_uri(sample.x), alt)], [proved] if right else []
    if right and sample.attacked is not None:
        found = f"fooled at {sample.attacked:.3f}"
        if sample.adversarial is not None:
            change = stretched((sample.adversarial - sample.x).float())
            images.append(_image(data_uri(sample.adversarial), f"The same, {found}: {sample.mistaken_for}"))
            images.append(_image(data_uri(change), f"The perturbation, of norm {sample.attacked:.3f}"))
            title += f" → {sample.mistaken_for}"
        notes.append(found)
    lines = "".join(f"<span>{html.escape(line)}</span>" for line in (title, *notes))
    return f'<li><div class="images">{"".join(images)}</div>{lines}</li>'


def _image(address: str, alt: str) -> str:
    return f'<img src="{address}" alt="{html.escape(alt)}">'


def sample_table(name: str, samples: Sequence[Sample]) -> str:
    """A row for each input that is not a picture."""
    columns, rows = ["input", "class", "prediction"], []
    if any(sample.label == sample.prediction for sample in samples):
        columns += ["certified radius", "fooled at", "largest change", "mistaken for"]
    for sample in samples:
        cells = [f"no. {sample.index}", sample.label, sample.prediction]
        if sample.label == sample.prediction:
            cells.append(f"{sample.radius:.3f}")
            if sample.attacked is not None:
                cells.append(f"{sample.attacked:.3f}")
            if sample.adversarial is not None:
                cells += [f"{(sample.adversarial - sample.x).abs().max():.3g}", sample.mistaken_for or "–"]
        rows.append([*cells, *["–"] * (len(columns) - len(cells))])
    return table(name, columns, rows, numbers=(3, 4, 5))
