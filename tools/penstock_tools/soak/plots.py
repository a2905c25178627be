"""Line plots over the time of a run, as SVG that is readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 150, 34, 40
#: Distinguishable with the common forms of colour blindness (Okabe and Ito), without black.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c00", "#999999")
_INK = "#808080"

Points = Sequence[tuple[float, float]]


def plot(
    title: str, unit: str, series: Mapping[str, Points], *, hours: float, calm_hours: float, marks: Iterable[float] = ()
) -> str:
    """Return a plot of `series` from 0 to `hours`.

    The part from `calm_hours` on is shaded; `marks` are times of faults, short lines at the bottom.
    """
    most = max((value for points in series.values() for _, value in points), default=1.0) or 1.0
    step = _step(most)
    top = math.ceil(most / step) * step
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def x(at: float) -> float:
        return _LEFT + width * min(at / hours, 1.0)

    def y(value: float) -> float:
        return _TOP + height * (1 - value / top)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="{_INK}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}{f", {unit}" if unit else ""}</text>',
    ]
    if calm_hours < hours:
        lines.append(
            f'<rect x="{x(calm_hours):.1f}" y="{_TOP}" width="{x(hours) - x(calm_hours):.1f}" height="{height}" '
            f'fill="{_INK}" fill-opacity="0.12"/>'
        )
    for number in range(round(top / step) + 1):
        value = number * step
        lines.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{_INK}" '
            f'stroke-opacity="0.3"/><text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,g}</text>'
        )
    minutes_step = _step(hours * 60)
    for number in range(int(hours * 60 / minutes_step) + 1):
        at = number * minutes_step / 60
        lines.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{number * minutes_step:g}</text>')
    lines.append(f'<text x="{_LEFT + width}" y="{HEIGHT - 4}" text-anchor="end">minutes</text>')
    for at in marks:
        lines.append(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{_TOP + height - 7}" y2="{_TOP + height}" stroke="#d55e00"/>'
        )
    for number, (name, points) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points if at <= hours)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        at_y = _TOP + 12 + 16 * number
        lines.append(
            f'<line x1="{_LEFT + width + 10}" x2="{_LEFT + width + 26}" y1="{at_y - 4}" y2="{at_y - 4}" '
            f'stroke="{color}" stroke-width="3"/><text x="{_LEFT + width + 32}" y="{at_y}">{escape(name)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def _step(most: float) -> float:
    """Return a round distance of about five grid lines up to `most`."""
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
