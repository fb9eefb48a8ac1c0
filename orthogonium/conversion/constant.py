"""Constants other than 1 of a converted network: an equal share for each layer through which everything passes."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from orthogonium.layers.parametrization import Constrained
from orthogonium.layers.scale import Scale


def with_constant(network: nn.Module, lipschitz: float, keep: bool) -> nn.Module:
    """The network with `lipschitz` times its constant, `lipschitz^(1/n)` in each of the n layers that `series` finds.

    Where there are none, and where weights are kept (with biases that belong to their size), the output is multiplied.
    """
    layers = [] if keep or not isinstance(network, fx.GraphModule) else series(network)
    if not layers:
        return nn.Sequential(network, Scale(lipschitz))
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
