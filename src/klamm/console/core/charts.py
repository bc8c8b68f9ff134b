"""Charts as SVG, drawn on the server: a page has its pictures with its first byte and needs no script for them.

Colours are classes of the style sheet, so that a chart follows light and dark; values come as text in `<title>` and in
`data-points`, which the page's script uses for the line below the pointer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

from klamm.console.core.numbers import format_short

SPARK_WIDTH: Final = 96
SPARK_HEIGHT: Final = 24
CHART_SIZE: Final = (360, 150)
"""About the width of three in a row, so that the text of axes is not made smaller."""
BROAD_SIZE: Final = (1080, 200)
"""Of a chart that has the width of the page for itself."""
HALF_SIZE: Final = (530, 170)
"""Of two in a row."""
_TIME_UNITS: Final = (86400, 3600, 60)
_LEFT: Final = 60
_BOTTOM: Final = 22
_TOP: Final = 8
_RIGHT: Final = 8


class ChartPoint(NamedTuple):
    """A value at a time; None where there was no sample."""

    time_ms: int
    value: float | None


def draw_sparkline(values: Sequence[float | None], label: str) -> str:
    """Return a small line without axes; a flat line when nothing happened."""
    top = max((value for value in values if value is not None), default=0) or 1
    step = (SPARK_WIDTH - 2) / max(len(values) - 1, 1)
    path = _path(
        [
            None if value is None else (1 + i * step, SPARK_HEIGHT - 2 - value / top * (SPARK_HEIGHT - 4))
            for i, value in enumerate(values)
        ]
    )
    return (
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}"'
        f' role="img" aria-label="{escape(label)}"><path d="{path}"/></svg>'
    )


def draw_chart(
    points: Sequence[ChartPoint],
    label: str,
    begin_ms: int,
    end_ms: int,
    format_value: Callable[[float], str] = format_short,
    *,
    base: int = 1000,
    broad: bool = False,
    half: bool = False,
) -> str:
    """Return a line chart with axes from `begin_ms` to `end_ms`; gaps stay gaps.

    Sizes in bytes have `base` 1024, times in seconds 60.
    """
    known = [point.value for point in points if point.value is not None]
    ticks = value_ticks(max(known, default=0), base)
    top = ticks[-1]
    whole_width, whole_height = BROAD_SIZE if broad else HALF_SIZE if half else CHART_SIZE
    width, height = whole_width - _LEFT - _RIGHT, whole_height - _TOP - _BOTTOM
    span = max(end_ms - begin_ms, 1)
    places = [
        None
        if point.value is None
        else (_LEFT + (point.time_ms - begin_ms) / span * width, _TOP + height - point.value / top * height)
        for point in points
    ]
    line = _path(places)
    pointer = escape(json.dumps(_for_pointer(points, places, format_value), separators=(",", ":")))
    head = (
        f'<svg class="chart{" broad" if broad else ""}" viewBox="0 0 {whole_width} {whole_height}" role="img"'
        f' aria-label="{escape(label)}" data-points="{pointer}">'
    )
    parts = [head]
    for tick in ticks:
        y = _TOP + height - tick / top * height
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{whole_width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(format_value(tick))}</text>'
        )
    for i in range(5):
        x = _LEFT + width * i / 4
        anchor = "start" if i == 0 else "end" if i == 4 else "middle"
        time_ms = begin_ms + span * i // 4
        # In UTC; the page's script writes it in the browser's zone.
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{whole_height - 6}" text-anchor="{anchor}" data-ms="{time_ms}">'
            f"{time_ms // 3_600_000 % 24:02d}:{time_ms // 60_000 % 60:02d}</text>"
        )
    if line:
        parts.append(f'<path class="area" d="{_area(places, _TOP + height)}"/><path class="line" d="{line}"/>')
    else:
        parts.append(
            f'<text class="tick" x="{_LEFT + width / 2}" y="{_TOP + height / 2}" text-anchor="middle">'
            "no samples yet</text>"
        )
    parts.append("</svg>")
    return "".join(parts)


def value_ticks(top: float, base: int = 1000) -> list[float]:
    """Return 0 and one to five round numbers up to at least `top`, round in units of `base`."""
    if top <= 0:
        return [0.0, 1.0]
    unit = 1.0
    while base == 1024 and top / unit >= base:
        unit *= base
    if base == 60:
        unit = next((float(unit) for unit in _TIME_UNITS if top >= 2 * unit), 1.0)
    return [tick * unit for tick in _round_ticks(top / unit)]


def _round_ticks(top: float) -> list[float]:
    magnitude = 1.0
    while magnitude * 10 <= top:
        magnitude *= 10
    while magnitude > top:
        magnitude /= 10
    for factor in (0.25, 0.5, 1, 2, 2.5, 5):
        step = magnitude * factor
        count = -int(-top // step)
        if count <= 5:
            return [step * i for i in range(count + 1)]
    raise AssertionError(top)


ChartPosition = tuple[float, float] | None


def _path(places: Sequence[ChartPosition]) -> str:
    parts = []
    drawing = False
    for i, place in enumerate(places):
        if place is None:
            drawing = False
            continue
        parts.append(f"{'L' if drawing else 'M'}{place[0]:.1f} {place[1]:.1f}")
        # A single value between two gaps would be a line of no length.
        if not drawing and (i + 1 == len(places) or places[i + 1] is None):
            parts.append("h1")
        drawing = True
    return "".join(parts)


def _area(places: Sequence[ChartPosition], floor: float) -> str:
    parts: list[str] = []
    run: list[tuple[float, float]] = []
    for place in [*places, None]:
        if place is not None:
            run.append(place)
            continue
        if len(run) > 1:
            inner = "".join(f"L{x:.1f} {y:.1f}" for x, y in run)
            parts.append(f"M{run[0][0]:.1f} {floor:.1f}{inner}L{run[-1][0]:.1f} {floor:.1f}Z")
        run = []
    return "".join(parts)


def _for_pointer(
    points: Sequence[ChartPoint], places: Sequence[ChartPosition], format_value: Callable[[float], str]
) -> list[list[object]]:
    return [
        [round(place[0], 1), round(place[1], 1), point.time_ms, format_value(point.value)]
        for point, place in zip(points, places, strict=True)
        if place is not None and point.value is not None
    ]
