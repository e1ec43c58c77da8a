"""The histogram of a measure before and after cleaning, with its limits drawn in.

Counts are drawn on a logarithmic axis: a limit is chosen in the tail, where few documents are. The limit that drops
most is the edge of a column.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from shards.report.chart import Chart, Scale, decade_ticks, linear, logarithmic, round_ticks
from shards.terminal.amounts import compact

COLUMNS = {"wide": 72, "narrow": 36}
TOP, HEIGHT, LEFT, RIGHT = 26.0, 144.0, 44.0, 12.0
LABEL = 14.0
"""The height of a row of labels; a second limit has its label in a row of its own."""
LINEAR_UP_TO = 16.0
"""Measures whose largest value is no more than this have a linear axis: shares are up to 1."""

Histogram = Sequence[tuple[float, int]]
"""The lowest value of each bin with documents, and their number, as `cleaning.json` has them."""


def plot_measure(name: str, read: Histogram, left: Histogram, limits: Sequence[dict[str, Any]], width: float) -> Chart:
    """Draw how many documents have which value: of all that were measured, and of those that are left.

    Args:
        name: the measure.
        read: of all documents.
        left: of those that no limit drops.
        limits: the limits of the measure, each with `side` and `value`.
        width: in px.
    """
    most, cuts = max([low for low, _ in read], default=0.0), [float(limit["value"]) for limit in limits]
    number = COLUMNS["wide" if width > 500 else "narrow"]
    said = "; ".join(f"{limit['key']} {limit['value']:g} drops {limit['every']['documents']:,}" for limit in limits)
    top = TOP + LABEL * (len(limits) > 1)
    bottom, right = top + HEIGHT, width - RIGHT
    chart = Chart(f"Documents by {name}", said, width, bottom + 26)
    first = max(limits, key=lambda limit: limit["every"]["documents"])["value"]
    lowest = min([value for value in (*(low for low, _ in read), *cuts) if value > 0], default=1.0)
    # The axes: the limit that drops most is the edge of a column.
    edges, scale, ticks = _axis(lowest, max(most, *cuts), float(first), number, width)
    least = max([cut for cut, limit in zip(cuts, limits, strict=True) if limit["side"] == "min"], default=0.0)
    highest = min([cut for cut, limit in zip(cuts, limits, strict=True) if limit["side"] == "max"], default=math.inf)
    columns = {"all": count_columns(read, edges), "left": count_columns(left, edges, least, highest)}
    tallest = max(*columns["all"], 1.0)
    up = logarithmic(0.6, tallest * 1.25, bottom, top)
    # The grid, then the columns of all documents and those left.
    for tick in decade_ticks(1, tallest, 5):
        chart.line(LEFT, up(tick), right, up(tick), "grid")
        chart.text(LEFT - 7, up(tick) + 4, compact(tick), "tick", "end")
    for style, counts in columns.items():
        heights = [min(up(count), bottom) if count else bottom for count in counts]
        chart.draw_path(_outline(heights, edges, scale, bottom), style, close=True)
    # The limits, each with the side that it drops.
    for place, limit in enumerate(sorted(limits, key=lambda limit: limit["value"])):
        x = scale(limit["value"])
        begin, end = (LEFT, x) if limit["side"] == "min" else (x, right)
        chart.rect(begin, top, end - begin, HEIGHT, "gone")
        y = top - 8 - LABEL * (place % 2)
        chart.line(x, y + 3, x, bottom, "limit")
        anchor = "start" if x < LEFT + 70 else "end" if x > right - 70 else "middle"
        chart.text(x, y, f"{limit['side']} {limit['value']:g}", "limit-label", anchor)
    chart.line(LEFT, bottom, right, bottom, "axis")
    for value, label in ticks:
        chart.text(min(max(scale(value), LEFT), right), bottom + 17, label, "tick", "middle")
    return chart


def _axis(
    lowest: float, most: float, first: float, number: int, width: float
) -> tuple[list[float], Scale, list[tuple[float, str]]]:
    """Return the edges of the columns, the map from values to pixels, and ticks with their labels.

    Args:
        lowest: the lowest value above 0.
        most: the highest.
        first: a value that is an edge.
        number: about how many columns there are.
        width: of the chart, in px.
    """
    right = width - RIGHT
    high = most * 1.04 or 1.0
    # Shares and small counts.
    if high <= LINEAR_UP_TO:
        step = high / number
        if first:
            step = first / max(1, math.ceil(first / step))
        edges = [step * place for place in range(math.ceil(high / step) + 1)]
        scale = linear(0, edges[-1], LEFT, right)
        return edges, scale, [(tick, f"{tick:g}") for tick in round_ticks(edges[-1], 5) if tick <= edges[-1]]
    # All else, over at most seven decades.
    low = max(lowest, high / 1e7)
    ratio = (high / low) ** (1 / (number - 1))
    anchor = first or low
    below = math.ceil(math.log(anchor / low) / math.log(ratio) + 1e-9) if anchor > low else 0
    above = math.ceil(math.log(high / anchor) / math.log(ratio) + 1e-9)
    # The first column is for values below the lowest edge, among them 0.
    edges = [0.0] + [anchor * ratio**place for place in range(-below, above + 1)]
    column = (right - LEFT) / (len(edges) - 1)
    inner = logarithmic(edges[1], edges[-1], LEFT + column, right)

    def scale_all(value: float) -> float:
        return inner(value) if value > edges[1] else LEFT + (column if value == edges[1] else 0.0)

    decades = decade_ticks(edges[1] / 10, edges[-1], 7)
    parts = (1, 2, 5) if len(decades) <= 3 else (1,)
    ticks = [tick * part for tick in decades for part in parts if edges[1] < tick * part <= edges[-1]]
    labels = [(tick, compact(tick) if tick >= 1 else f"{tick:g}") for tick in ticks]
    return edges, scale_all, [(0.0, "0"), *((tick, label) for tick, label in labels if scale_all(tick) > LEFT + 22)]


def count_columns(
    histogram: Histogram, edges: Sequence[float], least: float = 0.0, highest: float = math.inf
) -> list[float]:
    """Return the documents of each column of a chart. Those of a bin that is in several columns are spread evenly.

    Args:
        histogram: bins of 1/32 of an octave.
        edges: the columns' edges, from 0; beyond the last one nothing is left out.
        least: no document is below it.
        highest: no document is above it.
    """
    counts = [0.0] * (len(edges) - 1)
    for low, documents in histogram:
        begin, end = max(low, least), min(low + _bin_width(low), highest)
        first, last = (min(bisect_right(edges, value) - 1, len(counts) - 1) for value in (begin, end))
        # A bin within one column; otherwise its documents are spread by width.
        if end <= begin or first == last:
            counts[first] += documents
            continue
        for place in range(first, last + 1):
            stop = end if place == last else edges[place + 1]
            counts[place] += documents * max(0.0, stop - max(begin, edges[place])) / (end - begin)
    return counts


def _bin_width(low: float) -> float:
    return 2.0 ** math.floor(math.log2(low)) / 32 if low > 1e-30 else 0.0


def _outline(
    heights: Sequence[float], edges: Sequence[float], scale: Scale, bottom: float
) -> list[tuple[float, float]]:
    """Return the outline of columns; neighbours of equal height share a step."""
    points = [(scale(edges[0]), bottom)]
    height = bottom
    for place, y in enumerate(heights):
        if y != height:
            points += [(scale(edges[place]), height), (scale(edges[place]), y)]
            height = y
    return [*points, (scale(edges[-1]), height), (scale(edges[-1]), bottom)]
