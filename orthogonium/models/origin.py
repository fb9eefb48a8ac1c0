"""How a model was made: its name and options. A model of `create_model` remembers, and so do its copies and pickles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from orthogonium.layers import spread_constant
from orthogonium.layers.conv.circle import settle_image_sizes
from orthogonium.models.registry import check_options, find

_ATTRIBUTE = "_origin"


@dataclass(frozen=True)
class Origin:
    """What `create_model` was asked for.

    Attributes:
        name: name of the architecture.
        image_shape: (channels, height, width).
        n_classes: number of logits.
        lipschitz: factor by which the constant of the network was multiplied.
        options: options as JSON values, including all defaults that are not code.
        code: names of the options that were given as code (classes, functions), which are not remembered: a pickle
            could not hold them.
    """

    name: str
    image_shape: tuple[int, ...]
    n_classes: int
    lipschitz: float
    options: Mapping[str, Any]
    code: tuple[str, ...] = ()


def build(
    name: str, image_shape: Sequence[int], n_classes: int, options: Mapping[str, Any], lipschitz: float = 1.0
) -> nn.Module:
    """The model of the registry with random weights, which remembers its origin."""
    entry = find(name)
    check_options(entry, options)
    model = entry.build(image_shape, n_classes, **options)
    model = spread_constant(settle_image_sizes(model, image_shape), lipschitz)
    known = {k: v for k, v in {**entry.defaults(image_shape), **options}.items() if is_data(v)}
    origin = Origin(
        name,
        tuple(image_shape),
        n_classes,
        float(lipschitz),
        {k: as_data(v) for k, v in known.items()},
        tuple(k for k in options if k not in known),
    )
    object.__setattr__(model, _ATTRIBUTE, origin)
    return model


def origin_of(model: nn.Module) -> Origin | None:
    """How the model was made, if by `create_model`; wrappers around it were not."""
    return vars(model).get(_ATTRIBUTE)


def is_data(value: Any) -> bool:
    """Whether JSON can hold a value without loss (except for tuples, which become lists)."""
    if isinstance(value, list | tuple):
        return all(map(is_data, value))
    return value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def as_data(value: Any) -> Any:
    """A value as JSON has it, independent of the original: later changes to a list do not affect it."""
    return [as_data(v) for v in value] if isinstance(value, list | tuple) else value
