"""Carries over what is trained, and which modules are in training mode, from the original to the new network."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, fx, nn

from orthogonium.conversion.scaled import Scaled


def take_over_flags(model: nn.Module, new: nn.Module, held: set[Tensor]) -> None:
    """Freeze what replaces frozen parameters, and give every module the mode of the one it stands for.

    Parameters that were `held` before the conversion still belong to the model and keep their flags.
    """
    modes = {path: module.training for path, module in model.named_modules(remove_duplicate=False)}
    new.train(model.training)  # so that constraints drop the weights they cache in eval mode
    for module, path in _places(new, modes.keys()).items():
        for inner, part in module.named_modules():
            part.training = modes.get(".".join(filter(None, (path, inner))), modes[path])
        for name, parameter in module.named_parameters():
            if parameter not in held:
                parameter.requires_grad_(_is_trained(model, path, name))


def _places(new: nn.Module, known: Collection[str]) -> dict[nn.Module, str]:
    """The modules of a new network, outer ones first, and the places in the old one of those they stand for.

    In a graph, modules may have names of their own, which mean nothing in the old network: a node knows the innermost
    module in whose call it was recorded, which is the one it replaces or, for functions and sums, the caller.
    """
    places = {module: path for path, module in new.named_modules() if path in known}
    if isinstance(new, fx.GraphModule):
        # `fx` turns mere containers into modules without a class of their own.
        places = {module: path for module, path in places.items() if module is new or type(module) is nn.Module}
        for node in new.graph.nodes:
            if node.op == "call_module":
                calls = list(node.meta.get("nn_module_stack", {}).values())
                places[new.get_submodule(str(node.target))] = calls[-1][0] if calls else ""
    return places | {module.fn: path for module, path in places.items() if isinstance(module, Scaled)}


def _is_trained(model: nn.Module, path: str, name: str) -> bool:
    """Whether a new parameter is trained: as the bias or weight at its place was; in a new place, as its surroundings.

    A parametrized weight has other names: it is everything but the bias.
    """
    old = dict(model.get_submodule(path).named_parameters())
    like = [p for own, p in old.items() if (own == "bias") == (name == "bias")] or list(old.values())
    if like or not path:
        return not like or any(p.requires_grad for p in like)
    return _is_trained(model, path.rpartition(".")[0], name)
