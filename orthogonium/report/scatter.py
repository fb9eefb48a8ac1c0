"""Named points, and the front of those that no other point beats."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from orthogonium.report.axes import Axes

_RADIUS = 4.5
_CHARACTER, _LINE = 6.8, 13.0  # pixels of text: a bit more than most letters need


@dataclass(frozen=True)
class Point:
    """A named point; `spread` is how far its y varies to either side."""

    label: str
    x: float
    y: float
    spread: float = 0.0


Box = tuple[float, float, float, float]  # left, top, right, bottom


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points for which no other is at least as far left and as high, from left to right.

    >>> from orthogonium.report.scatter import Point, pareto_front
    >>> [p.label for p in pareto_front([Point("fast", 1, 0.5), Point("beaten", 2, 0.4), Point("good", 3, 0.6)])]
    ['fast', 'good']
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, -p.y)):
        if not front or point.y > front[-1].y:
            front.append(point)
    return front


def scatter_chart(
    points: Sequence[Point], *, name: str, x_label: str, y_label: str, size: tuple[int, int] = (360, 280)
) -> str:
    """Fractions against a cost: small x and large y are good, and the best compromises are joined by a line.

    Args:
        points: what is compared.
        name: text that screen readers read in place of the picture.
        x_label: below the horizontal axis, which begins at 0.
        y_label: along the vertical axis, in percent.
        size: width and height in pixels.
    """
    ends = [y for p in points for y in (p.y - p.spread, p.y + p.spread)]
    axes = Axes.around([0.0, *(p.x for p in points)], ends, size, percent=True, full=False)
    front = pareto_front(points)
    steps = zip(front[:1] + front, front, strict=False)  # before each point the one to its left
    corners = [(axes.px(p.x), axes.py(y)) for before, p in steps for y in (before.y, p.y)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
    parts = [axes.svg(name, x_label, y_label), f'<path class="line s1" stroke-dasharray="7 4" d="M{path}"/>']
    centres = [(axes.px(p.x), axes.py(p.y)) for p in points]
    taken: list[Box] = [(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in centres]
    taken += [(min(a, c) - 1, min(b, d) - 1, max(a, c) + 1, max(b, d) + 1) for (a, b), (c, d) in pairwise(corners)]
    taken.append((0.0, axes.py(axes.y_range[0]) - 1, float(size[0]), float(size[1])))  # the axis and its numbers
    for p, (x, y) in zip(points, centres, strict=True):
        if p.spread:
            ends_of = f'y1="{axes.py(p.y - p.spread):.1f}" y2="{axes.py(p.y + p.spread):.1f}"'
            parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" {ends_of}/>')
        style = "s1" if p in front else "s0"
        parts.append(f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}"/>')
        box = _place(x, y, _CHARACTER * len(p.label), taken, (axes.px(axes.x_range[0]), size[0]))
        taken.append(box)
        parts.append(f'<text class="label" x="{box[0]:.1f}" y="{box[3] - 3:.1f}">{html.escape(p.label)}</text>')
    return "".join([*parts, "</svg>"])


def _place(x: float, y: float, width: float, taken: Sequence[Box], between: tuple[float, float]) -> Box:
    """Where a label of this width fits beside its point: the first place that is free, else to the right."""
    gap = _RADIUS + 3
    places = [(x + gap, y - _LINE / 2), (x - gap - width, y - _LINE / 2)]
    places += [(left, top) for top in (y - gap - _LINE, y + gap) for left in (x - width / 2, x, x - width)]
    boxes = [(left, top, left + width, top + _LINE) for left, top in places]
    free = (
        box for box in boxes if between[0] <= box[0] and box[2] <= between[1] and not any(_meet(box, t) for t in taken)
    )
    return next(free, boxes[0])


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
