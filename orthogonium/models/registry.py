"""The models by name. An architecture is a function in a file of its own, registered under the name of the function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

from torch import nn

from orthogonium.annotations import describe, fits
from orthogonium.errors import ParameterError

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class ModelEntry:
    """What is known about a model before it is built.

    Attributes:
        name: what `create_model` takes.
        summary: one sentence.
        provenance: paper and authors.
        image_shape: the default one, (channels, height, width).
        n_classes: the default number of classes.
        options: the keywords of `create_model` for this model, with their defaults.
        types: what they may be.
        build: the function that makes it, of an image shape, a number of classes and options.
    """

    name: str
    summary: str
    provenance: str
    image_shape: tuple[int, int, int]
    n_classes: int
    options: Mapping[str, Any]
    types: Mapping[str, Any]
    build: Callable[..., nn.Module]


REGISTRY: dict[str, ModelEntry] = {}
"""All models by name."""


def register(
    name: str | None = None,
    *,
    image_shape: tuple[int, int, int],
    n_classes: int = 10,
    summary: str | None = None,
    **defaults: Any,
) -> Callable[[Builder], Builder]:
    """Enter a function `(image shape, number of classes, options…)` under its own name, or this one.

    The first line of its docstring is the summary, if no other is given; the second paragraph of the docstring of its
    module is the provenance. `defaults` replace those of the options: the sizes of a family have names of their own.
    """

    def enter(build: Builder) -> Builder:
        key = name or build.__name__
        shape, *rest = inspect.signature(build).parameters.values()
        options = {p.name: defaults.get(p.name, p.default) for p in rest if p.name != "n_classes"}
        assert defaults.keys() <= options.keys()

        def make(image_shape: Sequence[int], n_classes: int, **chosen: Any) -> nn.Module:
            return build(**{shape.name: image_shape, "n_classes": n_classes, **defaults, **chosen})

        paragraphs = (inspect.getdoc(inspect.getmodule(build)) or "").split("\n\n")
        REGISTRY[key] = ModelEntry(
            key,
            summary or (inspect.getdoc(build) or "").partition("\n")[0],
            " ".join(paragraphs[1].split()),
            image_shape,
            n_classes,
            MappingProxyType(options),
            MappingProxyType({option: hint for option, hint in get_type_hints(build).items() if option in options}),
            make,
        )
        return build

    return enter


def find(name: str) -> ModelEntry:
    """The entry of this name, or an error that lists the known ones."""
    if name not in REGISTRY:
        raise ParameterError(f"There is no model {name!r}. Models: {', '.join(sorted(REGISTRY))}.")
    return REGISTRY[name]


def check_options(entry: ModelEntry, options: Mapping[str, Any]) -> None:
    """Refuse what the model does not take."""
    unknown = [name for name in options if name not in entry.options]
    if unknown:
        raise ParameterError(
            f"Model {entry.name!r} has no option {', '.join(unknown)}. Its options: {', '.join(entry.options)}."
        )
    for name, value in options.items():
        if not fits(value, entry.types[name]):
            kind = describe(entry.types[name])
            raise ParameterError(f"Option {name} of model {entry.name!r} is {kind}: got {value!r}.")
