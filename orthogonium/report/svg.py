"""Charts as inline SVG. Colours are CSS variables of the page, so one drawing works in light and dark mode."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from orthogonium.report.axes import Axes

_DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4")
_COLOURS = 5  # of the page


@dataclass(frozen=True)
class Series:
    """A line of a chart: points in order, where a NaN is a gap. `style`, below 25, picks its colour and dashes."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: int = 0
    dots: bool = False


def line_chart(
    series: Sequence[Series],
    *,
    name: str,
    x_label: str,
    y_label: str,
    size: tuple[int, int] = (360, 250),
    percent: bool = False,
    between: bool = False,
) -> str:
    """Lines over common axes.

    Args:
        series: the lines.
        name: text that screen readers read in place of the picture.
        x_label: below the horizontal axis.
        y_label: along the vertical axis.
        size: width and height in pixels, at which text is as large as on the page.
        percent: whether y is a fraction, shown from 0 to 100%.
        between: whether to shade the area between the first two series.
    """
    xs = [x for s in series for x in s.x if math.isfinite(x)]
    ys = [y for s in series for y in s.y if math.isfinite(y)]
    axes = Axes.around(xs, ys, size, percent)
    px, py = axes.px, axes.py
    parts = [axes.svg(name, x_label, y_label)]
    if between and len(series) > 1:
        there = [(px(x), py(y)) for x, y in zip(series[0].x, series[0].y, strict=True)]
        back = [(px(x), py(y)) for x, y in zip(series[1].x, series[1].y, strict=True)][::-1]
        parts.append(f'<path class="between" d="{_path([there + back])}Z"/>')
    for s in series:
        runs = _runs([(px(x), py(y)) for x, y in zip(s.x, s.y, strict=True)])
        parts.append(f'<path class="line {colour(s.style)}"{_dash(s.style)} d="{_path(runs)}"/>')
        lone = [run[0] for run in runs if len(run) == 1]
        dots = [point for run in runs for point in run] if s.dots else lone
        parts += [f'<circle class="dot {colour(s.style)}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in dots]
    return "".join([*parts, "</svg>"])


def legend(series: Sequence[Series]) -> str:
    """The names of the lines, to be placed above a chart."""
    items = (
        '<li><svg class="swatch" viewBox="0 0 26 10" aria-hidden="true">'
        f'<path class="line {colour(s.style)}"{_dash(s.style)} d="M1 5H25"/></svg>{html.escape(s.label)}</li>'
        for s in series
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def sparkline(values: Sequence[float], *, name: str, top: float, size: tuple[int, int] = (180, 40)) -> str:
    """Values in order from left to right, from 0 to `top`, with a mark at 1."""
    width = size[0]
    count = max(len(values) - 1, 1)
    spread = list(values) * 2 if len(values) == 1 else values  # one value is a level
    points = [(1 + i / count * (width - 2), _spark_y(y, top, size)) for i, y in enumerate(spread)]
    return _spark(f'<path class="line s0" d="{_path([points])}"/>', name, top, size)


def spectrum_ends(low: float, high: float, *, name: str, top: float, size: tuple[int, int] = (180, 40)) -> str:
    """The first and the last of sorted values, on the scale of `sparkline`; if the last one is NaN it is left out."""
    reach = 22  # pixels of a level
    levels = [((1, reach), high), ((size[0] - reach, size[0] - 1), low)]
    runs = [[(x, _spark_y(y, top, size)) for x in ends] for ends, y in levels if math.isfinite(y)]
    return _spark(f'<path class="line s0" d="{_path(runs)}"/>', name, top, size)


def _spark_y(y: float, top: float, size: tuple[int, int]) -> float:
    return size[1] - 3 - y / top * (size[1] - 6)


def _spark(content: str, name: str, top: float, size: tuple[int, int]) -> str:
    width, height = size
    zero, one = (_spark_y(y, top, size) for y in (0.0, 1.0))
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(name)}">'
        f'<line class="axis" x1="0" x2="{width}" y1="{zero:.1f}" y2="{zero:.1f}"/>'
        f'<line class="one" x1="0" x2="{width}" y1="{one:.1f}" y2="{one:.1f}"/>{content}</svg>'
    )


def colour(style: int) -> str:
    """The class of the page's style sheet that colours this style."""
    return f"s{style % _COLOURS}"


def _dash(style: int) -> str:
    pattern = _DASHES[(style + style // _COLOURS) % len(_DASHES)]  # colours recur with other dashes
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def _runs(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """The pieces between gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _path(runs: Sequence[Sequence[tuple[float, float]]]) -> str:
    return "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in runs)
