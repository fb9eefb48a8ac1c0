"""The HTML frame of reports and audits: one self-contained page for light and dark themes, wide and narrow screens."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

_STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f5f6f8; --ink: #1b1f24; --muted: #57606a; --rule: #d5d9df; --good: #0b6b3a; --bad: #b3261e;
  --warn: #fff1cc; --s0: #1f5fbf; --s1: #b04600; --s2: #00705a; --s3: #7a3fb0; --s4: #8a1f5c; --shade: #1f5fbf26;
  --head: #1b1f240b; --edge: #1b1f2440; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171b; --card: #1e2329; --ink: #e8eaed; --muted: #a3acb7; --rule: #3a424c; --good: #6fd69b; --bad: #ff9d94;
  --warn: #453711; --s0: #7db4ff; --s1: #ffab66; --s2: #5fd3b5; --s3: #cfa8f7; --s4: #ff9ecb; --shade: #7db4ff2e;
  --head: #e8eaed0d; --edge: #e8eaed4d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1.5rem 1.25rem 4rem; font: 16px/1.55 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .5rem 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.25rem 0 .5rem; }
p { max-width: 46rem; margin: .5rem 0; }
.muted, figcaption, .legend { color: var(--muted); }
.muted, figcaption { font-size: .9rem; }
.cards { display: grid; gap: .75rem; margin: 1.5rem 0 0; padding: 0; grid-template-columns: repeat(auto-fit,
  minmax(max(10.25rem, (100% - (var(--columns) - 1) * .75rem) / var(--columns)), 1fr)); }
.cards div { background: var(--card); border-radius: .6rem; padding: .8rem 1rem; }
.cards dt { font-size: .85rem; color: var(--muted); line-height: 1.3; }
.cards dd { margin: .15rem 0 0; font-size: 1.65rem; font-weight: 650; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.cards small { display: block; font-size: .8rem; font-weight: 400; color: var(--muted); line-height: 1.3; }
.good { color: var(--good); } .bad { color: var(--bad); }
figure { margin: 1rem 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1rem 2rem; }
.pair figure { margin: 0; display: grid; grid-template-rows: subgrid; grid-row: span 2; row-gap: 0; }
.pair .legend { align-self: end; }
.chart { display: block; width: 100%; height: auto; max-height: 30rem; }
.narrow { display: none; }
svg text { font: 12px system-ui, sans-serif; fill: var(--muted); }
svg .label { fill: var(--ink); }
.grid { stroke: var(--rule); stroke-width: 1; opacity: .7; }
.axis { stroke: var(--muted); stroke-width: 1; }
.one { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 2 3; }
.line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.line.s0 { stroke: var(--s0); } .line.s1 { stroke: var(--s1); }
.line.s2 { stroke: var(--s2); } .line.s3 { stroke: var(--s3); } .line.s4 { stroke: var(--s4); }
.dot.s0 { fill: var(--s0); } .dot.s1 { fill: var(--s1); } .dot.s2 { fill: var(--s2); } 
.dot.s3 { fill: var(--s3); } .dot.s4 { fill: var(--s4); }
.between { fill: var(--shade); }
.legend { display: flex; flex-wrap: wrap; gap: .15rem 1.4rem; list-style: none; margin: .5rem 0; padding: 0;
  font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: .5rem; }
.swatch { width: 26px; height: 10px; flex: none; }
.spark { display: block; width: 180px; height: 40px; }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: .5rem; background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--edge), transparent) left / 1rem 100% no-repeat scroll,
  linear-gradient(to left, var(--edge), transparent) right / 1rem 100% no-repeat scroll; }
.more:not(.wide-table) { display: none; }
.more { margin: .5rem 0 .25rem; font-size: .85rem; color: var(--muted); }
.scroll:focus-visible { outline: 2px solid var(--s0); }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { padding: .35rem .75rem; border-bottom: 1px solid var(--rule); text-align: left; white-space: nowrap; }
td.text { white-space: normal; min-width: 12rem; }
.name { white-space: normal; min-width: 9rem; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { background: var(--head); font-weight: 600; white-space: normal; overflow-wrap: normal; }
th:first-child { position: sticky; left: 0; }
thead th:first-child { background: var(--card); }
tbody th { font-weight: 500; background: var(--paper); }
tr.warn th { background: var(--warn); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.warn { background: var(--warn); }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.6rem, 1fr)); gap: .75rem;
  padding: 0; margin: 0;
  list-style: none; }
.samples.fooled { grid-template-columns: repeat(auto-fill, minmax(min(100%, 15.5rem), 1fr)); gap: 1rem 1.25rem; }
.samples.fooled .images { display: grid; grid-template-columns: repeat(3, 1fr); gap: .3rem; }
.samples img { width: 100%; aspect-ratio: 1; object-fit: contain; image-rendering: pixelated; border-radius: .35rem;
  border: 1px solid var(--rule); background: #000; display: block; }
.samples span { display: block; font-size: .82rem; line-height: 1.35; color: var(--muted); }
.samples span:first-of-type { color: var(--ink); font-weight: 600; margin-top: .3rem; }
details { margin: .75rem 0; } summary { cursor: pointer; }
code, pre { font: .85rem/1.5 ui-monospace, monospace; }
pre { background: var(--card); padding: .8rem 1rem; border-radius: .5rem; overflow-x: auto; }
@media (max-width: 40rem) {
  body { padding: 1rem 1rem 3rem; } h1 { font-size: 1.4rem; } .wide { display: none; } .narrow { display: block; }
  .more:not(.wide-table) { display: block; } .name { min-width: 7rem; }
  .samples.fooled { grid-template-columns: 1fr 1fr; }
  .cards { grid-template-columns: 1fr 1fr; } .cards dd { font-size: 1.35rem; }
  .cards div:last-child:nth-child(odd) { grid-column: 1 / -1; }
}
@media print { .scroll { overflow: visible; } }
"""


def page(title: str, subtitle: str, sections: Sequence[str]) -> str:
    """A whole document. `sections` are HTML, the rest is text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{html.escape(title)}</title><link rel="icon" href="data:,">\n<style>{_STYLE}</style></head>\n<body>\n'
        f'<header><h1>{html.escape(title)}</h1><p class="muted">{html.escape(subtitle)}</p></header>\n<main>\n'
        + "\n".join(sections)
        + "\n</main>\n</body></html>\n"
    )


def section(identifier: str, title: str, text: str, *content: str) -> str:
    """A titled part of the page. `content` is HTML, the rest is text."""
    lead = f"<p>{html.escape(text)}</p>" if text else ""
    return f'<section id="{identifier}"><h2>{html.escape(title)}</h2>{lead}\n' + "\n".join(content) + "</section>"


_IN_A_ROW = 6  # cards, at most


def cards(found: Sequence[tuple[str, str, str, str]]) -> str:
    """Key numbers in even rows: a name, a value, a note, and a style ("plain", "good" or "bad") for each."""
    rows = -(-len(found) // _IN_A_ROW)
    items = (
        f'<div><dt>{html.escape(name)}</dt><dd class="{style}">{html.escape(value)}'
        f"<small>{html.escape(note)}</small></dd></div>"
        for name, value, note, style in found
    )
    return f'<dl class="cards" style="--columns: {-(-len(found) // rows)}">{"".join(items)}</dl>'


_NARROW, _WIDE = 3, 10  # columns that fit a phone, and most screens
_LONG = 16  # characters of a name that may need more than a line


def table(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    prose: Sequence[int] = (),
    names: Sequence[int] = (),
    drawn: Sequence[int] = (),
    marked: Sequence[int] = (),
) -> str:
    """A table that scrolls sideways on narrow screens, and says so there.

    Args:
        name: label for screen readers.
        columns: column names; empty for a table without a header.
        rows: text; the first cell names its row.
        numbers: columns to align right.
        prose: columns whose text may be broken into lines.
        names: columns of names; long ones may be broken, as in the first column.
        drawn: columns that hold HTML.
        marked: rows to highlight.
    """

    def style(column: int) -> str:
        return ' class="number"' if column in numbers else ' class="text"' if column in prose else ""

    head = "".join(f'<th scope="col"{style(i)}>{html.escape(c)}</th>' for i, c in enumerate(columns))
    body = []
    for index, row in enumerate(rows):
        cells = [
            _name(cell, 'th scope="row"' if i == 0 else "td")
            if i == 0 or i in names
            else f"<td{style(i)}>{cell if i in drawn else html.escape(cell)}</td>"
            for i, cell in enumerate(row)
        ]
        start = '<tr class="warn">' if index in marked else "<tr>"
        body.append(f"{start}{''.join(cells)}</tr>")
    head = f"<thead><tr>{head}</tr></thead>" if columns else ""
    count = len(rows[0]) if rows else 0
    wide = " wide-table" if count > _WIDE else ""
    more = f'<p class="more{wide}">More columns: scroll sideways →</p>' if count > _NARROW else ""
    return (
        f'{more}<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(name)}"><table>{head}'
        f"<tbody>\n{''.join(body)}\n</tbody></table></div>"
    )


def _name(cell: str, tag: str) -> str:
    if len(cell) <= _LONG:
        return f"<{tag}>{html.escape(cell)}</{tag[:2]}>"
    return f'<{tag} class="name">{_breakable(cell)}</{tag[:2]}>'


def _breakable(name: str) -> str:
    """A name that may be broken into lines after its dots and underscores, and before its capitals."""
    return re.sub(r"(?<=[._])(?=\w)|(?<=[a-z])(?=[A-Z])", "<wbr>", html.escape(name))
