"""The audit of a model: the spectrum of every layer, its share of the bound, and what is wrong with it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from orthogonium.certification import render
from orthogonium.certification.bound import compared, survey
from orthogonium.certification.steps import Step


@dataclass(frozen=True)
class AuditRow:
    """One layer or operation.

    Attributes:
        name: its place in the model.
        type: its class, or the name of a function.
        sigma_min: smallest singular value, or None where it is not defined.
        sigma_max: largest singular value; for kind "guarantee", the largest Jacobian norm found, a lower bound.
        kind: "exact" or "upper" (measured), "constant" (known), "guarantee" (stated, and not refuted by Jacobians),
            "estimate" (too large to measure), "unbounded".
        stable_rank: ‖A‖_F²/‖A‖₂².
        contribution: the factor it contributes to the bound.
        bound: Lipschitz bound of its output with respect to the input of the model.
        guarantee: what the layer promises.
        method: how it was measured.
        warnings: what is wrong, and what to use instead.
    """

    name: str
    type: str
    sigma_min: float | None
    sigma_max: float | None
    kind: str
    stable_rank: float | None
    contribution: float
    bound: float
    guarantee: str | None
    method: str
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, step: Step) -> AuditRow:
        """The row of a step."""
        return cls(
            step.place,
            step.operation,
            step.sigma_min,
            step.sigma_max,
            step.kind,
            step.stable_rank,
            step.factor,
            step.bound,
            step.guarantee,
            step.method,
            step.warnings,
        )


@dataclass(frozen=True)
class AuditReport:
    """What `audit` returns: rows in order of computation, and the bound of the whole model (∞ if there is none)."""

    model: str
    input_shape: tuple[int, ...]
    lipschitz_bound: float
    rows: tuple[AuditRow, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """All warnings, each with its place in the model; one that recurs at every step of a loop is listed once."""
        texts = (f"{row.name} ({row.type}): {text}" for row in self.rows for text in row.warnings)
        return tuple(dict.fromkeys(texts))

    @property
    def worst(self) -> AuditRow | None:
        """The layer that contributes the largest factor to the bound."""
        return max(self.rows, key=lambda row: 0 if math.isnan(row.contribution) else row.contribution, default=None)

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON, also written to `path` if given. Missing numbers, ∞ and NaN become null."""
        text = json.dumps(_finite(asdict(self)), indent=2, ensure_ascii=False, allow_nan=False)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one self-contained HTML page, also written to `path` if given."""
        text = render.html_page(self.title, self.summary, self.cells(), self.warnings)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @property
    def title(self) -> str:
        """Heading of the page: the model, and the shape it was audited on."""
        return f"Audit of {self.model} on inputs {self.input_shape}"

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        if math.isinf(self.lipschitz_bound):
            return "No Lipschitz constant is known."
        return f"Lipschitz constant at most {render.at_most(self.lipschitz_bound)}."

    def cells(self) -> list[list[str]]:
        """The table as text, one row per layer."""
        return [
            [
                row.name,
                row.type,
                render.number(row.sigma_min),
                render.number(row.sigma_max),
                row.kind,
                render.number(row.stable_rank, 4),
                render.at_most(row.contribution),
                render.at_most(row.bound),
                row.guarantee or "",
                "⚠" if row.warnings else "",
            ]
            for row in self.rows
        ]

    def __str__(self) -> str:
        return render.text_table(self.title, self.summary, self.cells(), self.warnings)

    def show(self) -> None:
        """Print the report: with rich if it is installed and the output is a terminal, else as plain text."""
        if not (sys.stdout.isatty() and render.rich_table(self.title, self.summary, self.cells(), self.warnings)):
            print(self)


def _finite(x: Any) -> Any:
    """JSON has no ∞ and no NaN."""
    if isinstance(x, float) and not math.isfinite(x):
        return None
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    return [_finite(v) for v in x] if isinstance(x, (list, tuple)) else x


def audit(model: nn.Module, input_shape: Sequence[int]) -> AuditReport:
    """Measure every layer of a model, what it contributes to the Lipschitz bound, and which layers break the bound.

    Unlike `lipschitz_bound`, it does not raise if there is no bound: the cause is listed among the rows.

    Args:
        model: any module that maps one tensor to one tensor. It is left unchanged.
        input_shape: shape of one sample, without the batch dimension.

    >>> from orthogonium import audit
    >>> from orthogonium.layers import MaxMin, OrthoLinear
    >>> report = audit(torch.nn.Sequential(OrthoLinear(8, 8), MaxMin(), torch.nn.LayerNorm(8)), (8,))
    >>> [row.kind for row in report.rows]
    ['exact', 'guarantee', 'unbounded']
    >>> print(report.warnings[0])
    2 (layer_norm): It divides by a deviation ... Use LayerCentering.
    """
    found = survey(model, input_shape)
    bound, steps = math.inf if found.unbounded else found.value, found.steps
    if not found.unbounded:
        _, refutation = compared(model, input_shape, bound, found.error)
        if refutation is not None:
            bound = math.inf
            steps += (Step("(model)", type(model).__name__, bound, "unbounded", bound, warnings=(refutation,)),)
    rows = tuple(AuditRow.of(step) for step in steps)
    return AuditReport(type(model).__name__, tuple(int(n) for n in input_shape), bound, rows)
