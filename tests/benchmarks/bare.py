"""A build beside the bare script: what the guarantees cost, in core-seconds and by the clock, and where they go.

Both get the same files and tokenizer, and are commands of their own on two processes, start included, by turns. The
text is `bulk_prose`, 8 times (1.2 GB) and 16 times (2.4 GB), each document with its copy's number before it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.benchmarks.build import Usage, measure_ours, run_measured
from tests.benchmarks.material import MB, ROOT, corpus_files, median, text_bytes, write_copies, write_tokenizer

COPIES = (8, 16)
ROUNDS = 3
WORKERS = 2
RECIPE = """
name = "bare"
[[sources]]
name = "bulk_prose"
paths = ["{folder}/*.parquet"]
weight = 1
[tokenizer]
file = "{tokenizer}"
[split]
val_tokens = 100_000
"""
"""A given tokenizer, the default size of shards."""


def bench_bare(work: Path, *, quick: bool = False) -> dict[str, Any]:
    """Build both ways, three times each by turns; with `quick` 1.2 GB once.

    Returns:
        For 1.2 GB, and with the prefix `large_` for 2.4 GB: `text_mb`; medians of `ours_core_s`, `ours_s`,
        `script_core_s`, `script_s`; `core_ratio` and `wall_ratio`, medians of ours divided by the script's of the same
        turn; `pyarrow_core_ratio` and `pyarrow_wall_ratio` to the script that reads with pyarrow; `core_seconds` of the
        last build, by step.

    Raises:
        TopicSkippedError: the corpus is not there.
        RuntimeError: a command failed, or the sets do not have as many tokens.
    """
    figures: dict[str, Any] = {}
    for copies, prefix in zip(COPIES[: 1 if quick else None], ("", "large_"), strict=False):
        found = _compare(work, copies, rounds=1 if quick else ROUNDS)
        figures |= {f"{prefix}{name}": value for name, value in found.items()}
    return figures


def _compare(work: Path, copies: int, *, rounds: int) -> dict[str, Any]:
    corpus = corpus_files("bulk_prose")
    tokenizer = write_tokenizer(corpus, work / "tokenizer.json")
    files = write_copies(corpus, work / "copies", copies)
    recipe = work / "bare.toml"
    recipe.write_text(RECIPE.format(folder=work / "copies", tokenizer=tokenizer))
    turns: list[dict[str, Usage]] = []
    for _ in range(rounds):
        turn = {reader: _run_script(work, tokenizer, files, reader) for reader in ("gigatoken", "pyarrow")}
        turns.append(turn | {"ours": measure_ours(work, recipe, WORKERS, name="bare")})
        _check_tokens(work)
    figures: dict[str, Any] = {"text_mb": text_bytes(files) / MB}
    for name, run in (("ours", "ours"), ("script", "gigatoken")):
        figures[f"{name}_core_s"] = median([turn[run].core_seconds for turn in turns])
        figures[f"{name}_s"] = median([turn[run].seconds for turn in turns])
    for prefix, script in (("", "gigatoken"), ("pyarrow_", "pyarrow")):
        ratios = [(turn["ours"], turn[script]) for turn in turns]
        figures[f"{prefix}core_ratio"] = median([ours.core_seconds / bare.core_seconds for ours, bare in ratios])
        figures[f"{prefix}wall_ratio"] = median([ours.seconds / bare.seconds for ours, bare in ratios])
    figures["core_seconds"] = divide_core_seconds(work / "bare.work", turns[-1]["ours"].core_seconds)
    for folder in ("copies", "bare", "bare.work", "script"):
        shutil.rmtree(work / folder)
    return figures


def _run_script(work: Path, tokenizer: Path, files: list[Path], reader: str) -> Usage:
    shutil.rmtree(work / "script", ignore_errors=True)
    script = [str(Path(__file__).with_name("bare_script.py")), str(tokenizer), str(work / "script")]
    return run_measured([*script, *map(str, files), "--reader", reader], cwd=ROOT)


def _check_tokens(work: Path) -> None:
    """Check that the set has the script's tokens, but for the documents that were dropped because they repeat."""
    manifest = json.loads((work / "bare" / "manifest.json").read_text())
    ours = sum(split["tokens"] for split in manifest["splits"].values())
    script = sum(path.stat().st_size for path in (work / "script").iterdir()) // 2
    if not 0.99 * script <= ours <= script:
        raise RuntimeError(f"the set has {ours} tokens, the script's files {script}: they did not do the same work")


def divide_core_seconds(work: Path, total: float) -> dict[str, float]:
    """Return where the core-seconds of a build went, by stage and step, from its build.json; the rest last.

    Args:
        work: the work folder.
        total: those of all its processes.
    """
    report = json.loads((work / "build.json").read_text())
    steps = {
        f"{stage}: {step.removesuffix('_s')}": spent
        for stage, facts in report["stages"].items()
        for step, spent in facts["core_seconds"].items()
    }
    steps["validation"] = report["validate"]["core_seconds"]
    return steps | {"start, mix, manifest, end": total - sum(steps.values())}
