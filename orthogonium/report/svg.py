"""Charts as inline SVG. Colours are CSS variables of the page, so that one drawing serves light and dark."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 42  # room for the axes
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4")
_PIXELS_PER_X_TICK, _PIXELS_PER_Y_TICK = 70, 45


@dataclass(frozen=True)
class Series:
    """A line of a chart: points in order, where a NaN is a gap. `style` picks its colour and dashes."""

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
        name: read out in place of the picture.
        x_label: below the horizontal axis.
        y_label: along the vertical axis.
        size: width and height in pixels, at which text is as large as that of the page.
        percent: y is a fraction, shown from 0 to 100%.
        between: shade the area between the first two series.
    """
    width, height = size
    xs = [x for s in series for x in s.x if math.isfinite(x)]
    ys = [y for s in series for y in s.y if math.isfinite(y)]
    x_ticks = nice_ticks(min(xs, default=0.0), max(xs, default=1.0), (width - _LEFT - _RIGHT) // _PIXELS_PER_X_TICK)
    low, high = (0.0, 1.0) if percent else (min(ys, default=0.0), max(ys, default=1.0))
    y_ticks = nice_ticks(low, high, (height - _TOP - _BOTTOM) // _PIXELS_PER_Y_TICK)
    x_low, x_high = min([*xs, x_ticks[0]]), max([*xs, x_ticks[-1]])
    y_low, y_high = min(low, y_ticks[0]), max(high, y_ticks[-1])

    def px(x: float) -> float:
        return _LEFT + (x - x_low) / ((x_high - x_low) or 1.0) * (width - _LEFT - _RIGHT)

    def py(y: float) -> float:
        return height - _BOTTOM - (y - y_low) / ((y_high - y_low) or 1.0) * (height - _TOP - _BOTTOM)

    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(name)}">']
    for y in y_ticks:
        text = f"{100 * y:g}%" if percent else tick_text(y, y_ticks)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{py(y):.1f}" y2="{py(y):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{py(y) + 4:.1f}" text-anchor="end">{text}</text>')
    for x in x_ticks:
        parts.append(
            f'<line class="axis" x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{py(y_low):.1f}" y2="{py(y_low) + 4:.1f}"/>'
        )
        parts.append(
            f'<text x="{px(x):.1f}" y="{py(y_low) + 18:.1f}" text-anchor="middle">{tick_text(x, x_ticks)}</text>'
        )
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{py(y_low):.1f}" y2="{py(y_low):.1f}"/>')
    middle_x, middle_y = (_LEFT + width - _RIGHT) / 2, (_TOP + height - _BOTTOM) / 2
    parts.append(
        f'<text class="label" x="{middle_x:.1f}" y="{height - 6}" text-anchor="middle">{html.escape(x_label)}</text>'
    )
    parts.append(
        f'<text class="label" transform="translate(11 {middle_y:.1f}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y_label)}</text>"
    )
    if between and len(series) > 1:
        there = [(px(x), py(y)) for x, y in zip(series[0].x, series[0].y, strict=True)]
        back = [(px(x), py(y)) for x, y in zip(series[1].x, series[1].y, strict=True)][::-1]
        parts.append(f'<path class="between" d="{_path([there + back])}Z"/>')
    for s in series:
        runs = _runs([(px(x), py(y)) for x, y in zip(s.x, s.y, strict=True)])
        parts.append(f'<path class="line s{s.style}"{_dash(s.style)} d="{_path(runs)}"/>')
        lone = [run[0] for run in runs if len(run) == 1]
        dots = [point for run in runs for point in run] if s.dots else lone
        parts += [f'<circle class="dot s{s.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in dots]
    return "".join([*parts, "</svg>"])


def legend(series: Sequence[Series]) -> str:
    """The names of the lines, for above a chart."""
    items = (
        f'<li><svg class="swatch" viewBox="0 0 26 10" aria-hidden="true"><path class="line s{s.style}"{_dash(s.style)} '
        f'd="M1 5H25"/></svg>{html.escape(s.label)}</li>'
        for s in series
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def sparkline(values: Sequence[float], *, name: str, top: float, size: tuple[int, int] = (180, 40)) -> str:
    """Values in order from left to right, from 0 to `top`, with a mark at 1."""
    width, height = size
    count = max(len(values) - 1, 1)

    def py(y: float) -> float:
        return height - 3 - y / top * (height - 6)

    spread = list(values) * 2 if len(values) == 1 else values  # one value is a level
    points = [(1 + i / count * (width - 2), py(y)) for i, y in enumerate(spread)]
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(name)}">'
        f'<line class="axis" x1="0" x2="{width}" y1="{py(0):.1f}" y2="{py(0):.1f}"/>'
        f'<line class="one" x1="0" x2="{width}" y1="{py(1):.1f}" y2="{py(1):.1f}"/>'
        f'<path class="line s0" d="{_path([points])}"/></svg>'
    )


def range_bar(low: float, high: float, *, name: str, top: float, size: tuple[int, int] = (180, 40)) -> str:
    """An interval known only by its ends, on the scale of `sparkline`."""
    width, height = size

    def py(y: float) -> float:
        return height - 3 - y / top * (height - 6)

    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(name)}">'
        f'<rect class="between" x="0" width="{width}" y="{py(high):.1f}" height="{max(py(low) - py(high), 1):.1f}"/>'
        f'<line class="axis" x1="0" x2="{width}" y1="{py(0):.1f}" y2="{py(0):.1f}"/>'
        f'<line class="one" x1="0" x2="{width}" y1="{py(1):.1f}" y2="{py(1):.1f}"/></svg>'
    )


def nice_ticks(low: float, high: float, at_most: int) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten that span [low, high], or nearly so.

    >>> from orthogonium.report.svg import nice_ticks
    >>> nice_ticks(0.0, 1.0, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    rough = (high - low) / max(at_most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def tick_text(x: float, ticks: Sequence[float]) -> str:
    """A tick with as many decimals as its neighbours need."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    decimals = next((d for d in range(6) if abs(round(step, d) - step) < step * 1e-6), 6)
    return f"{x:.3g}" if max(map(abs, ticks)) >= 1e5 or step < 1e-4 else f"{x:.{decimals}f}"


def _dash(style: int) -> str:
    pattern = _DASHES[style % len(_DASHES)]
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
