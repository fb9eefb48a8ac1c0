"""Whether a module still does what its class states: inverses and invertible residual blocks rely on this.

Note [As written]
A class states a constant (`guarantee`) and what undoes it (`inverse`, `undo`). These statements concern its own forward
pass and the weight that its constraint builds. Nothing is known about a module
- whose class, from outside this library, overrides something below the class that makes the statement;
- with a method that was replaced, or with forward hooks (other than those with which this library observes);
- whose weight passes through another parametrization, or a hook, after its constraint.
A plain weight, from `freeze` or `remove_parametrizations`, may have been trained since, so it is measured. Its singular
values must be what the layer states, to the precision of constrained weights. In compilers and function transforms,
where values cannot be read, it is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.layers.eval_cache import Kept
from orthogonium.layers.parametrization import Constrained
from orthogonium.linalg.evaluation import has_values
from orthogonium.spectral import circular_singular_values, convolution, spectrum

# What may be overridden, because it does not change the function.
_SETTINGS = {"__init__", "extra_repr", "__repr__", "__doc__", "__module__", "__qualname__", "__annotations__"}
_SETTINGS |= {"__static_attributes__", "__firstlineno__", "__parameters__", "__orig_bases__"}
_PACKAGE = "orthogonium."
_TOLERANCE = 1e-4  # of singular values, as in audits; rounded to half precision, weights are 1e-2 off
_measured: WeakKeyDictionary[nn.Module, Kept] = WeakKeyDictionary()  # of plain weights, [σ_min, σ_max]


def replaced_methods(module: nn.Module) -> list[str]:
    """Methods of its class that a module instance replaces with its own."""
    kind = parametrize.type_before_parametrizations(module)
    compiled = "_compiled_call_impl"  # of `module.compile()`: the same, faster
    own = {name for name, value in vars(module).items() if callable(value)} - {compiled}
    return sorted(name for name in own if hasattr(kind, name))


def overridden(module: nn.Module, stated_by: type) -> list[str]:
    """Attributes of `stated_by` that the module, or a third-party class below `stated_by`, has replaced."""
    kind = parametrize.type_before_parametrizations(module)
    own = replaced_methods(module)
    below = kind.__mro__[: kind.__mro__.index(stated_by)]
    names = {name for child in below if not child.__module__.startswith(_PACKAGE) for name in vars(child)}
    return own + sorted(name for name in names - _SETTINGS if hasattr(stated_by, name))


def departure(module: nn.Module, statement: str) -> str | None:
    """Why a statement that the class of a module makes need not hold for it (Note [As written]); None if it does.

    Args:
        module: any module, even one without the statement.
        statement: "guarantee", "inverse" or "undo".
    """
    kind = parametrize.type_before_parametrizations(module)
    if _is_hooked(module):
        return f"{kind.__name__} has forward hooks, or a call of its own, which may change what it does. Remove them."
    stated_by = next((parent for parent in kind.__mro__ if statement in vars(parent)), kind)
    replaced = overridden(module, stated_by)
    if replaced:
        return (
            f"{kind.__name__} replaces {', '.join(replaced)}, while its `{statement}` is that of "
            f"{stated_by.__name__}. Override `{statement}` as well."
        )
    return _departure_of_weight(module, statement) if isinstance(module, Constrained) else None


def parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and everything inside it except what builds weights."""
    yield module
    for name, child in module.named_children():
        if name != "parametrizations":
            yield from parts(child)


def _is_hooked(module: nn.Module) -> bool:
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    of_others = any(not str(getattr(hook, "__module__", "")).startswith(_PACKAGE) for hook in hooks)
    return of_others or type(module).__call__ is not nn.Module.__call__


def _departure_of_weight(layer: Constrained, statement: str) -> str | None:
    name, chains = type(layer).__name__.removeprefix("Parametrized"), layer._modules.get("parametrizations")
    if chains is not None and "weight" in chains._modules:
        chain = layer._constrained_chain()
        if chain is not None and not chain._forward_hooks and not chain._modules["0"]._forward_hooks:
            return None
        return f"the weight of {name} passes another parametrization, or a hook, after its constraint. Remove it."
    weight: Any = layer.weight
    if not has_values(weight):
        return None
    found = _extreme_singular_values(layer, weight)
    if found is None:
        return (
            f"{name} has a plain weight (freeze, remove_parametrizations), of which its constraint says nothing any "
            "more. Use the layer as it was before."
        )
    smallest, largest = (value / layer.lipschitz for value in found)
    tolerance = _TOLERANCE if weight.dtype.itemsize > 2 else 1e-2
    if largest <= 1 + tolerance and (statement == "guarantee" or smallest >= 1 - tolerance):
        return None
    return (
        f"{name} has a plain weight (freeze, remove_parametrizations), which has left its constraint: singular values "
        f"lie between {found[0]:.6g} and {found[1]:.6g}, while {layer.lipschitz:.6g} was promised. Train the "
        "constrained layer instead, and freeze it then."
    )


def _extreme_singular_values(layer: Constrained, weight: Tensor) -> tuple[float, float] | None:
    """The smallest and the largest singular value of a plain weight, or bounds on them; None for weights of blocks."""
    if not isinstance(layer, nn.Linear) and not hasattr(layer, "geometry"):
        return None
    kept = _measured.get(layer)
    if kept is None or not kept.is_current((weight,)):
        kept = _measured[layer] = Kept((weight,), lambda raw: _measure(layer, *raw))
    smallest, largest = kept.weight.tolist()
    return smallest, largest


def _measure(layer: Any, weight: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        values = torch.linalg.svdvals(weight.double())
    else:
        g = layer.geometry  # of a convolution, to which a transposed one is the adjoint
        window = {"stride": g.stride, "dilation": g.dilation, "groups": g.groups}
        kernel = convolution(weight, padding="same", padding_mode="circular", **window)
        if not layer.smallest:
            found = spectrum(kernel, kind="upper", rtol=_TOLERANCE / 10)
            return torch.tensor([found.sigma_min, found.sigma_max], dtype=torch.float64)
        # KKᵀ − 1 is a nearly vanishing polynomial of frequency: its size on a circle with more than twice as many
        # windows as it has coefficients is its size everywhere.
        wide = [4 * s * -(-x // s) for x, s in zip(g.extent, g.stride, strict=True)]
        values = circular_singular_values(kernel, weight.shape[2:] if layer.spans_image else wide)
    return torch.stack([values[-1], values[0]])
