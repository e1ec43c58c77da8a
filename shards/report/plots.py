"""Draw the pictures of a report: document lengths, and how often each id occurs. What a table says is not drawn.

Each picture is drawn for a width: the page has a wide and a narrow version. Each source has its own row, so that for
any number of sources no colours are needed and no line covers another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shards.audit.histogram import coarse_edges
from shards.errors import plural
from shards.report.chart import (
    CHARACTER_WIDTH,
    Chart,
    Scale,
    decade_ticks,
    doubling_ticks,
    fit,
    logarithmic,
)
from shards.terminal.amounts import compact

ROW = 78.0
MAX_ROWS = 40
"""Maximum sources drawn, in the recipe's order; the tables have all."""


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
