"""The graph of a network, and the shapes of what flows through it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from orthogonium.conversion.writes import RecordedRun
from orthogonium.layers.as_written import replaced_methods
from orthogonium.layers.wrappers import UNTRACEABLE


def _augmented(operation: Callable[..., Any]) -> Callable[..., fx.Proxy]:
    def write(self: fx.Proxy, other: Any) -> fx.Proxy:
        name = operation.__name__.removeprefix("i")  # the name of the operation that does not write
        return self.tracer.create_proxy("call_function", operation, (self, other), {}, name)

    return write


class _Proxy(fx.Proxy):
    """A value in the trace that tells `y += z` from `y = y + z`: the first writes into a tensor."""

    __iadd__ = _augmented(operator.iadd)
    __isub__ = _augmented(operator.isub)
    __imul__ = _augmented(operator.imul)
    __itruediv__ = _augmented(operator.itruediv)
    __ifloordiv__ = _augmented(operator.ifloordiv)
    __imod__ = _augmented(operator.imod)
    __ipow__ = _augmented(operator.ipow)


class _Tracer(fx.Tracer):
    """Modules of torch and of this library are leaves; those with a user-defined forward pass are traced through."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        home = getattr(type(m).forward, "__module__", None) or ""  # of code without a module there is none
        if replaced_methods(m) or not home.startswith(("torch.nn.", "torch.ao.", "orthogonium.")):
            return False
        return m.__module__.startswith("orthogonium.") or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["without_grad"] = not torch.is_grad_enabled()
        return node


def traced(model: nn.Module) -> tuple[fx.GraphModule | None, str]:
    """The graph of the forward pass, or None and the reason why there is none.

    Tensors of the model that the forward pass writes into, whatever its input, are in `meta["written"]` of the graph:
    such writes happen in the trace and are not in the graph.
    """
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    versions = {name: tensor._version for name, tensor in held.items() if not tensor.is_inference()}
    try:
        with torch.enable_grad():
            graph = _Tracer().trace(model)
    except UNTRACEABLE as error:
        return None, f"The forward pass cannot be traced ({error}): its sums and concatenations stay as they are."
    inputs = [node for node in graph.nodes if node.op == "placeholder" and not node.args]
    if len(inputs) != 1:
        return None, f"The forward pass takes {len(inputs)} inputs: only networks of one tensor have a bound."
    found = fx.GraphModule(model, graph, class_name=type(model).__name__)
    found.meta["written"] = [name for name, version in versions.items() if held[name]._version != version]
    return found, ""


def shapes_of(graph: fx.GraphModule, x: Tensor) -> None:
    """Run the graph once and remember the shape of every value, and which writes others read: `writes.py`."""
    run = RecordedRun(graph)
    with torch.inference_mode(False), torch.no_grad():  # in inference mode, writes are not counted
        run.propagate(x.clone())
    run.note_lost_writes()


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of a tensor, batch first; None for anything else."""
    shape = getattr(node.meta.get("tensor_meta"), "shape", None)
    return None if shape is None else tuple(shape)
