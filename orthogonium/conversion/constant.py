"""Constants other than 1 for a converted network: an equal share for each layer that everything passes through."""

from __future__ import annotations

from torch import fx, nn

from orthogonium.layers.parametrization import Constrained
from orthogonium.layers.scale import Scale, multiply_constants, parts


def with_constant(network: nn.Module, lipschitz: float, keep: bool) -> nn.Module:
    """The network with `lipschitz` times its constant, `lipschitz^(1/n)` in each of the n layers that `series` finds.

    If there are none, or if weights are kept (whose biases go with their scale), the output is multiplied instead.
    """
    layers = [] if keep or not isinstance(network, fx.GraphModule) else series(network)
    if not layers:
        return nn.Sequential(network, Scale(lipschitz))
    multiply_constants(layers, lipschitz)
    return network


def series(network: fx.GraphModule) -> list[Constrained]:
    """The constrained layers that everything passes through, listed once per call: their constants multiply.

    Everything passes through a node if no value from before it is used after it. Layers that are also called in
    parallel to such a value, or inside another module, are left out.
    """
    place = {node: i for i, node in enumerate(network.graph.nodes)}
    values: set[fx.Node] = set()
    open_until, found, beside = -1, [], set[nn.Module]()  # the last place at which a value from before is used
    for node, i in place.items():
        if node.op != "placeholder" and not any(source in values for source in node.all_input_nodes):
            continue
        values.add(node)
        if node.op == "call_module":
            layer = network.get_submodule(str(node.target))
            beside |= parts(layer)
            if isinstance(layer, Constrained):
                found.append(layer)
                if open_until > i:
                    beside.add(layer)
        open_until = max([open_until, *(place[user] for user in node.users)])
    return [layer for layer in found if layer not in beside]
