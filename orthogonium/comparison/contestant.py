"""Who takes part: a method of this library, or a convolution of any other one."""

from __future__ import annotations

import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from orthogonium.errors import ParameterError
from orthogonium.layers.lipschitz import layer_class
from orthogonium.methods import METHODS
from orthogonium.models import create_model, describe_model
from orthogonium.recipes.recipe import Recipe


@dataclass(frozen=True)
class Contestant:
    """A method by its name in `METHODS`, or a class with the arguments of `nn.Conv2d` by its import path.

    Attributes:
        name: "aoc", or "package.module:Class".
        kind: "method" or "conv".

    >>> from orthogonium.comparison import Contestant
    >>> Contestant.method("aoc").name, Contestant.conv("torch.nn:Conv2d").kind
    ('aoc', 'conv')
    """

    name: str
    kind: Literal["method", "conv"]

    @classmethod
    def method(cls, name: str) -> Contestant:
        """A method of `METHODS` that has convolutions of images."""
        known = [key for key, entry in METHODS.items() if 2 in entry.conv]
        if name not in known:
            raise ParameterError(f"There is no method {name!r} for images. Known: {', '.join(known)}.")
        return cls(name, "method")

    @classmethod
    def conv(cls, place: str) -> Contestant:
        """A class of any package, imported to check that it exists."""
        found = cls(place, "conv")
        found.find_class()
        return found

    @property
    def folder(self) -> str:
        """The name in a form that suits a folder."""
        return re.sub(r"[^\w.-]+", "-", self.name)

    def recipe(self, base: Recipe, seed: int) -> Recipe:
        """The recipe of its run. For a method, the recipe names it, so the checkpoint can be read by itself."""
        if self.kind == "conv":
            return base.replace(seed=seed)
        return base.replace(seed=seed, model_options={**base.model_options, "method": self.name})

    def network(self, recipe: Recipe, image_shape: tuple[int, int, int], n_classes: int) -> nn.Module | None:
        """The network to train, or None if the recipe describes it completely."""
        if self.kind == "method":
            return None
        return create_model(recipe.model, image_shape, n_classes, conv=self.find_class(), **dict(recipe.model_options))

    def find_class(self) -> Callable[..., nn.Module]:
        """The class that a contestant of kind "conv" names."""
        return _find_class(self.name)

    def check_network(self, model: nn.Module) -> None:
        """Refuse a network without a single convolution of the method: its figures would be those of another method."""
        if self.kind == "conv":
            return
        own = layer_class(METHODS[self.name].conv[2])
        layers = convolutions(model)
        if not any(type_before_parametrizations(layer) is own for layer in layers):
            others = ", ".join(sorted({_class_name(layer) for layer in layers})) or "none"
            raise ParameterError(
                f"No convolution of this network is of method {self.name!r} (its convolutions: {others}), which keeps "
                "channels and pixels. Use a network with such convolutions: depth=2 or more for aocnet_tiny."
            )


def check_model(recipe: Recipe) -> None:
    """Refuse an architecture whose layers cannot be chosen, or are chosen already."""
    options = describe_model(recipe.model).options
    missing = [name for name in ("method", "conv") if name not in options]
    if missing:
        raise ParameterError(
            f"The model {recipe.model!r} has no option {' and '.join(missing)}, by which contestants enter. Use "
            "aocnet_tiny."
        )
    given = [name for name in ("method", "conv") if name in recipe.model_options]
    if given:
        raise ParameterError(f"The model option {', '.join(given)} is what is compared: leave it out.")


def convolutions(model: nn.Module) -> list[nn.Module]:
    """The layers that convolve; a block made of several convolutions counts as one."""
    known = {layer_class(entry.conv[2]) for entry in METHODS.values() if 2 in entry.conv}

    def walk(module: nn.Module) -> Iterator[nn.Module]:
        if type_before_parametrizations(module) in known or isinstance(module, nn.Conv2d):
            yield module
        else:
            for child in module.children():
                yield from walk(child)

    return list(walk(model))


def layer_counts(model: nn.Module) -> dict[str, int]:
    """The number of convolutions of each class: methods that keep channels and pixels leave some to others."""
    return dict(Counter(_class_name(layer) for layer in convolutions(model)))


def _class_name(layer: nn.Module) -> str:
    return type_before_parametrizations(layer).__name__


def _find_class(place: str) -> Callable[..., nn.Module]:
    if place.count(":") != 1:
        raise ParameterError(f"A convolution is named as package.module:Class, such as torch.nn:Conv2d: got {place!r}.")
    try:
        found = pkgutil.resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise ParameterError(
            f"There is no {place}: {error}. It is looked for in this folder and on Python's path."
        ) from error
    if not callable(found):
        raise ParameterError(f"{place} is no class: got {found!r}.")
    return found
