"""A comparison as one web page."""

from __future__ import annotations

import html
import json
import math
import statistics
from collections.abc import Callable, Sequence

from orthogonium.certification.render import at_most
from orthogonium.comparison.plan import ComparisonFolder, Plan
from orthogonium.comparison.result import RunResult
from orthogonium.comparison.rows import Row, Spread, milliseconds, recorded
from orthogonium.report.scatter import Point, pareto_front, scatter_chart
from orthogonium.report.sections import figure, percent, radius_text
from orthogonium.report.svg import Series, legend
from orthogonium.training.classifier import certified_key
from orthogonium.training.run_folder import RunFolder
from orthogonium.web_page import cards, page, section, table


def page_of(plan: Plan, rows: Sequence[Row], folder: ComparisonFolder) -> str:
    """The page: headline, table, trade-offs between accuracy and time, curves, and how it was made."""
    recipe = plan.recipe
    seeds = f", {plan.seeds} seeds each" if plan.seeds > 1 else ""
    parts = [
        _headline(plan, rows),
        _table(plan, rows, folder),
        _compromises(plan, rows),
        _certified_curves(rows),
        _training_curves(plan, rows),
        _made_with(plan, rows),
    ]
    title = f"{len(rows)} contestants on {recipe.data}" if len(rows) > 1 else f"{rows[0].name} on {recipe.data}"
    subtitle = (
        f"{recipe.model}, {plan.budget} of training for each{seeds}. Certified, attacked and measured by orthogonium."
    )
    return page(title, subtitle, [part for part in parts if part])


def _headline(plan: Plan, rows: Sequence[Row]) -> str:
    radius = radius_text(plan.recipe.eps[0])
    found = []
    best = _best(rows, lambda row: row.figures(plan.recipe.eps)[f"certified@{radius}"], largest=True)
    if best is not None:
        found.append((f"Best certified at {radius}", best[0], percent(best[1])))
    clean = _best(rows, lambda row: row.figures(plan.recipe.eps)["accuracy"], largest=True)
    if clean is not None:
        found.append(("Best clean accuracy", clean[0], percent(clean[1])))
    fast = _best(rows, lambda row: row.figures(plan.recipe.eps)["step_seconds"], largest=False)
    if fast is not None:
        found.append(("Fastest step", fast[0], f"{milliseconds(fast[1])} ms"))
    done, total = sum(len(row.results) for row in rows), plan.seeds * len(rows)
    bad = sum(not result.is_finished for row in rows for result in row.results)
    found.append(("Runs", f"{done} of {total}", f"{bad} failed or diverged" if bad else "none failed"))
    return cards([(*card, "plain") for card in found])


def _best(rows: Sequence[Row], value: Callable[[Row], Spread | None], *, largest: bool) -> tuple[str, float] | None:
    labels = _labels(rows)
    found = [(labels[row.name], spread.mean) for row in rows if (spread := value(row)) is not None]
    return (max if largest else min)(found, key=lambda pair: pair[1]) if found else None


def with_spread(spread: Spread | None, text: Callable[[float], str], unit: str = "") -> str:
    """A mean with its deviation, such as 71.3% ± 0.4; a dash where there is none."""
    if spread is None:
        return "–"
    deviation = "" if spread.deviation is None else f" ± {text(spread.deviation).removesuffix('%')}"
    return f"{text(spread.mean)}{deviation}{unit}"


def _table(plan: Plan, rows: Sequence[Row], folder: ComparisonFolder) -> str:
    eps, labels = plan.recipe.eps, _labels(rows)
    columns = ["contestant", *(f"certified {radius_text(e)}" for e in eps), "clean"]
    columns += [
        *(f"attacked {radius_text(e)}" for e in eps),
        "steps",
        "ms/step",
        "images/s",
        "peak memory",
        "parameters",
    ]
    columns += ["σ of layers", "constant ≤", "runs"]
    cells = []
    for row in rows:
        f = row.figures(eps)
        accuracies = [f[f"certified@{radius_text(e)}"] for e in eps] + [f["accuracy"]]
        accuracies += [f[f"attacked@{radius_text(e)}"] for e in eps]
        cells.append(
            [
                labels[row.name] + ("" if row.status == "finished" else f" ({row.status})"),
                *(with_spread(spread, percent) for spread in accuracies),
                with_spread(f["steps"], lambda x: f"{x:.0f}"),
                with_spread(f["step_seconds"], milliseconds),
                with_spread(f["images_per_second"], lambda x: f"{x:.0f}"),
                with_spread(f["memory"], lambda x: f"{x / 1e6:.0f}", " MB"),
                "–" if f["parameters"] is None else f"{f['parameters'].mean:,.0f}",
                _sigma(row.extreme(lambda r: r.sigma_min, min), row.extreme(lambda r: r.sigma_max, max)),
                "–" if (bound := row.extreme(lambda r: r.bound, max)) is None else at_most(bound),
                _links(row, folder),
            ]
        )
    count = len(columns)
    bad = [
        i for i, row in enumerate(rows) if row.status in ("failed", "diverged") or any(r.broken for r in row.results)
    ]
    content = table(
        "All contestants",
        columns,
        cells,
        numbers=range(1, count - 1),
        drawn=(count - 1,),
        marked=bad,
    )
    remarks = [f"<li>{html.escape(f'{row.name}: {remark}')}</li>" for row in rows for remark in row.remarks]
    listed = f"<h3>Remarks</h3><ul>{''.join(remarks)}</ul>" if remarks else ""
    return section("table", "All contestants", _explanation(plan, rows), content, listed)


def _explanation(plan: Plan, rows: Sequence[Row]) -> str:
    results = [result for row in rows for result in row.finished]
    inputs = next((result.attacked_inputs for result in results if result.attacked_inputs), plan.attacked)
    words = [
        "Certified: the fraction of test inputs that are right and provably stay so within the radius. Attacked: what "
        f"PGD left standing of {inputs} of them, evenly spread; what is proved of these is in comparison.json. "
        "ms/step: forward, backward and optimizer, by itself."
    ]
    before = [result.memory_before for result in results if result.memory_before is not None]
    if before:
        words.append(
            "Peak memory is that of the process that trained, of which "
            f"{statistics.fmean(before) / 1e6:.0f} MB were Python, torch and the data."
        )
    if plan.seeds > 1:
        words.append("±: standard deviation of one run, over the seeds.")
    return " ".join(words)


def _sigma(low: float | None, high: float | None) -> str:
    if high is None:
        return "–"
    return f"{low:.4g} to {high:.4g}" if low is not None else f"≤ {high:.4g}"


def _links(row: Row, folder: ComparisonFolder) -> str:
    """The reports of its runs, where there are any."""
    links = []
    for result in row.results:
        report = RunFolder(folder.run(row.contestant, result.seed)).report
        if result.is_finished and report.is_file():
            place = html.escape(report.relative_to(folder.path).as_posix())
            links.append(f'<a href="{place}">seed {result.seed}</a>')
    return " ".join(links) or "–"


def _compromises(plan: Plan, rows: Sequence[Row]) -> str:
    """Certified accuracy against the time of a step."""
    radius = radius_text(plan.recipe.eps[0])
    points, absent, labels = [], [], _labels(rows)
    for row in rows:
        f = row.figures(plan.recipe.eps)
        proved, time = f[f"certified@{radius}"], f["step_seconds"]
        if proved is not None and time is not None:
            points.append(Point(labels[row.name], 1e3 * time.mean, proved.mean, proved.deviation or 0.0))
        else:
            absent.append(labels[row.name])
    if len(points) < 2:
        return ""
    front = ", ".join(p.label for p in pareto_front(points))
    options = {
        "name": f"Certified accuracy at {radius} against the time of a training step. Unbeaten in both: {front}.",
        "x_label": "milliseconds of a training step",
        "y_label": f"certified accuracy at {radius}",
    }
    charts = [
        f'<div class="{kind}">{scatter_chart(points, size=size, **options)}</div>'
        for kind, size in (("wide", (960, 400)), ("narrow", (358, 300)))
    ]
    return section(
        "compromises",
        "Certified accuracy against time",
        "Each contestant had the same budget; where that is one of time, those that take less of it for a step took "
        "more steps. Orange, and joined by a dashed line if there are several: those that no other one beats in both."
        + (f" Not shown, as nothing of theirs is certified: {', '.join(absent)}." if absent else ""),
        f"<figure>{''.join(charts)}</figure>",
    )


def _labels(rows: Sequence[Row]) -> dict[str, str]:
    """Short names: the last part of the name of a class, unless another contestant shares it."""
    short = {row.name: row.name.rpartition(":")[2] for row in rows}
    return {name: label if list(short.values()).count(label) == 1 else name for name, label in short.items()}


def _certified_curves(rows: Sequence[Row]) -> str:
    """Certified accuracy against the radius, of the first finished run of each contestant."""
    lines, labels = [], _labels(rows)
    for style, row in enumerate(rows):
        curve = row.finished[0].curve if row.finished else None
        if curve is not None:
            lines.append(Series(labels[row.name], *curve, style))
    if not lines:
        return ""
    last = "; ".join(f"{s.label}: {percent(s.y[0])} at 0" for s in lines)
    chart = figure(
        lines,
        (960, 400),
        name=f"Certified accuracy against the radius. {last}.",
        x_label="l2 radius of the perturbation",
        y_label="certified accuracy",
        percent=True,
    )
    return section("radii", "Certified accuracy against the radius", "Of the first run that ended.", chart)


def _training_curves(plan: Plan, rows: Sequence[Row]) -> str:
    """Loss and accuracies against the time of training, of the first finished run of each contestant."""
    key = certified_key(plan.recipe.eps[0])
    quantities = (
        ("train_loss", "training loss", False, rows),
        ("val_accuracy", "accuracy", True, rows),
        (key, f"certified at {radius_text(plan.recipe.eps[0])}", True, [row for row in rows if row.history_is_proved]),
    )
    figures, labels = [], _labels(rows)
    for name, label, of_one, shown in quantities:
        lines = [
            Series(labels[row.name], *_course(row.finished[0], name), list(rows).index(row), dots=True)
            for row in shown
            if row.finished and _course(row.finished[0], name)[0]
        ]
        if lines:
            last = "; ".join(f"{s.label}: {percent(s.y[-1]) if of_one else f'{s.y[-1]:.4g}'}" for s in lines)
            name = f"{label}, at the end {last}."
            options = {"x_label": "seconds of training", "y_label": label, "percent": of_one}
            figures.append(figure(lines, (400, 290), named=False, name=name, **options))
    if not figures:
        return ""
    names = legend([Series(labels[row.name], (), (), style) for style, row in enumerate(rows) if row.finished])
    where = "test inputs" if plan.recipe.validation == 0 else "held-out inputs"
    return section(
        "training",
        "Training",
        f"Of the first run that ended, on {where}. Certified accuracy is shown where the network is 1-Lipschitz.",
        f'{names}<div class="pair">{"".join(figures)}</div>',
    )


def _course(result: RunResult, key: str) -> tuple[list[float], list[float]]:
    rows = [row for row in result.history if row.get(key) is not None and math.isfinite(row[key])]
    return [row["seconds"] for row in rows], [row[key] for row in rows]


def _made_with(plan: Plan, rows: Sequence[Row]) -> str:
    machine, versions = recorded(rows)
    facts = {
        "contestants": ", ".join(contestant.name for contestant in plan.contestants),
        "budget": f"{plan.budget} for each run",
        "seeds": str(plan.seeds),
        "measured on": machine,
        **versions,
    }
    lines = [list(fact) for fact in facts.items()]
    recipe = html.escape(json.dumps(plan.recipe.to_dict(), indent=2, ensure_ascii=False))
    return section(
        "recipe",
        "Recipe and versions",
        "The same for all contestants, but for the method and the seed.",
        f'<div class="pair"><div><h3>Recipe</h3><pre>{recipe}</pre></div>',
        f"<div><h3>Made with</h3>{table('Facts and versions', [], lines, prose=(1,))}</div></div>",
    )
