"""One run, in a process of its own: `python -m orthogonium.comparison FOLDER`.

With a process for each run, memory is measured for that run alone, and if one crashes or is killed, the others go on.
What to run is in `entry.json` of the folder; `result.json` is written last, so a run that has one is finished.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.attacks import empirical_accuracy
from orthogonium.certification import AuditReport, AuditRow, RefutedError, TraceError, UnboundedError, audit
from orthogonium.comparison.contestant import Contestant, layer_counts
from orthogonium.comparison.identity import code_digest
from orthogonium.comparison.measuring import memory, peak_memory, step_seconds, training_device
from orthogonium.comparison.result import ONE, RunResult
from orthogonium.data import ImageDataModule, unit_pixels
from orthogonium.errors import DivergenceError, OrthogoniumError
from orthogonium.recipes.recipe import Recipe
from orthogonium.report import evaluate
from orthogonium.report.curves import refuted, survival_curve
from orthogonium.report.machine import machine_line
from orthogonium.report.sections import versions
from orthogonium.training import LipschitzClassifier, fit, load_checkpoint
from orthogonium.training.fitting import load_data
from orthogonium.training.journal import write_history
from orthogonium.training.memory import keep_freed_memory
from orthogonium.training.run_folder import RunFolder

INTERRUPTED = 130
_CHECKPOINT_MINUTES = 1.0
_CURVE_REACH = 1.5  # times the largest radius


def run(contestant: Contestant, recipe: Recipe, folder: Path, attacked: int, accelerator: str) -> RunResult:
    """Train, or continue, and evaluate. A failure of the network is a result, too."""
    found = RunResult("failed", recipe.seed, eps=recipe.eps, machine=machine_line(), versions=versions())
    device = training_device(accelerator)
    if device.type == "cpu":
        keep_freed_memory()
    data = load_data(recipe)
    found = replace(found, memory_before=memory(device))
    try:
        torch.manual_seed(recipe.seed)
        model = contestant.network(recipe, data.image_shape, data.n_classes)
        classifier = LipschitzClassifier(recipe, model, image_shape=data.image_shape, n_classes=data.n_classes)
        contestant.check_network(classifier.model)
        found = replace(
            found,
            parameters=sum(p.numel() for p in classifier.model.parameters() if p.requires_grad),
            layers=layer_counts(classifier.model),
        )
        seconds = step_seconds(classifier, next(iter(data.train_dataloader())), device)
        found = replace(found, step_seconds=seconds, images_per_second=recipe.batch_size / seconds)
        del classifier
        trained = fit(
            recipe,
            folder,
            model=model,
            data=data if recipe.extra is None else None,  # extra images are mixed in by `fit` itself
            accelerator=accelerator,
            resume="auto",
            progress=False,
            checkpoint_minutes=_CHECKPOINT_MINUTES,
        )
        found = replace(found, memory=peak_memory(device), steps=trained.steps, seconds=trained.seconds)
        network = load_checkpoint(trained.checkpoint, model=model)
        images = unit_pixels(data.test.fetch(torch.arange(len(data.test))))
        images = images.double() if recipe.precision == "64" else images
        found = replace(found, history=tuple(trained.history))
        keeps_constant = contestant.kind == "method"
        found = _evaluated(found, network.model, images, data, recipe, folder, attacked, keeps_constant)
        write_history(RunFolder(folder).history_file, found.history)
        return found
    except DivergenceError as error:
        return replace(found, status="diverged", reason=str(error), memory=peak_memory(device))
    except OrthogoniumError as error:  # of training, or of what came after it, whose memory does not count
        return replace(found, reason=str(error), memory=found.memory or peak_memory(device))


def _evaluated(
    found: RunResult,
    model: nn.Module,
    images: Tensor,
    data: ImageDataModule,
    recipe: Recipe,
    folder: Path,
    attacked: int,
    keeps_constant: bool,
) -> RunResult:
    """Certificates, attack and spectra of the trained network; without a bound, what does not need one.

    Whether the network `keeps_constant` decides if a bound at the end speaks for all epochs.
    """
    labels = data.test.labels
    index = torch.linspace(0, len(images) - 1, min(attacked, len(images))).round().long()
    # the same attack for all: that of the report has other radii for each network, and each radius is another try
    left = empirical_accuracy(model, images[index], labels[index], recipe.eps, seed=recipe.seed)
    unproved = tuple(map(_unproved, found.history))
    found = replace(found, status="finished", attacked=left.accuracy, attacked_inputs=len(index))
    try:
        full = evaluate(
            model, images, labels, eps=recipe.eps, classes=data.classes, attacked=attacked, seed=recipe.seed
        )
    except (UnboundedError, TraceError, RefutedError) as error:
        found = replace(found, history=unproved)
        with torch.no_grad():
            logits = torch.cat([model(part) for part in images.split(500)])
        unanswered = int(logits.isnan().any(1).sum())
        if unanswered:
            reason = f"After training, the logits of {unanswered} of {len(logits)} test inputs are NaN."
            return replace(found, status="diverged", reason=reason, attacked=None, attacked_inputs=None)
        predictions = logits.argmax(1)
        return replace(
            with_sigma(found, audit(model, tuple(images.shape[1:]))),
            bound_reason=" ".join(str(error).split()),
            accuracy=float((predictions == labels).double().mean()),
            predicted_classes=len(predictions.unique()),
        )
    title = f"{folder.parent.name} on {recipe.data}, seed {recipe.seed}"
    bound = full.certificates.bound.value
    if not (keeps_constant and bound <= ONE):
        found = replace(found, history=unproved)
    full.write(RunFolder(folder).report, recipe=recipe.to_dict(), history=found.history, title=title)
    radii, proved = survival_curve(full.certificates.radii, _CURVE_REACH * max(recipe.eps))
    return replace(
        with_sigma(found, full.audit),
        bound=bound,
        accuracy=full.certificates.accuracy,
        certified=full.certificates.certified_accuracy,
        certified_of_attacked=tuple(full.compared.certified_accuracy_at(e) for e in recipe.eps),
        broken=max(full.broken, int(refuted(full.compared, left).sum())),
        predicted_classes=len(full.certificates.predictions.unique()),
        curve=(tuple(radii), tuple(proved)),
    )


def _unproved(row: Mapping[str, float]) -> dict[str, float]:
    """A row of the history without certified accuracies, which assume a 1-Lipschitz network."""
    return {key: value for key, value in row.items() if "certified" not in key}


def with_sigma(found: RunResult, report: AuditReport) -> RunResult:
    """The result with the smallest and largest singular value of the measured layers filled in.

    Where something in the network is not known, or a layer does more than apply measured parts one after another and
    scale the result, nothing is said of all of them.
    """
    places: dict[str, list[AuditRow]] = {}
    for row in report.rows:
        places.setdefault(row.name, []).append(row)
    ranges = [_range_of(rows) for rows in places.values() if any(map(_is_measured, rows))]
    unknown = any(row.kind in ("estimate", "unbounded") for row in report.rows)
    if unknown or not ranges or None in ranges:
        return found
    smallest, largest = zip(*filter(None, ranges), strict=True)
    return replace(found, sigma_min=None if None in smallest else min(smallest), sigma_max=max(largest))


def _is_measured(row: AuditRow) -> bool:
    return row.kind in ("exact", "upper") and row.sigma_max is not None


def _range_of(rows: Sequence[AuditRow]) -> tuple[float | None, float] | None:
    """Smallest and largest singular value of the layer with these rows of an audit; the smallest may be unknown."""
    measured, others = [row for row in rows if _is_measured(row)], [row for row in rows if not _is_measured(row)]
    if any(row.type not in ("mul", "div") for row in others):  # sums, among others
        return None
    pairs = [(row.sigma_min or 0.0, row.sigma_max or 0.0) for row in measured]
    if len(pairs) > 1 and any(high > ONE * low for low, high in pairs):  # only of multiples of isometries
        return None
    factor = math.prod(row.contribution for row in others)
    scales = abs(factor - 1) > ONE - 1
    exact = not scales and all(row.sigma_min is not None for row in measured)
    largest = math.prod(high for _, high in pairs) * (factor if scales else 1.0)
    return math.prod(low for low, _ in pairs) if exact else None, largest


def entry(contestant: Contestant, recipe: Recipe, attacked: int, accelerator: str, data: str) -> dict[str, Any]:
    """The contents of `entry.json`: what to run, and digests of what else it depends on."""
    return {
        "contestant": {"name": contestant.name, "kind": contestant.kind},
        "data": data,
        "code": code_digest(contestant),
        "recipe": recipe.to_dict(),
        "attacked": attacked,
        "accelerator": accelerator,
    }


def main(folder: Path) -> None:
    """Run what is in the folder; exit as soon as the parent process is gone, so that no two train in one folder."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    told = json.loads((folder / "entry.json").read_text(encoding="utf-8"))
    try:
        result = run(
            Contestant(**told["contestant"]),
            Recipe.from_dict(told["recipe"]),
            folder,
            told["attacked"],
            told["accelerator"],
        )
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    result.write(folder / "result.json")


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # not through the object, whose lock Python wants back when it ends
    os._exit(INTERRUPTED)
