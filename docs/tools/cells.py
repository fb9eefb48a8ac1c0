"""Cells of tables that phones can show: those with sentences have a class, and long code may break at its dots."""

import re
from typing import Any

_CELL = re.compile(r"<td>(.*?)</td>", re.S)
_BREAK = re.compile(r"(?<=[._,/=(])(?=\w)")
_CODE = re.compile(r"<code>([^<]{20,})</code>")


def cells(html: str) -> str:
    """The page, with `<td class="long">` for cells of 16 characters or more, and `<wbr>` in their code."""

    def code(found: re.Match[str]) -> str:
        return f"<code>{_BREAK.sub('<wbr>', found[1])}</code>"

    def cell(found: re.Match[str]) -> str:
        if len(re.sub(r"<[^>]*>", "", found[1])) < 16:
            return found[0]
        return f'<td class="long">{_CODE.sub(code, found[1])}</td>'

    return _CELL.sub(cell, html)


def on_page_content(html: str, **_: Any) -> str:
    """After Markdown has become HTML."""
    return cells(html)
