"""Compare build throughput with datatrove's DocumentTokenizer and merger: same files, tokenizer and processes.

Both are commands of their own, process start included, run in turns. Ours is timed twice: as shipped, with full
validation of the finished set, and with the quick one, which is closer to what datatrove does (it checks nothing).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.material import (
    MB,
    ROOT,
    corpus_files,
    corpus_folder,
    median,
    text_bytes,
    write_copies,
    write_tokenizer,
)

SHARD_TOKENS = 4_400_000  # 8 training shards: a whole number for each process
VAL_TOKENS = 100_000


@dataclass(frozen=True)
class Usage:
    """What a command took."""

    seconds: float
    """By the clock."""
    core_seconds: float
    """Of the processor, in all its processes."""


def bench_build(work: Path, *, quick: bool = False, workers: int = 2) -> dict[str, Any]:
    """Build `bulk_prose` both ways, and once more with four times as much text.

    The larger corpus (not with `quick`) shows the speed once the start of two processes is a small part of the time.

    Returns:
        `text_mb`; for each of `ours`, `ours_quick_validation` and `datatrove` the median `_s` and `_mb_s`; `ratio` and
        `ratio_quick_validation`; `spread`, slowest to fastest run of ours; the larger corpus's figures as `large_`.
        The last set of ours stays in `work/set`.

    Raises:
        TopicSkippedError: the corpus is not there.
        RuntimeError: a command failed; the message holds the end of what it said.
    """
    files = corpus_files("bulk_prose")
    size = text_bytes(files)
    tokenizer = write_tokenizer(files, work / "tokenizer.json")
    recipe = work / "bench.toml"
    recipe.write_text(recipe_text(files, tokenizer))
    seconds: dict[str, list[float]] = {"ours": [], "ours_quick_validation": [], "datatrove": []}
    # On two cores datatrove is fastest with as many tasks as processes, batches of 1,000, and one thread in each.
    for _ in range(1 if quick else 3):
        seconds["datatrove"].append(_time_datatrove(work, tokenizer, workers, corpus_folder("bulk_prose")))
        for _ in range(2):  # ours is so short that it may be timed twice as often
            seconds["ours"].append(time_ours(work, recipe, workers, validate="full"))
            seconds["ours_quick_validation"].append(time_ours(work, recipe, workers, validate="quick"))
    figures: dict[str, Any] = {"text_mb": size / MB, "workers": workers}
    for name, values in seconds.items():
        figures[f"{name}_s"] = median(values)
        figures[f"{name}_mb_s"] = size / MB / median(values)
    figures["ratio"] = figures["datatrove_s"] / figures["ours_s"]
    figures["ratio_quick_validation"] = figures["datatrove_s"] / figures["ours_quick_validation_s"]
    figures["spread"] = max(seconds["ours"]) / min(seconds["ours"])
    return figures if quick else figures | _bench_large(work, files, tokenizer, workers)


def _bench_large(work: Path, files: list[Path], tokenizer: Path, workers: int) -> dict[str, Any]:
    copies = write_copies(files, work / "copies")
    recipe = work / "large.toml"
    recipe.write_text(recipe_text(copies, tokenizer))
    size = text_bytes(copies) / MB
    datatrove = _time_datatrove(work, tokenizer, workers, work / "copies")
    ours = median([time_ours(work, recipe, workers, validate="full", name="large") for _ in range(3)])
    for folder in ("copies", "large", "large.work"):
        shutil.rmtree(work / folder)
    figures = {"text_mb": size, "ours_s": ours, "ours_mb_s": size / ours, "datatrove_s": datatrove}
    figures |= {"datatrove_mb_s": size / datatrove, "ratio": datatrove / ours}
    return {f"large_{name}": value for name, value in figures.items()}


def write_set(work: Path) -> Path:
    """Return the shard set of `bulk_prose` that `bench_build` left in `work/set`; build it if it does not exist."""
    if not (work / "set" / "manifest.json").exists():
        files = corpus_files("bulk_prose")
        recipe = work / "bench.toml"
        recipe.write_text(recipe_text(files, write_tokenizer(files, work / "tokenizer.json")))
        time_ours(work, recipe, 2, validate="quick")
    return work / "set"


def recipe_text(files: list[Path], tokenizer: Path) -> str:
    """Return a recipe of one source with a given tokenizer, so that only encode, mix and assemble have work to do."""
    return "\n".join(
        [
            'name = "bench"',
            "[[sources]]",
            'name = "bulk_prose"',
            f"paths = {json.dumps([str(file) for file in files])}",
            "weight = 1",
            "[tokenizer]",
            f"file = {json.dumps(str(tokenizer))}",
            f"[split]\nval_tokens = {VAL_TOKENS}",
            f"[shards]\ntokens = {SHARD_TOKENS}",
            "",
        ]
    )


def time_ours(work: Path, recipe: Path, workers: int, *, validate: str, name: str = "set") -> float:
    """Time one build from nothing with our command; the set is left in `work/NAME`, its scratch in `work/NAME.work`."""
    return measure_ours(work, recipe, workers, validate=validate, name=name).seconds


def measure_ours(work: Path, recipe: Path, workers: int, *, validate: str = "full", name: str = "set") -> Usage:
    """Measure one build as `time_ours` does."""
    for folder in (name, f"{name}.work"):
        shutil.rmtree(work / folder, ignore_errors=True)
    command = ["-m", "pipeline", "build", str(recipe), "--out", str(work / name)]
    return run_measured([*command, "--workers", str(workers), "--validate", validate], cwd=ROOT)


def _time_datatrove(work: Path, tokenizer: Path, workers: int, folder: Path) -> float:
    out = work / "datatrove"
    shutil.rmtree(out, ignore_errors=True)
    script = Path(__file__).with_name("datatrove_build.py")
    command = ["-P", str(script), "--input", str(folder), "--tokenizer", str(tokenizer)]
    command += ["--out", str(out), "--tasks", str(workers), "--workers", str(workers)]
    seconds = run_timed([*command, "--shard-tokens", str(SHARD_TOKENS)], cwd=ROOT, RAYON_NUM_THREADS="1")
    shutil.rmtree(out)
    return seconds


def _as_installed(environment: os._Environ[str]) -> dict[str, str]:
    """Let modules keep their compiled form, as they do on a person's machine and as every installed library has it."""
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_timed(arguments: list[str], *, cwd: Path, **environment: str) -> float:
    """Run Python with the given arguments and return the seconds it took.

    Raises:
        RuntimeError: it failed.
    """
    return run_measured(arguments, cwd=cwd, **environment).seconds


def run_measured(arguments: list[str], *, cwd: Path, **environment: str) -> Usage:
    """Run Python with the given arguments and return what it took, all its processes included.

    Raises:
        RuntimeError: it failed.
    """
    meter = str(Path(__file__).with_name("core_seconds.py"))
    # Into a file: a pipe would be waited for until the last helper process has closed it, after the command's end.
    with tempfile.TemporaryFile("w+") as output, tempfile.NamedTemporaryFile("r") as figures:
        done = subprocess.run(
            [sys.executable, "-P", meter, figures.name, sys.executable, *arguments],
            cwd=cwd,
            env=_as_installed(os.environ) | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(arguments)}: exit code {done.returncode}\n{output.read()[-2000:]}")
        return Usage(**json.load(figures))
