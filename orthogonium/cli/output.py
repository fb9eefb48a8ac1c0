"""What commands print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_NUMERIC = re.compile(r"([-+]?[\d.]+(e[-+]?\d+)?%?( of \d+)?)?")


def console(*, stderr: bool = False) -> Console:
    """Where to print: plain text unless it is a terminal."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; columns of numbers align right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = [[str(cell) for cell in row] for row in rows]
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        numeric = bool(rows) and all(_NUMERIC.fullmatch(row[i]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def print_json(value: Any) -> None:
    """Print one JSON object; ∞ and NaN, which JSON does not have, are an error."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def percent(x: float) -> str:
    """A fraction with one decimal, in percent."""
    return f"{100 * x:.1f}%"
