"""A chart as a list of marks, with ticks and scales. A template draws it as SVG and escapes every text.

No plotting library is used: it would put 100 kB of paths and fonts into each picture, in fixed colours. All colours
come from the style sheet, by class, so that a chart follows the light, dark and print styles. Coordinates are rounded
to a tenth: smaller files, and the same bytes everywhere.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

CHARACTER_WIDTH = 6.9
"""Average width of a character of 12.5 px sans-serif text. Some letters are wider, so labels leave some room."""

Scale = Callable[[float], float]


@dataclass
class Chart:
    """A chart of `width` by `height` px; a screen reader reads `title` and `description`.

    A mark is one element: its tag, its attributes, and its text or its tooltip.
    """

    title: str
    description: str
    width: float
    height: float = 0.0
    marks: list[tuple[str, dict[str, str], str]] = field(default_factory=list[tuple[str, dict[str, str], str]])

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """Add a straight line."""
        self._add("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": style})

    def rect(self, x: float, y: float, width: float, height: float, style: str, tooltip: str = "") -> None:
        """Add a rectangle. Unless it is empty, it is at least half a pixel thick."""
        shown = max(width, 0.5) if width > 0 else 0.0
        self._add("rect", {"x": x, "y": y, "width": shown, "height": max(height, 0.0), "class": style}, tooltip)

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
    from shards.report.visible_text import shorten
    from shards.terminal.display import printable

    text = printable(text)
    room = max(4, int(width / CHARACTER_WIDTH))
    characters = len(text)
    # Wide characters take two cells, so the text is cut until it fits.
    while _cells(shown := shorten(text, characters)) > room and characters > 4:
        characters = min(characters - 1, room)
    return shown


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
