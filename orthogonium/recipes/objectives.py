"""Losses by name: one explicit table, with the arguments that follow from the network filled in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from orthogonium import losses
from orthogonium.errors import ParameterError

LOSSES: dict[str, type[nn.Module]] = {
    "offset-cross-entropy": losses.LossXent,
    "tau-cross-entropy": losses.TauCrossEntropyLoss,
    "cosine": losses.CosineLoss,
    "cosine-vra": losses.Cosine_VRA_Loss,
    "kr": losses.KRMulticlassLoss,
    "hkr": losses.HKRMulticlassLoss,
    "soft-hkr": losses.SoftHKRMulticlassLoss,
    "lse-hkr": losses.LseHKRMulticlassLoss,
    "emma": losses.EMMALoss,
    "logit-annealing": losses.LALoss,
    "certificate-regularized": losses.CertificateRegularizedLoss,
}


_RADII = ("eps", "offset", "min_margin")


def radius_option(name: str) -> str:
    """The option of a loss that sets how far from other classes it wants a sample to be.

    >>> from orthogonium.recipes.objectives import radius_option
    >>> radius_option("emma"), radius_option("logit-annealing")
    ('eps', 'offset')
    """
    found = [option for option in _RADII if option in loss_parameters(name)]
    if not found:
        known = [loss for loss in LOSSES if any(option in loss_parameters(loss) for option in _RADII)]
        raise ParameterError(
            f"The loss {name!r} asks for no radius that could grow. Those that do: {', '.join(known)}; or leave "
            "radius_schedule='constant'."
        )
    return found[0]


def loss_parameters(name: str) -> dict[str, inspect.Parameter]:
    """The options of a loss, by name, without `reduction`: training needs the mean."""
    if name not in LOSSES:
        raise ParameterError(f"Unknown loss {name!r}: choose one of {', '.join(LOSSES)}.")
    parameters = dict(inspect.signature(LOSSES[name]).parameters)
    parameters.pop("reduction")
    return parameters


def create_loss(
    name: str, options: Mapping[str, Any], *, n_classes: int, head: str = "classwise", lipschitz: float = 1.0
) -> nn.Module:
    """A loss of `LOSSES`; `options` go before what is known of the network: its classes, type of head and constant.

    >>> from orthogonium.recipes.objectives import create_loss
    >>> create_loss("emma", {"eps": 0.5}, n_classes=10, head="global").last_layer_type
    'global'
    """
    parameters = loss_parameters(name)
    known: dict[str, Any] = {"n_classes": n_classes, "L": lipschitz}
    if head != "unknown":
        known["last_layer_type"] = head
    arguments = {key: value for key, value in known.items() if key in parameters} | dict(options)
    required = {key for key, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    unknown, missing = sorted(arguments.keys() - parameters.keys()), sorted(required - arguments.keys())
    if unknown or missing:
        problem = f"has no option {', '.join(unknown)}" if unknown else f"needs the option {', '.join(missing)}"
        raise ParameterError(f"The loss {name!r} {problem}. Its options are {', '.join(parameters) or 'none'}.")
    try:
        loss = LOSSES[name](**arguments)
        loss(torch.zeros(2, n_classes), torch.arange(2))  # options of a wrong type show when they are used
    except TypeError as error:
        raise ParameterError(f"An option of the loss {name!r} has a wrong type: got {dict(options)}.") from error
    return loss
