"""Writes into tensors that are read elsewhere: which node writes, and which nodes read the result.

Modules that replace a write have results of their own: nothing is written any more, and those results must be read
instead. A run shows whether a tensor is read elsewhere: views share memory with what they are views of, whatever
function made them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.shape_prop import ShapeProp


class RecordedRun(ShapeProp):
    """A run of a graph that stores shapes in the `meta` of its nodes, and for writes `lost_to`: who reads them."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self._values: dict[fx.Node, list[Tensor]] = {}  # all of them are kept, so no memory is reused
        self._writes: list[tuple[fx.Node, fx.Node]] = []  # and the values that they write into

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and note which of its inputs have changed."""
        before = {source: _versions(self._values[source]) for source in n.all_input_nodes}
        result = super().run_node(n)
        self._values[n] = _tensors(result)
        changed = (source for source, versions in before.items() if _versions(self._values[source]) != versions)
        written = next(changed, None)
        if written is not None:
            self._writes.append((n, written))
        return result

    def note_lost_writes(self) -> None:
        """Note readers of tensors that were written into before, other than readers of the result of the write."""
        place = {node: i for i, node in enumerate(self._values)}
        for write, written in self._writes:
            for value in self._values:
                known = place[value] < place[write] or value.op == "get_attr"
                later = [user for user in value.users if place[user] > place[write] and self._reads(user)]
                if known and later and self._overlap(value, written):
                    write.meta["lost_to"] = later[0].name
                    break

    def _reads(self, node: fx.Node) -> bool:
        """Whether it reads entries, not only sizes."""
        return node.op == "output" or bool(self._values[node])

    def _overlap(self, a: fx.Node, b: fx.Node) -> bool:
        return any(_overlap(s, t) for s in self._values[a] for t in self._values[b])


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in _tensors(item)] if isinstance(value, list | tuple) else []


def _versions(tensors: list[Tensor]) -> list[int]:
    """Autograd's counters of writes; inference tensors cannot be written into outside inference mode."""
    return [0 if t.is_inference() else t._version for t in tensors]


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have an entry in common."""
    memory = a.untyped_storage()
    if not a.numel() or not b.numel() or memory.data_ptr() != b.untyped_storage().data_ptr():
        return False
    if a.element_size() != b.element_size():
        return True  # views of other types: taken to overlap
    entries = torch.arange(memory.nbytes() // a.element_size())
    belongs = torch.zeros(len(entries), dtype=torch.bool)
    belongs[entries.as_strided(a.size(), a.stride(), a.storage_offset()).flatten()] = True
    return bool(belongs[entries.as_strided(b.size(), b.stride(), b.storage_offset()).flatten()].any())
