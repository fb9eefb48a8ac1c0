"""The table of an audit as text, as HTML, and by rich where it is installed."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context

from orthogonium.web_page import page, table

COLUMNS = ("layer", "type", "σ_min", "σ_max", "kind", "stable rank", "factor", "bound", "guarantee", "")


def number(x: float | None, digits: int = 7) -> str:
    """A number as text; empty if there is none."""
    if x is None or math.isnan(x):
        return ""
    return "∞" if math.isinf(x) else f"{x:.{digits}g}"


def at_most(x: float, digits: int = 7) -> str:
    """An upper bound with the given number of digits, rounded up: rounded down, it would no longer be a bound.

    >>> at_most(1.0000002179), at_most(1.5), at_most(3.40561e-9, 4)
    ('1.000001', '1.5', '3.406e-09')
    """
    if math.isfinite(x):
        x = float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(x))
    return number(x, digits)


def text_table(title: str, summary: str, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """A table in plain text."""
    lines = [list(COLUMNS), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    written = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    written.insert(1, "─" * max(map(len, written)))
    return "\n".join([title, "", *written, "", summary, *(f"⚠ {note}" for note in notes)])


def html_table(rows: Sequence[Sequence[str]], notes: Sequence[str]) -> list[str]:
    """The table and the warnings as HTML; all text is escaped."""
    *columns, _ = COLUMNS  # rows with a warning are marked instead
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return [
        table(
            "Audit of every layer",
            columns,
            [row[:-1] for row in rows],
            numbers=(2, 3, 5, 6, 7),
            prose=(8,),
            names=(1,),
            marked=[i for i, row in enumerate(rows) if row[-1]],
        ),
        f"<h3>Warnings</h3><ul>{listed}</ul>" if notes else "",
    ]


def html_page(title: str, summary: str, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """A page that needs nothing else."""
    return page(title, summary, html_table(rows, notes))


def rich_table(title: str, summary: str, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> bool:
    """Print with rich, if it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    shown = Table(title=Text(title), title_justify="left")
    for column in COLUMNS:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row), style="yellow" if row[-1] else None)
    console = Console()
    console.print(shown)
    console.print(Text(summary))
    for note in notes:
        console.print(Text(f"⚠ {note}", style="yellow"))
    return True
