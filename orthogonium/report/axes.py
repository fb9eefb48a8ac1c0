"""The frame of a chart: scales, ticks and labels."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 12, 42  # room for the axes
_PIXELS_PER_X_TICK, _PIXELS_PER_Y_TICK = 70, 45


@dataclass(frozen=True)
class Axes:
    """The scales of a chart.

    Attributes:
        size: width and height in pixels, at which text is as large as on the page.
        x_ticks: tick positions on the horizontal axis.
        y_ticks: tick positions on the vertical axis.
        x_range: smallest and largest x.
        y_range: smallest and largest y.
        percent: whether y is a fraction, shown in percent.
    """

    size: tuple[int, int]
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    percent: bool = False

    @classmethod
    def around(
        cls, xs: Sequence[float], ys: Sequence[float], size: tuple[int, int], percent: bool = False, full: bool = True
    ) -> Axes:
        """The axes that show all of these points; with `percent` and `full`, the whole range from 0 to 100%.

        They end at the last point, unless that leaves fewer than two ticks. Where every x is a whole number (epochs),
        so is every tick.
        """
        width, height = size
        low, high = (0.0, 1.0) if percent and full else (min(ys, default=0.0), max(ys, default=1.0))
        x_ticks = nice_ticks(min(xs, default=0.0), max(xs, default=1.0), (width - _LEFT - _RIGHT) // _PIXELS_PER_X_TICK)
        y_ticks = nice_ticks(low, high, (height - _TOP - _BOTTOM) // _PIXELS_PER_Y_TICK)
        whole = [x for x in x_ticks if float(x).is_integer()]
        x_ticks = whole if len(whole) > 1 and all(float(x).is_integer() for x in xs) else x_ticks
        inside = [x for x in x_ticks if x <= max(xs, default=1.0) * (1 + 1e-9)]
        x_ticks = inside if len(inside) > 1 else x_ticks
        return cls(
            size,
            x_ticks,
            y_ticks,
            (min([*xs, x_ticks[0]]), max([*xs, x_ticks[-1]])),
            (min(low, y_ticks[0]), max(high, y_ticks[-1])),
            percent,
        )

    def px(self, x: float) -> float:
        """Where a value of x stands, in pixels from the left."""
        low, high = self.x_range
        return _LEFT + (x - low) / ((high - low) or 1.0) * (self.size[0] - _LEFT - _RIGHT)

    def py(self, y: float) -> float:
        """Where a value of y stands, in pixels from the top."""
        low, high = self.y_range
        return self.size[1] - _BOTTOM - (y - low) / ((high - low) or 1.0) * (self.size[1] - _TOP - _BOTTOM)

    def svg(self, name: str, x_label: str, y_label: str) -> str:
        """The beginning of a drawing: the frame, to be followed by the content and `</svg>`."""
        width, height = self.size
        bottom = self.py(self.y_range[0])
        parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(name)}">']
        for y in self.y_ticks:
            text = f"{100 * y:g}%" if self.percent else tick_text(y, self.y_ticks)
            line = f'x1="{_LEFT}" x2="{width - _RIGHT}" y1="{self.py(y):.1f}" y2="{self.py(y):.1f}"'
            parts.append(f'<line class="grid" {line}/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{self.py(y) + 4:.1f}" text-anchor="end">{text}</text>')
        for x in self.x_ticks:
            line = f'x1="{self.px(x):.1f}" x2="{self.px(x):.1f}" y1="{bottom:.1f}" y2="{bottom + 4:.1f}"'
            text = tick_text(x, self.x_ticks)
            parts.append(f'<line class="axis" {line}/>')
            parts.append(f'<text x="{self.px(x):.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{text}</text>')
        line = f'x1="{_LEFT}" x2="{width - _RIGHT}" y1="{bottom:.1f}" y2="{bottom:.1f}"'
        middle_x, middle_y = (_LEFT + width - _RIGHT) / 2, (_TOP + height - _BOTTOM) / 2
        along_x = f'x="{middle_x:.1f}" y="{height - 6}"'
        along_y = f'transform="translate(11 {middle_y:.1f}) rotate(-90)"'
        parts.append(f'<line class="axis" {line}/>')
        parts.append(f'<text class="label" {along_x} text-anchor="middle">{html.escape(x_label)}</text>')
        parts.append(f'<text class="label" {along_y} text-anchor="middle">{html.escape(y_label)}</text>')
        return "".join(parts)


def nice_ticks(low: float, high: float, at_most: int) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten that span [low, high], or nearly so.

    >>> from orthogonium.report.axes import nice_ticks
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
