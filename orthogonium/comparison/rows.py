"""A row for each contestant: means over its seeds, their spread, and remarks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orthogonium.certification.render import at_most
from orthogonium.comparison.contestant import Contestant
from orthogonium.comparison.result import ONE, RunResult
from orthogonium.report.sections import radius_text


@dataclass(frozen=True)
class Spread:
    """Mean over seeds, and the standard deviation of a single run; None if there was only one."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of one or more values."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Row:
    """A contestant with its runs so far, of `seeds` in all.

    Attributes:
        contestant: the contestant.
        results: its runs.
        seeds: number of its runs in the end.
        names_surroundings: whether to remark on what machine and versions it ran, as others ran on other ones.
    """

    contestant: Contestant
    results: tuple[RunResult, ...]
    seeds: int
    names_surroundings: bool = False

    @property
    def name(self) -> str:
        """Name of the contestant, which heads its row."""
        return self.contestant.name

    @property
    def finished(self) -> tuple[RunResult, ...]:
        """The runs that came to their end."""
        return tuple(result for result in self.results if result.is_finished)

    @property
    def status(self) -> str:
        """The status of the first run that is not finished, if there is one; "running" while runs are missing."""
        if len(self.results) < self.seeds:
            return "running"
        return next((result.status for result in self.results if not result.is_finished), "finished")

    def spread(self, value: Callable[[RunResult], float | None], *, of_all: bool = False) -> Spread | None:
        """The spread of a value over the finished runs, or over all that have it; None if a finished run has none."""
        values = [value(result) for result in (self.results if of_all else self.finished)]
        known = [v for v in values if v is not None]
        return Spread.of(known) if known and (of_all or len(known) == len(values)) else None

    def figures(self, eps: tuple[float, ...]) -> dict[str, Spread | None]:
        """The numbers of the row by name."""

        def at(values: tuple[float, ...] | None, index: int) -> float | None:
            return None if values is None else values[index]

        found = {
            "parameters": self.spread(lambda r: r.parameters, of_all=True),
            "step_seconds": self.spread(lambda r: r.step_seconds, of_all=True),
            "images_per_second": self.spread(lambda r: r.images_per_second, of_all=True),
            "memory": self.spread(lambda r: r.memory, of_all=True),
            "steps": self.spread(lambda r: r.steps),
            "seconds": self.spread(lambda r: r.seconds),
            "sigma_min": self.spread(lambda r: r.sigma_min),
            "sigma_max": self.spread(lambda r: r.sigma_max),
            "bound": self.spread(lambda r: r.bound),
            "accuracy": self.spread(lambda r: r.accuracy),
        }
        for i, e in enumerate(eps):
            found[f"certified@{radius_text(e)}"] = self.spread(lambda r, i=i: at(r.certified, i))  # type: ignore[misc]
        for i, e in enumerate(eps):
            found[f"attacked@{radius_text(e)}"] = self.spread(lambda r, i=i: at(r.attacked, i))  # type: ignore[misc]
        return found

    def extreme(
        self, value: Callable[[RunResult], float | None], choose: Callable[[list[float]], float]
    ) -> float | None:
        """The largest or smallest value of the finished runs, a limit that all keep; None if one of them has none."""
        found = [value(result) for result in self.finished]
        known = [v for v in found if v is not None]
        return choose(known) if known and len(known) == len(found) else None

    @property
    def history_is_proved(self) -> bool:
        """Whether the certified accuracies of its histories, which assume a 1-Lipschitz network, are true.

        Methods keep their constant at each step; of other classes only the network at the end has been measured.
        """
        proved = all(r.bound is not None and r.bound <= ONE for r in self.finished)
        return bool(self.finished) and proved and self.contestant.kind == "method"

    @property
    def remarks(self) -> list[str]:
        """What a reader must know to read the numbers."""
        found = []
        seeds: dict[tuple[str, str], list[str]] = {}
        for result in self.results:
            if not result.is_finished:
                seeds.setdefault((result.status, result.reason), []).append(str(result.seed))
        for (status, reason), of in seeds.items():
            found.append(f"{status.capitalize()}, seed{'s' if len(of) > 1 else ''} {', '.join(of)}: {reason}")
        if self.finished and len(self.finished) < len(self.results):
            found.append(f"Means are over {len(self.finished)} of {self.seeds} seeds.")
        broken = sum(result.broken for result in self.finished)
        if broken:
            found.append(f"{broken} certificates were broken by the attack: this is a bug.")
        collapsed = [str(result.seed) for result in self.finished if result.predicted_classes == 1]
        if collapsed:
            found.append(
                f"Collapsed, seed{'s' if len(collapsed) > 1 else ''} {', '.join(collapsed)}: all test inputs are given "
                "the same class. The recipe does not suit it: try another learning rate."
            )
        unproved = [result.bound_reason for result in self.finished if result.bound is None]
        if unproved:
            found.append(f"No Lipschitz constant is proved, so nothing is certified: {unproved[0]}")
        largest = max((r.bound for r in self.finished if r.bound is not None), default=0.0)
        if largest > ONE:
            found.append(f"Not 1-Lipschitz: the proved constant, by which radii are divided, is {at_most(largest)}.")
        if self.names_surroundings:
            places = dict.fromkeys(result.surroundings for result in self.results if result.surroundings)
            found.append(f"Not all runs are of one machine and version, which times depend on: {' and '.join(places)}.")
        layers = next((result.layers for result in self.results if result.layers), {})
        if len(layers) > 1:
            found.append("Convolutions: " + ", ".join(f"{count} {name}" for name, count in layers.items()) + ".")
        return found

    def to_dict(self, eps: tuple[float, ...]) -> dict[str, Any]:
        """Status, remarks and figures at these radii, as JSON values."""
        figures = {
            name: None if spread is None else {"mean": spread.mean, "deviation": spread.deviation}
            for name, spread in self.figures(eps).items()
        }
        return {
            "contestant": self.name,
            "kind": self.contestant.kind,
            "status": self.status,
            "seeds": [result.seed for result in self.results],
            "finished": len(self.finished),
            "remarks": self.remarks,
            **figures,
        }


def milliseconds(seconds: float) -> str:
    """To three digits, or to the millisecond."""
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def recorded(rows: Sequence[Row]) -> tuple[str, dict[str, str]]:
    """The machine and the versions of the runs, several where they differ."""
    results = [result for row in rows for result in row.results]
    versions: dict[str, list[str]] = {}
    for result in results:
        for name, version in result.versions.items():
            versions.setdefault(name, []).append(version)
    machines = (result.machine for result in results if result.machine)
    return _each_once(machines), {name: _each_once(found) for name, found in versions.items()}


def _each_once(values: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(values))
