"""What a walk has met: the steps of the report, and what has no bound, with its place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from orthogonium.certification.failures import TraceError, Unbounded
from orthogonium.certification.places import Places
from orthogonium.certification.rules.advice import GATES, RECURRENCE
from orthogonium.certification.rules.call import Effect
from orthogonium.certification.steps import Step, type_name
from orthogonium.certification.tracked import Tracked
from orthogonium.certification.values import Base
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.wrappers import is_hooked

_GATED = (nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell)
_SUM = "A plain sum adds constants. AdditiveResidual, ConcatResidual or L2NormResidual keep 1."


class WalkRecord:
    """Steps and failures, each assigned to the module that was running.

    Args:
        places: which module is running.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self.steps: list[Step] = []
        self.unbounded: list[Unbounded] = []
        self.marks: list[int] = []  # number of steps when the running modules were entered
        self.paused = False
        self.lost: BaseException | None = None  # the first failure, even if the model caught it

    @property
    def module(self) -> nn.Module | None:
        """The module that is running."""
        return self.places.running[-1] if self.places.running else None

    @property
    def place(self) -> str:
        """Name of the module that is running."""
        return self.places.place

    def entered(self) -> None:
        """Remember where the steps of the module begin that is now running."""
        self.marks.append(len(self.steps))

    def left(self, module: nn.Module, args: Any, output: Any) -> None:
        """A module ends: the arithmetic of one of our layers is one step of the report; steps of its parts stay."""
        first = self.marks.pop()
        guarantee = getattr(module, "guarantee", None)
        sources = [t for t in args if isinstance(t, Tracked) and not t.constant]
        if not isinstance(guarantee, Guarantee) or not sources or not isinstance(output, Tracked) or output.constant:
            return
        place = self.place
        own = [s for s in self.steps[first:] if s.place == place and s.kind == "constant"]
        with self.pause():
            before, after = max(source.form().bound for source in sources), output.form().bound
        if not own or not 0 < before < math.inf or math.isinf(after):
            return
        self.steps[first:] = [s for s in self.steps[first:] if s not in own]
        itself = any(s.place == place for s in self.steps[first:])
        factor = after / before
        name = f"hook of {type_name(module)}" if itself else type_name(module)
        leaf = not any(name != "parametrizations" for name, _ in module.named_children())
        hooks = "with its forward hooks, " if is_hooked(module) else ""
        broken = f"Its guarantee is broken: {hooks}as it runs, it is {factor:.6g}-Lipschitz at most."
        warnings = (broken,) if leaf and factor > guarantee.constant * (1 + 1e-4) else ()
        self.steps.append(Step(place, name, factor, "constant", after, guarantee=str(guarantee), warnings=warnings))

    def lose(self, message: str) -> TraceError:
        """A failure that counts even if the model catches it."""
        error = TraceError(message)
        self.lost = self.lost or error
        return error

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Context in which the walk itself computes with ordinary tensors."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def note(self, operation: str, reason: str, remedy: str) -> None:
        """An operation without a constant."""
        if operation == "mul" and isinstance(self.module, _GATED):  # report the layer, not its arithmetic
            reason, remedy = GATES
        node = Unbounded(self.place, operation, reason, remedy)
        if node in self.unbounded:
            return
        self.unbounded.append(node)
        warning = (f"{reason} {remedy}",)
        self.steps.append(Step(self.place, operation, math.inf, "unbounded", math.inf, warnings=warning))

    def reveal(self, base: Base) -> None:
        """Note why a value that is used has no bound, unless that has been noted already."""
        if base.reason is not None:
            name, jump = base.reason
            self.note(name, jump.reason, jump.remedy)

    def record(self, call: Any, effect: Effect, result: Tracked, operands: Sequence[Tracked]) -> None:
        """Add a step to the report if it changes the bound or asks to be reported."""
        before = max((x.form().bound for x in operands), default=0.0)
        after = result.memory.base.bound if result.memory.base is not None else math.inf
        if math.isinf(before) or math.isinf(after) or (effect.step is None and after == before):
            return
        fields: dict[str, Any] = {
            "operation": call.name,
            "kind": "constant",
            "factor": after / before if before else 1.0,
        }
        if len(operands) > 1 and call.name in ("add", "sub", "rsub"):
            recurrent = isinstance(self.module, (nn.RNN, nn.RNNCell))
            fields["warnings"] = (" ".join(RECURRENCE) if recurrent else _SUM,)
        self.steps.append(Step(self.place, bound=after, **(fields | (effect.step or {}))))
