"""Values as they are written on a command line."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from orthogonium.errors import ParameterError


def radii(texts: Sequence[str]) -> tuple[float, ...]:
    """Radii from numbers or fractions; each text holds one, or several separated by commas.

    >>> from orthogonium.cli.parsing import radii
    >>> radii(["0.25,0.5", "36/255"])
    (0.25, 0.5, 0.1411...)
    """
    return tuple(_radius(part.strip()) for text in texts for part in text.split(","))


def _radius(text: str) -> float:
    above, _, below = text.partition("/")
    try:
        value = float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise ParameterError(f"A radius is a number ≥ 0, such as 0.25 or 36/255: got {text!r}.")
    return value


def options(texts: Sequence[str], flag: str) -> dict[str, Any]:
    """A mapping from texts `name=value`; a value is JSON, or else the text itself.

    >>> from orthogonium.cli.parsing import options
    >>> options(["width=64", "method=aoc", "blocks=[2, 2]"], "--model-option")
    {'width': 64, 'method': 'aoc', 'blocks': [2, 2]}
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise ParameterError(f"{flag} takes NAME=VALUE, such as width=64: got {text!r}.")
        try:
            found[name] = json.loads(value)
        except ValueError:  # also raised for a number too long to read
            found[name] = value
    return found
