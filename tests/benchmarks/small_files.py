"""What many small files cost: the same documents as one file each, and as one file of JSON lines.

Planned, built and built again with nothing to do; the sets must hold the same documents. Run alone:

    python -m tests.benchmarks.small_files [--quick | --files NUMBER]

Seconds are measured twice: by the clock, and of the processor, in this process and in its workers. The second say what
the first would be on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILES, QUICK_FILES = 20_000, 2_000
FILES_A_FOLDER = 1000


def bench_small_files(work: Path, *, quick: bool = False, files: int = FILES) -> dict[str, Any]:
    """Plan, build and build again, from small files and from one file.

    Returns:
        `files`; `plan_s`, `build_s` and `again_s` of a thousand small files, on two workers, without process start, and
        `plan_cpu_s`, `build_cpu_s` and `again_cpu_s`; `plan_ratio`, `build_ratio` and `again_ratio` to one file of the
        same documents; `load`, the processes that wanted to run in the minutes before the end, on average.

    Raises:
        RuntimeError: the two sets do not hold the same number of documents.
    """
    files = QUICK_FILES if quick else files
    root = work / "small-files"
    _write_files(root, files)
    small, documents = _time_steps(root, "small", "small/*/*.md")
    load = os.getloadavg()[1]
    one, expected = _time_steps(root, "one", "one.jsonl")
    if documents != expected:
        raise RuntimeError(f"{documents} documents of small files, {expected} of one file that holds the same")
    figures: dict[str, Any] = {"files": files, "load": load}
    for step, (wall, cpu) in small.items():
        figures |= {f"{step}_s": wall * 1000 / files, f"{step}_cpu_s": cpu * 1000 / files}
        figures[f"{step}_ratio"] = wall / one[step][0]
    return figures


def _time_steps(root: Path, name: str, paths: str) -> tuple[dict[str, tuple[float, float]], int]:
    """Return the seconds of each step, by the clock and of the processor, and the documents of the set."""
    from pipeline.builder.python_api import build_set, plan_set

    recipe, documents = _recipe(name, str(root / paths)), 0

    def plan() -> None:
        plan_set(recipe, probe=False)

    def build() -> None:
        nonlocal documents
        built = build_set(recipe, out=root / f"{name}.set", work=root / f"{name}.work", workers=2)
        documents = sum(split.documents for split in built.manifest.splits.values())

    times = {"plan": _time(plan), "build": _time(build), "again": _time(build)}  # the last one has nothing to do
    return times, documents


def _time(step: Callable[[], object]) -> tuple[float, float]:
    started, used = time.perf_counter(), _processor_seconds()
    step()
    return time.perf_counter() - started, _processor_seconds() - used


def _processor_seconds() -> float:
    """Return what this process has used, with its children that are at work, and theirs that have ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # the name before it may hold anything
        except OSError:
            continue  # has ended
        if int(fields[1]) == os.getpid():
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(os.times()[:4])


def _recipe(name: str, paths: str) -> dict[str, Any]:
    return {
        "name": name,
        "sources": [{"name": "files", "paths": [paths], "weight": 1}],
        "tokenizer": {"vocab_size": 1024, "special_tokens": ["<|endoftext|>"], "sample_bytes": "1 MB"},
        "mix": {"tokens": "max", "when_short": "shrink"},
        "split": {"val_tokens": 10_000},
    }


def _write_files(root: Path, files: int) -> None:
    rng = random.Random(1)
    words = [f"{start}{end}" for start in ("pre", "con", "un", "mi") for end in ("tain", "form", "ter", "gra", "lum")]
    texts = [f"{number} " + " ".join(rng.choices(words, k=rng.randint(20, 120))) for number in range(files)]
    for number, text in enumerate(texts):
        path = root / "small" / f"{number // FILES_A_FOLDER:04d}" / f"{number:07d}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "one.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--files", type=int, default=FILES, metavar="NUMBER")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(bench_small_files(Path(folder), quick=flags.quick, files=flags.files), indent=2))
