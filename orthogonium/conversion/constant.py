"""Constants other than 1 of a converted network: an equal share for each layer through which everything passes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx, nn

from orthogonium.layers.parametrization import Constrained


class Between(nn.Module):
    """A network between two multiplications."""

    def __init__(self, network: nn.Module, factor: float) -> None:
        super().__init__()
        self.network, self.factor = network, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The network of multiples."""
        return self.network(x * self.factor) * self.factor

    def extra_repr(self) -> str:
        """The factor."""
        return f"factor={self.factor:.6g}"


def with_constant(network: nn.Module, lipschitz: float, keep: bool) -> nn.Module:
    """The network with `lipschitz` times its constant, `lipschitz^(1/n)` in each of the n layers that `series` finds.

    Where there are none, and where weights are kept (with biases that belong to their size), its root multiplies input and
    output.
    """
    layers = [] if keep or not isinstance(network, fx.GraphModule) else series(network)
    if not layers:
        return Between(network, math.sqrt(lipschitz))
    for layer in dict.fromkeys(layers):  # one that is applied twice counts twice, and is scaled once
        layer.lipschitz *= lipschitz ** (1 / len(layers))
    return network


def series(network: fx.GraphModule) -> list[Any]:
    """The constrained layers through which everything passes, once for each call: their constants multiply.

    A node is passed by everything if no value from before it is used after it.
    """
    place = {node: i for i, node in enumerate(network.graph.nodes)}
    values: set[fx.Node] = set()
    open_until, found, beside = -1, [], set()  # the last place at which a value from before is used
    for node, i in place.items():
        if node.op != "placeholder" and not any(source in values for source in node.all_input_nodes):
            continue
        values.add(node)
        layer = network.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(layer, Constrained):
            found.append(layer)
            if open_until > i:
                beside.add(layer)
        open_until = max([open_until, *(place[user] for user in node.users)])
    return [layer for layer in found if layer not in beside]
