"""Lipschitz constants of ATen operators: one closed table, keyed by overload. Operators not listed have no bound."""

from orthogonium.certification.rules import (
    additions,
    arithmetic,
    convolutions,
    entrywise,
    movement,
    pooling,
    products,
    reductions,
)
from orthogonium.certification.rules.advice import ADVICE
from orthogonium.certification.rules.patterns import recognized
from orthogonium.certification.rules.wholes import WHOLES

RULES = {
    **movement.RULES,
    **entrywise.RULES,
    **arithmetic.RULES,
    **reductions.RULES,
    **products.RULES,
    **convolutions.RULES,
    **additions.RULES,
    **pooling.RULES,
}

__all__ = ["ADVICE", "RULES", "WHOLES", "recognized"]
