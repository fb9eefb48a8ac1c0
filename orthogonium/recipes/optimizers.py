"""Optimizers by name, and which parameters they decay."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.recipes.lookahead import look_ahead

# name → (class, defaults that differ from torch's)
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "adagrad": (torch.optim.Adagrad, {}),
}
_OF_THE_RECIPE = ("params", "lr", "weight_decay")
_OF_THE_MACHINE = ("fused", "foreach", "capturable", "differentiable", "maximize")


def check_optimizer(name: str, options: Mapping[str, Any]) -> None:
    """Check that the optimizer is known and has these options."""
    if name not in OPTIMIZERS:
        raise ParameterError(f"Unknown optimizer {name!r}: choose one of {', '.join(OPTIMIZERS)}.")
    signature = inspect.signature(OPTIMIZERS[name][0])
    known = [key for key in signature.parameters if key not in _OF_THE_RECIPE + _OF_THE_MACHINE]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ParameterError(
            f"The optimizer {name!r} has no option {', '.join(unknown)}. Its options are {', '.join(known)}; the "
            "learning rate is lr=, the decay weight_decay=."
        )
    try:
        OPTIMIZERS[name][0]([nn.Parameter(torch.zeros(1))], **{**OPTIMIZERS[name][1], **options})
    except (TypeError, ValueError) as error:
        raise ParameterError(f"The optimizer {name!r} rejects the options {dict(options)}: {error}") from error


def create_optimizer(
    name: str,
    parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    lr: float,
    weight_decay: float,
    decay_biases: bool,
    options: Mapping[str, Any],
    fused: bool,
    lookahead: int | None = None,
    lookahead_share: float = 0.5,
) -> torch.optim.Optimizer:
    """An optimizer of `OPTIMIZERS` over two groups: matrices and kernels are decayed, vectors only with `decay_biases`.

    Vectors are the biases of layers and of centering (positional ones too, whatever their shape), and the scales of
    rescaling methods. Running statistics are buffers: no optimizer sees them. With `fused`, fused kernels are used if
    the optimizer has them: in small networks the loop over parameters costs more than the arithmetic. With `lookahead`,
    the optimizer returns to slow weights after that many steps (`look_ahead`).
    """
    check_optimizer(name, options)
    factory, defaults = OPTIMIZERS[name]
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name_of, parameter in parameters:
        if parameter.requires_grad:
            groups[parameter.dim() <= 1 or name_of.endswith("bias")].append(parameter)
    decays = (weight_decay, weight_decay if decay_biases else 0.0)
    arguments = {**defaults, **options}
    if "fused" in inspect.signature(factory).parameters:
        arguments["fused"] = fused
    # the peak rate is kept in the group, so setting the rate of a step needs nothing else
    optimizer = factory(
        [{"params": g, "weight_decay": d, "peak_lr": lr} for g, d in zip(groups, decays, strict=True) if g],
        lr=lr,
        **arguments,
    )
    return optimizer if lookahead is None else look_ahead(optimizer, lookahead, lookahead_share)


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the rate of each group to `factor` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor
