"""What rules have in common: their type, the way to say that there is no bound, and reading of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orthogonium.certification.tracking import Call, Tracked
from orthogonium.certification.values import Value

Rule = Callable[[Call], Value | Sequence[Value]]

NOT_FINITE = ("It has weights that are infinite or NaN.", "Look for diverged training.")


class NoBound(Exception):
    """Raised by a rule where the operation has no Lipschitz constant."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def one_operand(call: Call) -> Tracked:
    """The first argument, if it is the only value the call depends on."""
    x = call.argument(0, "input")
    if not isinstance(x, Tracked) or len(call.operands) != 1:
        raise NoBound("It depends on several values, or on one as a setting.", "Use constants for all but the input.")
    return x


def axes(dim: Any, dims: int) -> tuple[int, ...]:
    """Axes as non-negative numbers, from one int or several, however nested."""
    if isinstance(dim, int):
        return (dim % dims,)
    return tuple(a for d in dim for a in axes(d, dims))
