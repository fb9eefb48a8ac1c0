"""The result of a conversion: the network, every change, what could not be converted, and the bound of the whole."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from orthogonium.certification.render import at_most


@dataclass(frozen=True)
class Change:
    """One module or operation, before and after.

    Attributes:
        name: its place in the network.
        before: what it was.
        after: what it is now.
        note: why, or what was lost.
        distance: relative distance to the original weight, up to scale, if it was kept.
    """

    name: str
    before: str
    after: str
    note: str = ""
    distance: float | None = None


@dataclass(frozen=True)
class Refusal:
    """Something that could not be converted: its place, what it is, and why. It is left unchanged."""

    name: str
    operation: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.operation}: {self.reason}"


class Changes(tuple[Change, ...]):
    """Changes in the order of the computation, printed as a table."""

    def __str__(self) -> str:
        rows = [("name", "before", "after", "distance", "note")]
        for c in self:
            distance = "" if c.distance is None else f"{c.distance:.4f}"
            rows.append((c.name, _short(c.before), _short(c.after), distance, c.note))
        return _table(rows)


_DETAIL = re.compile(r"(?:, |(?<=\())(?:eps|momentum|affine|bias|track_running_stats|inplace|kernel)=[^,()]*")
_EQUAL = re.compile(r"\((\d+)(?:, \1)+\)")


def _short(module: str) -> str:
    """The description of a module without details that conversion keeps or drops anyway; 3 for (3, 3)."""
    return _EQUAL.sub(r"\1", _DETAIL.sub("", module))


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join(lines)


@dataclass(frozen=True)
class Conversion:
    """What `convert` returns.

    Attributes:
        model: the new network. The original is left unchanged.
        changes: every module and operation that was replaced; print it.
        refused: what could not be converted, and why; empty if everything was converted.
        bound: Lipschitz constant of the new network by `orthogonium.lipschitz_bound` in eval mode, ∞ if there is none.
        agreement: with kept weights, the cosine between the outputs of the new and the old network on normal inputs,
            relative to the mean of the old ones: 1 if they agree up to a factor (where a softmax was removed, logits
            are compared, up to a constant for each sample). None with new weights.
        same_class: with kept weights, the fraction of these inputs to which both networks give the same class (the
            largest output). None with new weights, or if outputs are not logits: neither of shape (batch, classes) nor
            from a softmax.
    """

    model: nn.Module
    changes: Changes
    refused: tuple[Refusal, ...]
    bound: float
    agreement: float | None = None
    same_class: float | None = None

    def __str__(self) -> str:
        known = f"Lipschitz constant at most {at_most(self.bound)}"
        if math.isinf(self.bound):
            known = "no Lipschitz constant is known"
        if self.agreement is not None:
            known += f", outputs agree to {self.agreement:.4f} (cosine)"
        if self.same_class is not None:
            known += f", {self.same_class:.1%} of normal inputs have the class they had"
        lines = [str(self.changes), "", f"{type(self.model).__name__}: {known}."]
        return "\n".join([*lines, *(f"⚠ not converted: {refusal}" for refusal in self.refused)])


def describe(module: nn.Module) -> str:
    """A module in one line, without its parametrizations."""
    name = type(module).__name__.removeprefix("Parametrized")
    return f"{name}({module.extra_repr()})"
