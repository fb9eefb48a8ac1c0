"""What programs are made of, and how often."""

from __future__ import annotations

from tests.certification.fuzz import functions, layers, movement
from tests.certification.fuzz.program import Group

# The last ones have reasons to be refused; together they touch about one program in six.
GROUPS = {
    "movement": Group(18, movement.MOVEMENT),
    "in place": Group(14, movement.IN_PLACE),
    "layers": Group(14, layers.LAYERS),
    "ours": Group(9, layers.OURS),
    "pools": Group(9, layers.POOLS),
    "upsampling": Group(4, layers.UPSAMPLING),
    "activations": Group(10, functions.ACTIVATIONS),
    "reductions": Group(8, functions.REDUCTIONS),
    "linear": Group(9, functions.LINEAR),
    "branches": Group(8, functions.BRANCHES),
    "casts": Group(1.0, functions.CASTS),
    "odd": Group(2.5, functions.ODD),
    "rounded": Group(0.5, functions.ROUNDED, "rounding"),
    "composed": Group(0.6, functions.COMPOSED, "composed"),
    "batch": Group(0.8, functions.BATCH, "batch"),
    "unbounded": Group(1.2, functions.UNBOUNDED, "no constant"),
    "control": Group(0.4, functions.CONTROL, "control flow"),
}
