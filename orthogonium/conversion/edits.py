"""Edits of a graph: modules in place of nodes, and the record of what was replaced or refused."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from orthogonium.conversion.result import Change, Refusal, describe


class Edits:
    """A graph that is edited in place."""

    def __init__(self, model: fx.GraphModule) -> None:
        self.model = model
        self.changes: list[Change] = []
        self.refused: list[Refusal] = []
        self.units: dict[fx.Node, float] = {}  # of values that depend on the input: Note [Units] of `constrained.py`

    def _refuse(self, node: fx.Node, reason: str) -> None:
        self.refused.append(Refusal(name_of(node), self._describe(node), reason))

    def _describe(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return describe(self.model.get_submodule(str(node.target)))
        return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))

    def _kind(self) -> dict[str, Any]:
        held = next((t for t in self.model.parameters() if t.is_floating_point()), None)
        return {} if held is None else {"device": held.device, "dtype": held.dtype}

    def _install(
        self, node: fx.Node, new: nn.Module, old: nn.Module, note: str = "", distance: float | None = None,
        per_call: bool = False,
    ) -> None:  # fmt: skip
        """Put a module in place of another, or of a function; `per_call` leaves other calls of the module alone."""
        self.changes.append(Change(name_of(node), describe(old), describe(new), note, distance))
        shared = node.op == "call_module" and len(self._calls(str(node.target))) > 1
        if node.op == "call_module" and not (per_call and shared):
            parent, _, name = str(node.target).rpartition(".")
            setattr(self.model.get_submodule(parent), name, new)
        else:
            self._call(node, new, (next(n for n in node.all_input_nodes if n in self.units),))

    def _calls(self, target: str) -> list[fx.Node]:
        return [n for n in self.model.graph.nodes if n.op == "call_module" and n.target == target]

    def _call(self, node: fx.Node, module: nn.Module, args: tuple[fx.Node, ...]) -> None:
        name = node.name
        while hasattr(self.model, name):
            name += "_"
        self.model.add_module(name, module)
        node.op, node.target, node.args, node.kwargs = "call_module", name, args, {}


def attribute_of(model: nn.Module, path: str) -> Any:
    """A parameter, buffer or other attribute, by its full name."""
    owner, _, name = path.rpartition(".")
    return getattr(model.get_submodule(owner), name)


def name_of(node: fx.Node) -> str:
    """The place of a module, or what the graph calls a function."""
    return str(node.target) if node.op == "call_module" else node.name
