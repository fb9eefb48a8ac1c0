"""The models by name. An architecture is a function in a file of its own, registered under the name of the function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, get_type_hints

from torch import nn

from orthogonium.annotations import describe, fits
from orthogonium.errors import ParameterError


@dataclass(frozen=True)
class ModelEntry:
    """What is known about a model before it is built.

    Attributes:
        name: what `create_model` takes.
        summary: one sentence.
        provenance: paper and authors.
        image_shape: the default, (channels, height, width).
        n_classes: the default number of classes.
        options: the keywords of `create_model` for this model, with their defaults.
        large_options: the defaults that replace those for images of more than `SMALL_IMAGE` pixels.
        types: the types of the options.
        build: the function that builds it from an image shape, a number of classes and options.
    """

    name: str
    summary: str
    provenance: str
    image_shape: tuple[int, int, int]
    n_classes: int
    options: Mapping[str, Any]
    large_options: Mapping[str, Any]
    types: Mapping[str, Any]
    build: Callable[..., nn.Module]

    def defaults(self, image_shape: Sequence[int]) -> dict[str, Any]:
        """The options of a model for images of this shape, unless others are given."""
        return {**self.options, **(self.large_options if is_large(image_shape) else {})}


REGISTRY: dict[str, ModelEntry] = {}
"""All models by name."""

SMALL_IMAGE = 64 * 64
"""Pixels up to which a network for small images keeps its resolution; beyond them it has the stem and pooling of
`large_options`: a dense layer behind flattened images of 224×224 pixels would have hundreds of millions of weights."""


def register(
    *, image_shape: tuple[int, int, int], n_classes: int = 10, large: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Enter a function `(image shape, number of classes, options…)` under its own name.

    The first line of its docstring is the summary; the second paragraph of its module's docstring is the provenance. If
    the default of an argument is a dataclass, its fields are options, with the values of that default. `large` holds
    other defaults for large images; the function itself keeps its own.
    """

    def enter(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        name = build.__name__
        shape, *rest = inspect.signature(build).parameters.values()
        shared: dict[str, Any] = {p.name: p.default for p in rest if is_dataclass(p.default)}
        options = {p.name: p.default for p in rest if p.name != "n_classes" and p.name not in shared}
        types = {option: hint for option, hint in get_type_hints(build).items() if option in options}
        owner: dict[str, str] = {}  # option → the argument it is a field of
        for argument, default in shared.items():
            types |= get_type_hints(type(default))
            options |= {f.name: getattr(default, f.name) for f in fields(default)}
            owner |= {f.name: argument for f in fields(default)}
        assert large.keys() <= options.keys()

        def make(image_shape: Sequence[int], n_classes: int, **chosen: Any) -> nn.Module:
            if is_large(image_shape):
                chosen = {**large, **chosen}
            arguments = {option: value for option, value in chosen.items() if option not in owner}
            for argument, default in shared.items():
                changes = {option: value for option, value in chosen.items() if owner.get(option) == argument}
                arguments[argument] = replace(default, **changes)
            return build(**{shape.name: image_shape, "n_classes": n_classes, **arguments})

        paragraphs = (inspect.getdoc(inspect.getmodule(build)) or "").split("\n\n")
        REGISTRY[name] = ModelEntry(
            name,
            (inspect.getdoc(build) or "").partition("\n")[0],
            " ".join(paragraphs[1].split()),
            image_shape,
            n_classes,
            MappingProxyType(options),
            MappingProxyType(dict(large)),
            MappingProxyType(types),
            make,
        )
        return build

    return enter


def is_large(image_shape: Sequence[int]) -> bool:
    """Whether images (channels, height, width) have more than `SMALL_IMAGE` pixels.

    Shapes that are not those of an image are not large: the model says what is wrong with them.
    """
    sides = tuple(image_shape)[1:]
    return len(sides) == 2 and all(isinstance(n, int) for n in sides) and sides[0] * sides[1] > SMALL_IMAGE


def member(family: Callable[..., nn.Module], name: str, summary: str, **defaults: Any) -> Callable[..., nn.Module]:
    """A member of a family of models: the function `name`, whose options have these `defaults` instead."""

    @functools.wraps(family)
    def build(*arguments: Any, **options: Any) -> nn.Module:
        return family(*arguments, **{**defaults, **options})

    parameters = inspect.signature(family).parameters
    assert defaults.keys() <= parameters.keys()
    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"{summary}\n\n{inspect.getdoc(family)}"
    build.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(default=defaults.get(p.name, p.default)) for p in parameters.values()]
    )
    return build


def find(name: str) -> ModelEntry:
    """The entry of this name, or an error that lists the known ones."""
    if name not in REGISTRY:
        raise ParameterError(f"There is no model {name!r}. Models: {', '.join(sorted(REGISTRY))}.")
    return REGISTRY[name]


def check_options(entry: ModelEntry, options: Mapping[str, Any]) -> None:
    """Refuse what the model does not take."""
    unknown = [name for name in options if name not in entry.options]
    if unknown:
        others = [name for name, other in sorted(REGISTRY.items()) if set(unknown) <= set(other.options)]
        hint = f" Models that have: {', '.join(others)}." if others else ""
        raise ParameterError(
            f"Model {entry.name!r} has no option {', '.join(unknown)}. Its options: {', '.join(entry.options)}.{hint}"
        )
    for name, value in options.items():
        if not fits(value, entry.types[name]):
            kind = describe(entry.types[name])
            raise ParameterError(f"Option {name} of model {entry.name!r} is {kind}: got {value!r}.")
