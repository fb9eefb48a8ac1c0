"""A comparison as a whole: its rows, and the files that hold them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orthogonium.comparison.contestant import Contestant
from orthogonium.comparison.page import page_of
from orthogonium.comparison.plan import ComparisonFolder, Plan, write_json
from orthogonium.comparison.result import RunResult
from orthogonium.comparison.rows import Row, recorded
from orthogonium.training.run_folder import partial, publish


@dataclass(frozen=True)
class Comparison:
    """What `compare` returns: a row for each contestant, in the order of the plan."""

    plan: Plan
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, plan: Plan, results: Mapping[tuple[Contestant, int], RunResult]) -> Comparison:
        """The comparison of the runs so far."""
        surroundings = {result.surroundings for result in results.values() if result.surroundings}
        rows = [
            Row(
                contestant,
                tuple(results[run] for run in plan.runs if run[0] == contestant and run in results),
                plan.seeds,
                len(surroundings) > 1,
            )
            for contestant in plan.contestants
        ]
        return cls(plan, tuple(rows))

    @property
    def broken(self) -> int:
        """Certificates that an attack broke: none, unless there is a bug."""
        return sum(result.broken for row in self.rows for result in row.results)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; ∞ and NaN do not occur."""
        machine, versions = recorded(self.rows)
        return {
            "plan": self.plan.to_dict(),
            "machine": machine,
            "versions": versions,
            "rows": [row.to_dict(self.plan.recipe.eps) for row in self.rows],
        }

    def write(self, folder: ComparisonFolder) -> None:
        """Write `comparison.json`, `comparison.csv` and `comparison.html`."""
        runs = [{"contestant": row.name, **asdict(result)} for row in self.rows for result in row.results]
        write_json(folder.results, {**self.to_dict(), "runs": runs})
        self._write_table(folder)
        text = page_of(self.plan, self.rows, folder)
        partial(folder.report).write_text(text, encoding="utf-8")
        publish(folder.report)

    def _write_table(self, folder: ComparisonFolder) -> None:
        eps = self.plan.recipe.eps
        lines: list[dict[str, Any]] = []
        for row in self.rows:
            line: dict[str, Any] = {
                "contestant": row.name,
                "status": row.status,
                "seeds": len(row.results),
                "finished": len(row.finished),
            }
            for name, spread in row.figures(eps).items():
                line[name] = None if spread is None else spread.mean
                line[f"{name} deviation"] = None if spread is None else spread.deviation
            lines.append({**line, "remarks": " ".join(row.remarks)})
        with partial(folder.table).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
        publish(folder.table)
