"""Draw the pictures of a report: document lengths, and how often each id occurs. What a table says is not drawn.

Each picture is drawn for a width: the page has a wide and a narrow version. Each source has its own row, so that for
any number of sources no colours are needed and no line covers another. A chart is a list of marks, which a template
draws as SVG; it escapes every text.

No plotting library is used: it would put 100 kB of paths and fonts into each picture, in fixed colours. All colours
come from the style sheet, by class, so that a chart follows the light, dark and print styles. Coordinates are rounded
to a tenth: smaller files, and the same bytes everywhere.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shards.audit.histogram import coarse_edges
from shards.errors import plural
from shards.report.visible_text import shorten
from shards.terminal.amounts import compact
from shards.terminal.display import printable

ROW = 78.0
MAX_ROWS = 40
"""Maximum sources drawn, in the recipe's order; the tables have all."""

CHARACTER_WIDTH = 6.9
"""Average width of a character of 12.5 px sans-serif text. Some letters are wider, so labels leave some room."""

Scale = Callable[[float], float]


def plot_lengths(rows: Sequence[dict[str, Any]], width: float) -> Chart:
    """Draw the lengths of documents, one row for each source with its own height, and the audit's median."""
    rows, edges = rows[:MAX_ROWS], coarse_edges()
    held = [{int(low): documents for low, documents in row["histogram"].items()} for row in rows]
    # The axis covers the bins with documents of any source.
    used = [edges.index(low) for own in held for low in own] or [0, 1]
    first, last = min(used), max(used)
    said = "; ".join(f"{row['source']}: median {plural(row['p50'], 'token')}" for row in rows)
    chart = Chart("Document lengths by source, in tokens", said, width)
    scale = logarithmic(edges[first], edges[last + 1], 1, width - 1)
    area = 44.0
    ticks = doubling_ticks(edges[first], edges[last + 1], 8 if width > 500 else 5)
    chart.height = _row_axis(chart, ticks, scale, len(rows), [f"{tick:,.0f}" for tick in ticks])
    for place, (row, own) in enumerate(zip(rows, held, strict=True)):
        base = (place + 1) * ROW - 8
        # Bins are not equally wide, so their areas are compared, not their heights.
        spans = list(zip(edges[first : last + 1], edges[first + 1 : last + 2], strict=True))
        density = [own.get(low, 0) / math.log2(high / low) for low, high in spans]
        # Steps along the bins, closed at the base line.
        points = [(scale(edges[first]), base)]
        for (low, high), value in zip(spans, density, strict=True):
            y = base - area * value / max(*density, 1e-9)
            points += [(scale(low), y), (scale(high), y)]
        chart.draw_path([*points, (scale(edges[last + 1]), base)], "area", close=True)
        x = scale(max(row["p50"], edges[first]))
        chart.line(x, base - area - 2, x, base + 3, "goal")
        _row_label(chart, place * ROW, row["source"], f"median {row['p50']:,}")
    return chart


def plot_id_frequencies(vocabulary: dict[str, Any], width: float) -> Chart:
    """Draw how often each id occurs, most frequent first, on logarithmic axes."""
    ranks, counts, below = vocabulary["ranks"], vocabulary["counts"], vocabulary["rare_below"]
    most, seen = max([1, *counts]), max(2, vocabulary["seen"])
    said = (
        f"The most frequent id occurs {plural(most, 'time')}; {plural(vocabulary['seen'], 'id')} "
        f"{'occurs' if vocabulary['seen'] == 1 else 'occur'}, {vocabulary['rare']:,} of them fewer than "
        f"{plural(below, 'time')}."
    )
    chart = Chart("How often each id of the vocabulary occurs in training, by rank", said, width)
    # Room for the labels on the left, and for those of the ranks below.
    left, right, top, bottom = 52.0, 10.0, 12.0, 300.0 if width > 500 else 240.0
    high = max(10.0, most, below)
    across = logarithmic(1, seen, left, width - right)
    up = logarithmic(0.8, high * 1.3, bottom, top)
    for tick in decade_ticks(1, high):
        chart.line(left, up(tick), width - right, up(tick), "grid")
        chart.text(left - 8, up(tick) + 4, compact(tick), "tick", "end")
    for tick in decade_ticks(1, seen, 6):
        chart.line(across(tick), bottom, across(tick), bottom + 4, "axis")
        chart.text(across(tick), bottom + 19, compact(tick), "tick", "middle")
    chart.line(left, bottom, width - right, bottom, "axis")
    rare = up(below)
    chart.line(left, rare, width - right, rare, "limit")
    chart.text(left + 6, rare + 16, f"rare: fewer than {below:,}", "limit-label")
    points = [(across(rank), up(held)) for rank, held in zip(ranks, counts, strict=True)]
    chart.draw_path(points, "curve")
    chart.text(width - right, bottom + 38, "rank of the id", "tick", "end")
    chart.text(0, top - 1, "times", "tick")
    chart.height = bottom + 46
    return chart


def _row_axis(chart: Chart, ticks: Sequence[float], scale: Scale, rows: int, labels: Sequence[str]) -> float:
    """Draw the grid behind the rows' pictures (not behind their labels), and its own beneath; return the height."""
    bottom = rows * ROW
    for tick, label in zip(ticks, labels, strict=True):
        x = scale(tick)
        if not -1 <= x <= chart.width + 1:
            continue
        for number in range(rows):
            chart.line(x, number * ROW + 23, x, (number + 1) * ROW - 4, "grid")
        half = len(label) * CHARACTER_WIDTH / 2
        # Labels at the edges stay inside the picture.
        anchor = "start" if x < half else "end" if x > chart.width - half else "middle"
        chart.text(min(max(x, 0.0), chart.width), bottom + 14, label, "tick", anchor)
    return bottom + 20


def _row_label(chart: Chart, y: float, name: str, value: str) -> None:
    room = chart.width - (len(value) + 2) * CHARACTER_WIDTH
    chart.text(0, y + 16, fit(name, room), "label")
    chart.text(chart.width, y + 16, value, "value", "end")


@dataclass
class Chart:
    """A chart of `width` by `height` px; a screen reader reads `title` and `description`.

    A mark is one element: its tag, its attributes, and its text.
    """

    title: str
    description: str
    width: float
    height: float = 0.0
    marks: list[tuple[str, dict[str, str], str]] = field(default_factory=list[tuple[str, dict[str, str], str]])

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """Add a straight line."""
        self._add("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": style})

    def draw_path(self, points: Sequence[tuple[float, float]], style: str, *, close: bool = False) -> None:
        """Add a line through points; closed, an area."""
        if points:
            steps = " L".join(f"{_shorten(x)} {_shorten(y)}" for x, y in points)
            self._add("path", {"d": f"M{steps}{'Z' if close else ''}", "class": style})

    def text(self, x: float, y: float, text: str, style: str = "label", anchor: str = "start") -> None:
        """Add a text whose baseline is at y, with its `start`, `middle` or `end` at x."""
        attributes: dict[str, str | float] = {"x": x, "y": y, "class": style}
        self._add("text", attributes | ({} if anchor == "start" else {"text-anchor": anchor}), text)

    def _add(self, tag: str, attributes: dict[str, str | float], text: str = "") -> None:
        rounded = {key: value if isinstance(value, str) else _shorten(value) for key, value in attributes.items()}
        self.marks.append((tag, rounded, text))


def _shorten(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """Return a chart's linear scale: the map from values [low, high] to pixels [start, end]."""
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1.0)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Return a chart's logarithmic scale: the map from values [low, high], above 0, to pixels."""
    inner = linear(math.log(low), math.log(high), start, end)
    return lambda value: inner(math.log(value))


def decade_ticks(low: float, high: float, number: int = 7) -> list[float]:
    """Return powers of ten from `low` to `high`, every second or third if there are many."""
    return _power_ticks(10.0, low, high, number)


def doubling_ticks(low: float, high: float, number: int = 8) -> list[float]:
    """Return powers of two from `low` to `high`, at most about `number` of them."""
    return _power_ticks(2.0, low, high, number)


def _power_ticks(base: float, low: float, high: float, number: int) -> list[float]:
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / number))
    return [base**power for power in range(first, last + 1, every)]


def fit(text: str, width: float) -> str:
    """Return a chart's text, at most `width` px wide; the middle of a longer text is left out."""
    text = printable(text)
    room = max(4, int(width / CHARACTER_WIDTH))
    characters = len(text)
    # Wide characters take two cells, so the text is cut until it fits.
    while _cells(shown := shorten(text, characters)) > room and characters > 4:
        characters = min(characters - 1, room)
    return shown


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
