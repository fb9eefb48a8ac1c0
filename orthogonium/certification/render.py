"""Reports as text, as HTML, and by rich where it is installed."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

COLUMNS = ("layer", "type", "σ_min", "σ_max", "kind", "stable rank", "factor", "bound", "guarantee", "")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #d5d5d5; --warn: #fff3d6; --head: #f3f3f3; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e6e6; --paper: #16181b; --line: #3a3d42; --warn: #4a3b12; --head: #22252a; }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }}
th {{ background: var(--head); }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
tr.warn {{ background: var(--warn); }}
</style></head><body>
<h1>{title}</h1><p>{summary}</p>
<div><table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table></div>
{notes}
</body></html>
"""


def number(x: float | None, digits: int = 7) -> str:
    """A number, or nothing."""
    if x is None or math.isnan(x):
        return ""
    return "∞" if math.isinf(x) else f"{x:.{digits}g}"


def text_table(
    title: str, summary: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    """A table in plain text."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    table = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    table.insert(1, "─" * max(map(len, table)))
    return "\n".join([title, "", *table, "", summary, *(f"⚠ {note}" for note in notes)])


def html_page(
    title: str, summary: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    """A page that needs nothing else; every text is escaped."""
    body = []
    for row in rows:
        cells = (f"<td{_number_class(cell)}>{html.escape(cell)}</td>" for cell in row)
        style = ' class="warn"' if row[-1] else ""
        body.append(f"<tr{style}>{''.join(cells)}</tr>")
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return _PAGE.format(
        title=html.escape(title),
        summary=html.escape(summary),
        head="".join(f"<th>{html.escape(c)}</th>" for c in columns),
        body="\n".join(body),
        notes=f"<h2>Warnings</h2><ul>{listed}</ul>" if notes else "",
    )


def _number_class(cell: str) -> str:
    return ' class="number"' if cell[:1].isdigit() and cell.replace(".", "").replace("e-", "").isdigit() else ""


def rich_table(title: str, summary: str, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> bool:
    """Print by rich, if it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    table = Table(title=Text(title), title_justify="left")
    for column in COLUMNS:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row), style="yellow" if row[-1] else None)
    console = Console()
    console.print(table)
    console.print(Text(summary))
    for note in notes:
        console.print(Text(f"⚠ {note}", style="yellow"))
    return True
