"""The fields of a recipe as options of a command. Note [A flag is a field]."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from orthogonium.cli.parsing import options, radii
from orthogonium.recipes.recipe import Recipe

Command = TypeVar("Command", bound=Callable[..., int])

_TYPES = get_type_hints(Recipe)
_METAVARS = {int: "N", float: "X", str: "NAME"}
# to train; the rest says how
_WHAT = ("model", "model_options", "data", "root", "extra", "extra_share", "augment", "validation")
_PLACES = {"root": "DIR", "extra": "FILE"}
_SHORT = {"model_options": ("-O",)}


def with_recipe_flags(before: str) -> Callable[[Command], Command]:
    """Give a command `f(…, **fields)` an option for each field of `Recipe`, None if it is not given.

    They are placed before its own option `before`.
    """

    def add(command: Command) -> Command:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        place = [p.name for p in own].index(before)
        flags = [_parameter(f.name) for f in fields(Recipe)]
        command.__signature__ = inspect.Signature([*own[:place], *flags, *own[place:]])  # type: ignore[attr-defined]
        return command

    return add


def fields_given(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were typed, as a recipe has them: 0 turns off what may be None."""
    found = {}
    for name, value in typed.items():
        if value is None or value is False:
            continue
        if _is_mapping(name):
            value = options(value, _flag(name))
        elif _is_radii(name):
            value = list(radii(value))
        elif value == 0 and _can_be_off(name):
            value = None
        found[name] = value
    return found


def _is_mapping(name: str) -> bool:
    return get_origin(_TYPES[name]) is Mapping


def _is_radii(name: str) -> bool:
    return get_origin(_TYPES[name]) is tuple


def _can_be_off(name: str) -> bool:
    """Whether the field is a number or None."""
    first, *others = get_args(_TYPES[name]) or (None,)
    return first in (int, float) and NoneType in others


def _flag(name: str) -> str:
    """The name of the field, in the singular for a mapping, since each use adds one entry."""
    return "--" + (name.removesuffix("s") if _is_mapping(name) else name).replace("_", "-")


def _default(name: str) -> bool | None:
    return False if _TYPES[name] is bool else None


def _parameter(name: str) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=_default(name), annotation=_option(name))


def _option(name: str) -> Any:
    kind, metavar = _kind(name)
    panel = "What to train" if name in _WHAT else "How to train"
    info = typer.Option(_flag(name), *_SHORT.get(name, ()), help=_help(name), metavar=metavar, rich_help_panel=panel)
    return Annotated[kind, info]


def _kind(name: str) -> tuple[Any, str | None]:
    """The type of the option for a field, and its placeholder in the help."""
    hint = _TYPES[name]
    if _is_mapping(name):
        return list[str] | None, "NAME=VALUE"
    if _is_radii(name):
        return list[str] | None, "RADII"
    if hint is bool:
        return bool, None
    plain = str if get_origin(hint) is Literal else (*get_args(hint), hint)[0]
    return plain | None, _PLACES.get(name, _METAVARS[plain])


def _help(name: str) -> str:
    """The first sentence about the field in the docstring of `Recipe`."""
    found = re.search(rf"^ +{name}: (.+?\.)(?=\s)", Recipe.__doc__ or "", re.MULTILINE | re.DOTALL)
    words = " ".join(found[1].split()) if found else ""  # docstrings may have been stripped
    return words[:1].upper() + words[1:] + (" 0: off." if _can_be_off(name) else "")
