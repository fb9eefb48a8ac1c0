"""`convert`: the graph of a network, node by node."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from orthogonium.certification import lipschitz_bound
from orthogonium.certification.bound import kind_of_input, sample_shape
from orthogonium.certification.failures import RefutedError, TraceError, UnboundedError
from orthogonium.conversion.agreement import agreement
from orthogonium.conversion.constant import with_constant
from orthogonium.conversion.constrained import Settings
from orthogonium.conversion.expansion import expansions
from orthogonium.conversion.flags import take_over_flags
from orthogonium.conversion.graph import Converter
from orthogonium.conversion.loose import convert_modules
from orthogonium.conversion.result import Changes, Conversion, Refusal
from orthogonium.conversion.tracing import shapes_of, traced
from orthogonium.errors import ParameterError
from orthogonium.methods import METHODS

_ROUNDING = 1.01  # largest rounding of a bound that the head makes up for
_WRITTEN = "The forward pass writes into it, whatever the input. That is left out: do it beside the forward pass."


def convert(
    model: nn.Module,
    input_shape: Sequence[int],
    method: str = "aoc",
    *,
    weights: Literal["new", "keep"] = "new",
    activation: Literal["maxmin", "keep"] | None = None,
    padding_mode: Literal["zeros", "circular"] | None = None,
    lipschitz: float = 1.0,
    learnable: bool = True,
    steps: int = 200,
    **options: Any,
) -> Conversion:
    """Convert a network of torch.nn to a 1-Lipschitz one, with a table of the changes and a bound of the result.

    Convolutions and dense layers become constrained layers of the method; batch normalization becomes centering; ReLU
    and similar activations become MaxMin, or stay; pooling is divided by its constant; sums of branches become convex;
    concatenations get weights of norm 1; a softmax at the end is removed. Shapes do not change. Strided kernels that
    cannot be orthogonal get the smallest size that can. Anything without a bound stays and is listed in `refused`, and
    the bound of the result accounts for it.

    Args:
        model: any module that maps one tensor to one tensor. It is left unchanged.
        input_shape: shape of one sample, without the batch dimension.
        method: a key of `METHODS`. Where it has no layer like the one to be replaced, "aoc" is used; "aol" for
            depthwise convolutions, whose orthogonal kernels could only shift.
        weights: "new" for a random start, "keep" to start from the weights of the model: the closest constrained ones,
            with biases, means and gates in the units that this implies, so the network starts close to the original.
            How close is measured (`agreement` and `same_class` of the result).
        activation: "maxmin" to replace ReLU and similar activations by MaxMin, "keep" to leave them (divided by their
            constant where that exceeds 1). By default "maxmin" for new weights, "keep" for kept ones.
        padding_mode: padding mode of all convolutions; None keeps zeros and makes other modes circular.
        lipschitz: constant of the whole network: `lipschitz^(1/n)` for each of the n layers that everything passes
            through. With kept weights, which go with their biases, it multiplies the output instead.
        learnable: whether the gates of sums and concatenations are trained.
        steps: steps of the fit of each kernel that has no closed form, with `weights="keep"`.
        options: options of the method's layers, such as `niter` or `ortho_params`.

    >>> from orthogonium import convert
    >>> conv = nn.Conv2d(1, 8, 3, padding=1)
    >>> plain = nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    >>> found = convert(plain, (1, 4, 4))
    >>> found.bound < 1.0001, found.refused
    (True, ())
    >>> print(found.changes[2].before, "→", found.changes[2].after)
    ReLU() → MaxMin()
    """
    _check(model, method, weights, activation, lipschitz)
    shape = sample_shape(input_shape)
    keep = weights == "keep"
    kind = activation or ("keep" if keep else "maxmin")
    settings = Settings(method, keep, kind, padding_mode, learnable, steps, options)
    copy = deepcopy(model).eval()
    held: set[Tensor] = set(copy.parameters())
    graph, reason = traced(copy)
    if graph is None and keep:
        raise ParameterError(f"weights='keep' needs the graph of the network. {reason}")
    if graph is None:
        changes, refused = convert_modules(copy, shape, settings)
        refused = [Refusal("(forward)", type(model).__name__, f"{reason} Modules were replaced one by one."), *refused]
        network: nn.Module = copy
    else:
        dtype, device = kind_of_input(copy)
        shapes_of(graph, torch.zeros(2, *shape, dtype=dtype, device=device))
        converter = Converter(graph, settings)
        network = converter.run()
        changes, refused = converter.changes, converter.refused
        refused += [Refusal(name, "write", _WRITTEN) for name in graph.meta["written"]]
    new = network if lipschitz == 1 else with_constant(network, lipschitz, keep)
    refused += _lost(model)
    bound = _bound(new.eval(), shape, refused)
    head = None if graph is None else converter.head()
    if head is not None and lipschitz < bound <= lipschitz * _ROUNDING:
        head.lipschitz *= lipschitz / bound  # compensates the accumulated rounding of all layers
        bound = _bound(new, shape, refused)
    refused += expansions(new, shape, bound, lipschitz, refused)
    agrees = agreement(deepcopy(model).eval(), new, shape, changes) if keep else (None, None)
    new.train(model.training)
    take_over_flags(model, network, held)
    return Conversion(new, Changes(changes), tuple(refused), bound, *agrees)


def _lost(model: nn.Module) -> list[Refusal]:
    """What a module has besides its forward pass that its copy in a graph lacks."""
    lost: list[Refusal] = []
    owners: dict[nn.Parameter, str] = {}
    for name, module in model.named_modules():
        place, kind = name or "(model)", type(module).__name__
        if module._forward_hooks or module._forward_pre_hooks:
            lost.append(Refusal(place, kind, "Its hooks are left out. What they do belongs into the forward pass."))
        for own, parameter in module.named_parameters(recurse=False):
            other = owners.setdefault(parameter, place)
            if other != place:
                reason = f"Its {own} is that of {other}; now each has its own. Call one module in both places."
                lost.append(Refusal(place, kind, reason))
    return lost


def _check(model: nn.Module, method: str, weights: str, activation: str | None, lipschitz: float) -> None:
    if not isinstance(model, nn.Module):
        raise ParameterError(f"convert takes a module, got {type(model).__name__}.")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ParameterError(
            "convert reads forward passes in Python, which scripts have none of. Convert, then script."
        )
    inputs = inspect.signature(model.forward).parameters.values()
    needed = [p.name for p in inputs if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1:
        raise ParameterError(
            f"convert takes networks of one tensor, the forward pass of {type(model).__name__} needs "
            f"{', '.join(needed)}. Wrap it in a module that takes one, or convert its parts."
        )
    if method not in METHODS:
        raise ParameterError(f"There is no method {method!r}. Methods: {', '.join(METHODS)}.")
    allowed: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
        "weights": (weights, ("new", "keep")),
        "activation": (activation, ("maxmin", "keep", None)),
    }
    for name, (value, values) in allowed.items():
        if value not in values:
            raise ParameterError(f"{name} is one of {', '.join(map(repr, values))}: got {value!r}.")
    if weights == "keep" and METHODS[method].activated:
        plain = ", ".join(name for name, entry in METHODS.items() if not entry.activated)
        raise ParameterError(
            f"Layers of method {method!r} contain their activation, and cannot take over the weight of a plain layer. "
            f"Keep weights with one of {plain}."
        )
    if not (lipschitz > 0 and math.isfinite(lipschitz)):
        raise ParameterError(f"lipschitz, the constant of the network, must be positive: got {lipschitz}.")


def _bound(model: nn.Module, shape: tuple[int, ...], refused: list[Refusal]) -> float:
    """The certified constant, ∞ if there is none; the causes are added to `refused`."""
    try:
        return lipschitz_bound(model, shape).value
    except UnboundedError as error:
        known = {refusal.name for refusal in refused}
        for node in error.nodes:
            if not any(node.place == name or node.place.startswith(f"{name}.") for name in known):
                refused.append(Refusal(node.place, node.operation, f"{node.reason} {node.remedy}".strip()))
    except (TraceError, RefutedError) as error:
        refused.append(Refusal("(model)", type(model).__name__, str(error)))
    return math.inf
