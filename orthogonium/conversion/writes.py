"""Writes into tensors that are read elsewhere: by which node, and who reads what was written.

Modules that take the place of a write have results of their own: nothing is written any more, and what is read must be
those results. Whether a tensor is read elsewhere is seen in a run: views share memory with what they are views of,
whatever function made them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.shape_prop import ShapeProp


class RecordedRun(ShapeProp):
    """A run of a graph, after which the meta of its nodes has shapes, and `lost_to` of writes: who reads them."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self._values: dict[fx.Node, list[Tensor]] = {}  # all of them are kept, so that no memory is used twice
        self._writes: list[tuple[fx.Node, fx.Node]] = []  # and the values that they write into

    def run_node(self, n: fx.Node) -> Any:
        """What the node computes; which of its inputs have changed is noted."""
        before = {source: _versions(self._values[source]) for source in n.all_input_nodes}
        result = super().run_node(n)
        self._values[n] = _tensors(result)
        changed = (source for source, versions in before.items() if _versions(self._values[source]) != versions)
        written = next(changed, None)
        if written is not None:
            self._writes.append((n, written))
        return result

    def note_lost_writes(self) -> None:
        """Readers of tensors that were written into before, but for those of the result of the write."""
        place = {node: i for i, node in enumerate(self._values)}
        for write, written in self._writes:
            for value in self._values:
                known = place[value] < place[write] or value.op == "get_attr"
                later = [user for user in value.users if place[user] > place[write] and self._reads(user)]
                if known and later and self._overlap(value, written):
                    write.meta["lost_to"] = later[0].name
                    break

    def _reads(self, node: fx.Node) -> bool:
        """Whether it looks at entries, not only at sizes."""
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
    """The counters by which autograd notices writes; tensors of inference mode cannot be written into outside of it."""
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
