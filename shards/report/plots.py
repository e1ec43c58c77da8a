"""Draw the five pictures of a report. Each is drawn for a width: the page has a wide and a narrow version.

Each source has its own row, so that for any number of sources no colours are needed and no line covers another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shards.audit.histogram import bin_middles
from shards.errors import plural
from shards.report.chart import (
    CHARACTER_WIDTH,
    Chart,
    Scale,
    decade_ticks,
    doubling_ticks,
    fit,
    linear,
    logarithmic,
    round_ticks,
)
from shards.report.facts import SetFacts, ShardFacts
from shards.report.numbers import compact, percent, size
from shards.report.other_tokenizer import TokenizerComparison
from shards.report.vocabulary import VocabularyFacts

if TYPE_CHECKING:
    import numpy.typing as npt

ROW, BAR = 46.0, 13.0
MAX_ROWS = 40
"""Maximum sources drawn, in the recipe's order; the tables have all."""
SLOTS = {"wide": 110, "narrow": 48}
"""Maximum columns in the picture of the shards; if there are more shards, several share a column."""
PER_DOUBLING = 4


def plot_mix(facts: SetFacts, width: float) -> Chart:
    """Draw the requested and the achieved share of each source."""
    sources = facts.sources[:MAX_ROWS]
    most = max([source.requested for source in sources] + [source.achieved for source in sources], default=1.0)
    said = "; ".join(f"{s.name}: {percent(s.requested)} asked for, {percent(s.achieved)} got" for s in sources)
    chart = Chart("The mix: shares of the training tokens by source", said, width)
    ticks = [tick for tick in round_ticks(most, 5) if tick <= 1.0 + 1e-9]
    scale = linear(0, max(most, ticks[-1]), 1, width - 1)
    bottom = _row_axis(chart, ticks, scale, len(sources), [f"{100 * tick:g} %" for tick in ticks])
    for number, source in enumerate(sources):
        y = number * ROW
        _row_label(chart, y, source.name, f"{percent(source.achieved)} of {percent(source.requested)}")
        top = y + ROW - BAR - 9
        chart.rect(1, top, scale(source.achieved) - 1, BAR, "bar", f"got {percent(source.achieved, 4)}")
        x = scale(source.requested)
        chart.line(x, top - 4, x, top + BAR + 4, "goal")
    chart.height = bottom
    return chart


def plot_lengths(facts: SetFacts, lengths: npt.NDArray[np.int64], medians: dict[str, int], width: float) -> Chart:
    """Draw the lengths of documents, one row for each source with its own height, and the audit's median."""
    rows = [number for number in range(len(facts.sources)) if lengths[number].any()][:MAX_ROWS]
    edges, groups = _length_groups()
    held = np.zeros((len(lengths), len(edges) - 1))
    for number in rows:
        held[number] = np.bincount(groups, weights=lengths[number], minlength=len(edges) - 1)
    used = np.flatnonzero(held.any(axis=0))
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, 1)
    names = [source.name for source in facts.sources]
    said = "; ".join(f"{names[number]}: median {plural(medians[names[number]], 'token')}" for number in rows)
    chart = Chart("Document lengths by source, in tokens", said, width)
    scale = logarithmic(edges[first], edges[last + 1], 1, width - 1)
    row, area = 78.0, 44.0
    ticks = doubling_ticks(edges[first], edges[last + 1], 8 if width > 500 else 5)
    bottom = _row_axis(chart, ticks, scale, len(rows), [f"{tick:,}" for tick in ticks], row=row)
    for place, number in enumerate(rows):
        base = place * row + row - 8
        density = held[number] / np.diff(np.log2(edges))
        heights = area * density / max(float(density.max()), 1e-9)
        points = [(scale(edges[first]), base)]
        for index in range(first, last + 1):
            y = base - float(heights[index])
            points += [(scale(edges[index]), y), (scale(edges[index + 1]), y)]
        chart.draw_path([*points, (scale(edges[last + 1]), base)], "area", close=True)
        median = medians[names[number]]
        x = scale(max(median, edges[first]))
        chart.line(x, base - area - 2, x, base + 3, "goal")
        _row_label(chart, place * row, names[number], f"median {median:,}")
    chart.height = bottom
    return chart


def plot_id_frequencies(vocabulary: VocabularyFacts, width: float) -> Chart:
    """Draw how often each id occurs, most frequent first, on logarithmic axes."""
    most, seen = max([1, *vocabulary.counts]), max(2, vocabulary.seen)
    said = (
        f"The most frequent id occurs {plural(most, 'time')}; {plural(vocabulary.seen, 'id')} "
        f"{'occurs' if vocabulary.seen == 1 else 'occur'}, {vocabulary.rare:,} of them fewer than "
        f"{plural(vocabulary.rare_below, 'time')}."
    )
    chart = Chart("How often each id of the vocabulary occurs in training, by rank", said, width)
    left, right, top, bottom = 52.0, 10.0, 12.0, 300.0 if width > 500 else 240.0
    high = max(10.0, most, vocabulary.rare_below)
    across = logarithmic(1, seen, left, width - right)
    up = logarithmic(0.8, high * 1.3, bottom, top)
    for tick in decade_ticks(1, high):
        chart.line(left, up(tick), width - right, up(tick), "grid")
        chart.text(left - 8, up(tick) + 4, compact(tick), "tick", "end")
    for tick in decade_ticks(1, seen, 6):
        chart.line(across(tick), bottom, across(tick), bottom + 4, "axis")
        chart.text(across(tick), bottom + 19, compact(tick), "tick", "middle")
    chart.line(left, bottom, width - right, bottom, "axis")
    rare = up(vocabulary.rare_below)
    chart.line(left, rare, width - right, rare, "limit")
    chart.text(left + 6, rare + 16, f"rare: fewer than {vocabulary.rare_below:,}", "limit-label")
    points = [(across(rank), up(held)) for rank, held in zip(vocabulary.ranks, vocabulary.counts, strict=True)]
    chart.draw_path(points, "curve")
    if len(points) == 1:
        chart.circle(*points[0], 3, "dot")
    chart.text(width - right, bottom + 38, "rank of the id", "tick", "end")
    chart.text(0, top - 1, "times", "tick")
    chart.height = bottom + 46
    return chart


def plot_bytes_per_token(ratios: dict[str, float], comparison: TokenizerComparison | None, width: float) -> Chart:
    """Draw the bytes per token of each source; with another tokenizer, both on the same sample."""
    others: dict[str, float] = {}
    if comparison is not None:
        ratios = {name: ratio.ours for name, ratio in comparison.sources.items()}
        others = {name: ratio.other for name, ratio in comparison.sources.items()}
    rows = list(ratios.items())[:MAX_ROWS]
    most = max([*ratios.values(), *others.values()], default=1.0)
    said = "; ".join(
        f"{name}: {ratio:.2f}{f', the other {others[name]:.2f}' if name in others else ''}" for name, ratio in rows
    )
    chart = Chart("Bytes of text that a token holds, by source", said, width)
    ticks = round_ticks(most, 5)
    scale = linear(0, ticks[-1], 1, width - 1)
    chart.height = _row_axis(chart, ticks, scale, len(rows), [f"{tick:g}" for tick in ticks])
    for number, (name, ratio) in enumerate(rows):
        y, other = number * ROW, others.get(name)
        beside = "" if other is None or comparison is None else f"; {fit(comparison.name, 90)} {other:.2f}"
        _row_label(chart, y, name, f"{ratio:.2f}{beside}")
        top = y + ROW - BAR - 9
        chart.rect(1, top, scale(ratio) - 1, BAR, "bar")
        if other is not None:
            chart.circle(scale(other), top + BAR / 2, 5.5, "ring")
    return chart


def plot_shards(facts: SetFacts, width: float) -> Chart:
    """Draw the compressed size of each shard's tokens, in the set's order; many shards share a column."""
    slots = SLOTS["wide" if width > 500 else "narrow"]
    groups = group_plotted_shards(facts.shards, slots)
    held = [shard.tokens_bytes for shard in facts.shards] or [0]
    most = max(held)
    said = f"{plural(len(facts.shards), 'shard')} of {size(min(held))} to {size(most)}."
    chart = Chart("Sizes of the shards' compressed tokens, in the set's order", said, width)
    left, top, bottom = 58.0, 10.0, 170.0
    unit, name = next(((scale, unit) for scale, unit in _SIZES if most >= scale), (1, "B"))
    ticks = round_ticks(most / unit, 4)
    up = linear(0, ticks[-1], bottom, top)
    for tick in ticks:
        chart.line(left, up(tick), width, up(tick), "grid")
        chart.text(left - 8, up(tick) + 4, f"{tick:g} {name}", "tick", "end")
    step = min(34.0, (width - left) / max(1, len(groups)))
    for number, group in enumerate(groups):
        sizes = [shard.tokens_bytes / unit for shard in group]
        mean, x = sum(sizes) / len(sizes), left + number * step
        style = "bar" if group[0].split == "train" else "bar-val"
        names = group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}"
        y = up(mean)
        chart.rect(x + step * 0.12, y, step * 0.76, bottom - y, style, f"{names}: {mean:,.3g} {name}")
        if len(group) > 1:
            chart.line(x + step / 2, up(min(sizes)), x + step / 2, up(max(sizes)), "goal")
    chart.line(left, bottom, width, bottom, "axis")
    chart.height = bottom + 8
    return chart


_SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def group_plotted_shards(shards: Sequence[ShardFacts], slots: int) -> list[list[ShardFacts]]:
    """Group neighbouring shards of one split for their plot, so that there are about `slots` groups."""
    each = max(1, math.ceil(len(shards) / slots))
    groups: list[list[ShardFacts]] = []
    for shard in shards:
        if groups and groups[-1][0].split == shard.split and len(groups[-1]) < each:
            groups[-1].append(shard)
        else:
            groups.append([shard])
    return groups


def _length_groups() -> tuple[list[int], npt.NDArray[np.int64]]:
    """Return edges of whole lengths, about four per doubling, and the group of each of `histogram.BINS`."""
    edges = sorted({math.ceil(2 ** (step / PER_DOUBLING)) for step in range(32 * PER_DOUBLING + 1)})
    groups = np.searchsorted(np.array(edges), bin_middles(), "right") - 1
    return edges, np.clip(groups, 0, len(edges) - 2)


def _row_axis(
    chart: Chart, ticks: Sequence[float], scale: Scale, rows: int, labels: Sequence[str], *, row: float = ROW
) -> float:
    """Draw the grid behind the rows' pictures (not behind their labels), and its own beneath; return the height."""
    bottom = rows * row
    for tick, label in zip(ticks, labels, strict=True):
        x = scale(tick)
        if not -1 <= x <= chart.width + 1:
            continue
        for number in range(rows):
            chart.line(x, number * row + 23, x, (number + 1) * row - 4, "grid")
        half = len(label) * CHARACTER_WIDTH / 2
        anchor = "start" if x < half else "end" if x > chart.width - half else "middle"
        chart.text(min(max(x, 0.0), chart.width), bottom + 14, label, "tick", anchor)
    return bottom + 20


def _row_label(chart: Chart, y: float, name: str, value: str) -> None:
    room = chart.width - (len(value) + 2) * CHARACTER_WIDTH
    chart.text(0, y + 16, fit(name, room), "label")
    chart.text(chart.width, y + 16, value, "value", "end")
