"""Facts about operators that torch declares."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
# Views that torch does not declare as such.
ALIASES = {
    aten._unsafe_view.default, aten.lift_fresh.default, aten._reshape_alias.default, aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
}  # fmt: skip
# Operators that turn values into Python numbers or shapes.
READS = {
    aten._local_scalar_dense.default: "item",
    aten.equal.default: "equal",
    aten.is_nonzero.default: "bool",
    aten.nonzero.default: "nonzero",
    aten.allclose.default: "allclose",
    aten.masked_select.default: "masked_select",
    aten._unique2.default: "unique",
    aten.bincount.default: "bincount",
}


def functional_of(func: Any) -> Any:
    """The operator that returns what `func` writes: same arguments, except those that are only written to."""
    schema = func._schema
    name = schema.name.split("::")[-1]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    if packet is None or not schema.name.startswith("aten::"):
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        own = candidate._schema
        if any(a.alias_info is not None and a.alias_info.is_write for a in own.arguments):
            continue
        if [(a.name, str(a.type)) for a in own.arguments] == wanted:
            return candidate
    return None
