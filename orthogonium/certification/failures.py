"""Why a model has no bound: an operation without a Lipschitz constant, or control flow that depends on values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orthogonium.errors import OrthogoniumError


@dataclass(frozen=True)
class Unbounded:
    """An operation without a Lipschitz constant: its place in the model, what it is, and what to use instead."""

    place: str
    operation: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}: {self.operation}: {self.reason} {self.remedy}"


class UnboundedError(OrthogoniumError):
    """No Lipschitz constant is known for the model. `nodes` lists every operation that causes this."""

    def __init__(self, nodes: Sequence[Unbounded]) -> None:
        self.nodes = tuple(nodes)
        listing = "\n".join(f"  - {node}" for node in self.nodes)
        super().__init__(f"No Lipschitz constant of the model is known, because of\n{listing}")


class TraceError(OrthogoniumError):
    """The values of the input decide what the model computes, so there is no single function to bound."""


class RefutedError(OrthogoniumError):
    """Two inputs are moved further apart than the bound allows: some part of the model is not what it seems."""
