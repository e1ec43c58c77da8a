"""A build with all four presets and near-duplicates, compared with the same build without: the price of cleaning."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

from tests.benchmarks.build import recipe_text, time_ours
from tests.benchmarks.material import MB, corpus_files, median, text_bytes, write_tokenizer

ROUNDS = 4
CLEAN = """
[clean.gopher]
max_dropped = 1.0
[clean.c4]
max_dropped = 1.0
[clean.fineweb]
max_dropped = 1.0
[clean.code]
max_dropped = 1.0
max_mean_line_bytes = "off"
max_longest_line_bytes = "off"
max_top_name_lines = "off"
[clean.near_duplicates]
action = "drop"
"""
"""Every measure is taken. The limits that are off are those of `code` that books break."""


def bench_cleaned_build(work: Path, *, quick: bool = False, workers: int = 2) -> dict[str, Any]:
    """Build `bulk_prose` with cleaning and without, by turns.

    Returns:
        `text_mb`; for `plain` and `cleaned` the medians of `_s` (by the clock) and `_cpu_s` (of all processes);
        `ratio` and `cpu_ratio`, cleaned divided by plain, each the median over rounds.

    Raises:
        TopicSkippedError: the corpus is not there.
        RuntimeError: a command failed; the message holds the end of what it said.
    """
    files = corpus_files("bulk_prose")
    tokenizer = write_tokenizer(files, work / "tokenizer.json")
    plain = recipe_text(files, tokenizer)
    recipes = {"plain": plain, "cleaned": plain + CLEAN}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in recipes}
    for _ in range(1 if quick else ROUNDS):
        for name, text in recipes.items():
            (work / f"{name}.toml").write_text(text)
            before = _cpu_s()
            wall_s = time_ours(work, work / f"{name}.toml", workers, validate="full", name=name)
            seconds[name].append((wall_s, _cpu_s() - before))
            for folder in (name, f"{name}.work"):
                shutil.rmtree(work / folder)
    figures: dict[str, Any] = {"text_mb": text_bytes(files) / MB}
    for name, found in seconds.items():
        figures[f"{name}_s"] = median([wall_s for wall_s, _ in found])
        figures[f"{name}_cpu_s"] = median([cpu_s for _, cpu_s in found])
    rounds = list(zip(seconds["cleaned"], seconds["plain"], strict=True))
    figures["ratio"] = median([ours[0] / theirs[0] for ours, theirs in rounds])
    figures["cpu_ratio"] = median([ours[1] / theirs[1] for ours, theirs in rounds])
    return figures


def _cpu_s() -> float:
    """Return the processor time of all processes that this one has waited for, and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
