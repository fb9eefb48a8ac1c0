"""Check values against types: whole numbers of any kind, and what comes from JSON or a command line."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

# type → singular, plural
_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("true or false", "true or false"),
    NoneType: ("null", "null"),
}


def as_int(value: Any) -> Any:
    """A whole number of another type (of numpy, or a tensor) as an int, and anything else, bools included, as it is.

    >>> from orthogonium.annotations import as_int
    >>> as_int(torch.tensor(8)), as_int("same")
    (8, 'same')
    """
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the annotated type, by JSON's rules: a list counts as a tuple, and true is not a number.

    >>> from orthogonium.annotations import fits
    >>> fits([3, 4], tuple[int, ...]), fits([3, 4.5], tuple[int, ...]), fits(3, float | None), fits(True, int)
    (True, False, True, False)
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind is tuple and ... not in parts:
        pairs = zip(value, parts, strict=False) if isinstance(value, list | tuple) else ()
        return isinstance(value, list | tuple) and len(value) == len(parts) and all(fits(*pair) for pair in pairs)
    if kind in (tuple, Sequence):
        return isinstance(value, list | tuple) and all(fits(element, parts[0]) for element in value)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return isinstance(value, kind or hint)


def describe(hint: Any, *, several: bool = False) -> str:
    """An annotated type in words.

    >>> from orthogonium.annotations import describe
    >>> describe(tuple[int, ...] | None)
    'a list of whole numbers, or null'
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        *most, last = (describe(part, several=several) for part in parts)
        return f"{', '.join(most)}, or {last}"
    if kind is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if kind in (tuple, Sequence):
        count = f"{len(parts)} " if kind is tuple and ... not in parts else ""
        return f"{'lists' if several else 'a list'} of {count}{describe(parts[0], several=True)}"
    if kind is Callable:
        return "a class (in Python)"
    if kind is Mapping:
        return "names with values"
    return _WORDS[hint][several]
