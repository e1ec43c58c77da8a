"""A build with all four presets and near-duplicates, compared with the same build without: the price of cleaning."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.benchmarks.build import recipe_text, time_ours
from tests.benchmarks.material import MB, corpus_files, text_bytes, write_tokenizer

ROUNDS = 6
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
        `text_mb`; the fastest of each, `plain_s` and `cleaned_s`; `ratio`, the second divided by the first; `spread`,
        slowest to fastest of both.

    Raises:
        TopicSkippedError: the corpus is not there.
        RuntimeError: a command failed; the message holds the end of what it said.
    """
    files = corpus_files("bulk_prose")
    tokenizer = write_tokenizer(files, work / "tokenizer.json")
    plain = recipe_text(files, tokenizer)
    seconds: dict[str, list[float]] = {"plain": [], "cleaned": []}
    for _ in range(1 if quick else ROUNDS):
        for name, text in (("plain", plain), ("cleaned", plain + CLEAN)):
            (work / f"{name}.toml").write_text(text)
            seconds[name].append(time_ours(work, work / f"{name}.toml", workers, validate="full", name=name))
            for folder in (name, f"{name}.work"):
                shutil.rmtree(work / folder)
    best = {name: min(found) for name, found in seconds.items()}
    return {
        "text_mb": text_bytes(files) / MB,
        "plain_s": best["plain"],
        "cleaned_s": best["cleaned"],
        "ratio": best["cleaned"] / best["plain"],
        "spread": max(max(found) / min(found) for found in seconds.values()),
    }
