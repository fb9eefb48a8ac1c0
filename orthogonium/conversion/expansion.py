"""Why a network expands although everything was converted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from orthogonium.certification.bound import survey
from orthogonium.conversion.result import Refusal

_ALLOWED = 1e-3  # relative, beyond the constant that was asked for


def expansions(
    model: nn.Module, shape: tuple[int, ...], bound: float, lipschitz: float, refused: Sequence[Refusal]
) -> list[Refusal]:
    """The operations whose factors raise the bound above `lipschitz`, if no refusal explains it."""
    limit = lipschitz * (1 + _ALLOWED)
    if refused or math.isinf(bound) or bound <= limit:
        return []
    reason = (
        f"The bound of the network is {bound:.5g} instead of {lipschitz:.5g}, {{}}. Divide what it gives by its "
        "constant, by orthogonium.layers.Scale."
    )
    steps = [step for step in survey(model, shape).steps if step.factor > 1 + _ALLOWED]
    if not steps:
        whole = reason.format("by values that are used more than once, or sums of them")
        return [Refusal("(model)", type(model).__name__, whole)]
    return [Refusal(s.place, s.operation, reason.format(f"of which it is a factor {s.factor:.5g}")) for s in steps]
