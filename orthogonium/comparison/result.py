"""The outcome of a run, as a value that is kept in its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from orthogonium.comparison.plan import write_json

ONE = 1 + 1e-3  # largest constant that is called 1: rounding is far below


@dataclass(frozen=True)
class RunResult:
    """A run of one contestant with one seed. What was not reached or could not be proved is None.

    Attributes:
        status: "finished", "diverged" (its loss was no longer finite) or "failed".
        seed: seed of the run.
        reason: reason for a failure, in one line.
        parameters: number of trained parameters.
        layers: how many convolutions of each class the network has.
        steps: optimizer steps.
        seconds: training time, validation included.
        step_seconds: median time of a training step by itself.
        images_per_second: batch size over `step_seconds`.
        memory: peak of the resident memory of the process while it trained, in bytes.
        memory_before: memory of the process before there was a network: Python, torch and the data.
        sigma_min: smallest singular value of any layer; None if that of some layer is not known.
        sigma_max: largest singular value of any layer; None if that of some layer is not known.
        bound: proved Lipschitz constant of the network.
        bound_reason: why there is no bound.
        accuracy: on all test inputs.
        eps: the radii.
        certified: accuracy that is proved at each radius, on all test inputs.
        attacked: accuracy that an attack left at each radius, on `attacked_inputs` inputs.
        certified_of_attacked: accuracy that is proved on those inputs.
        attacked_inputs: number of attacked inputs.
        broken: number of certificates that the attack broke: 0, unless there is a bug.
        predicted_classes: number of classes that test inputs are given: 1 says that training collapsed.
        curve: radii, and the accuracy that is proved at each.
        history: a row for each epoch.
        machine: processor, threads and accelerator of its process.
        versions: versions of orthogonium, torch and others.
    """

    status: Literal["finished", "diverged", "failed"]
    seed: int
    reason: str = ""
    parameters: int | None = None
    layers: Mapping[str, int] = field(default_factory=dict)
    steps: int | None = None
    seconds: float | None = None
    step_seconds: float | None = None
    images_per_second: float | None = None
    memory: int | None = None
    memory_before: int | None = None
    sigma_min: float | None = None
    sigma_max: float | None = None
    bound: float | None = None
    bound_reason: str = ""
    accuracy: float | None = None
    eps: tuple[float, ...] = ()
    certified: tuple[float, ...] | None = None
    attacked: tuple[float, ...] | None = None
    certified_of_attacked: tuple[float, ...] | None = None
    attacked_inputs: int | None = None
    broken: int = 0
    predicted_classes: int | None = None
    curve: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    history: tuple[Mapping[str, float], ...] = ()
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def surroundings(self) -> str:
        """Machine and versions in words; empty where they were not recorded."""
        named = ", ".join(f"{name} {self.versions[name]}" for name in ("orthogonium", "torch") if name in self.versions)
        return "; ".join(part for part in (self.machine, named) if part)

    @property
    def is_finished(self) -> bool:
        """Whether it was trained and evaluated."""
        return self.status == "finished"

    @property
    def is_kept(self) -> bool:
        """Whether to keep it when the comparison continues. Failures may be the machine's fault and are run again."""
        return self.status != "failed"

    def write(self, path: Path) -> None:
        """Save it; numbers that JSON does not have become null."""
        write_json(path, _plain(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> RunResult:
        """A result from the file that `write` saved."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{key: _tuples(value) for key, value in found.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
