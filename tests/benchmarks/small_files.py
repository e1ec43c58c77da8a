"""What many small files cost: the same documents as one file each, and as one file of JSON lines.

Planned, built and built again with nothing to do; the sets must hold the same documents.

Seconds are measured twice: by the clock, and of the processor, in this process and in its workers. The second say what
the first would be on a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Figures, Usage

FILES, QUICK_FILES = 20_000, 2_000
FILES_A_FOLDER = 1000


def bench_small_files(work: Path, quick: bool) -> Figures:
    """Plan, build and build again, from small files and from one file of the same documents.

    Seconds are of a thousand small files, on two workers, without process start; `load` is the processes that wanted to
    run in the minutes before.
    """
    files = QUICK_FILES if quick else FILES
    root = work / "small-files"
    _write_files(root, files)
    small, documents = _time_steps(root, "small", "small/*/*.md")
    figures: Figures = {"files": files, "load": os.getloadavg()[1]}
    one, expected = _time_steps(root, "one", "one.jsonl")
    if documents != expected:
        raise RuntimeError(f"{documents} documents of small files, {expected} of one file that holds the same")
    for step, usage in small.items():
        figures |= {f"{step}_s": usage.seconds * 1000 / files, f"{step}_cpu_s": usage.core_seconds * 1000 / files}
        figures[f"{step}_ratio"] = usage.seconds / one[step].seconds
    return figures


def _time_steps(root: Path, name: str, paths: str) -> tuple[dict[str, Usage], int]:
    """Return what each step took, and the documents of the set."""
    from pipeline.builder.python_api import build_set, plan_set

    recipe = {
        "name": name,
        "sources": [{"name": "files", "paths": [str(root / paths)], "weight": 1}],
        "tokenizer": {"vocab_size": 1024, "special_tokens": ["<|endoftext|>"], "sample_bytes": "1 MB"},
        "mix": {"tokens": "max", "when_short": "shrink"},
        "split": {"val_tokens": 10_000},
    }
    build = partial(build_set, recipe, out=root / f"{name}.set", work=root / f"{name}.work", workers=2)
    planned, _ = _time(partial(plan_set, recipe, probe=False))
    built, report = _time(build)
    again, _ = _time(build)  # has nothing to do
    documents = sum(split.documents for split in report.manifest.splits.values())
    return {"plan": planned, "build": built, "again": again}, documents


def _time(step: Callable[[], Any]) -> tuple[Usage, Any]:
    started, used = time.perf_counter(), _processor_seconds()
    result = step()
    return Usage(time.perf_counter() - started, _processor_seconds() - used), result


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


def _write_files(root: Path, files: int) -> None:
    rng = random.Random(1)
    words = [f"{start}{end}" for start in ("pre", "con", "un", "mi") for end in ("tain", "form", "ter", "gra", "lum")]
    texts = [f"{number} " + " ".join(rng.choices(words, k=rng.randint(20, 120))) for number in range(files)]
    for number, text in enumerate(texts):
        path = root / "small" / f"{number // FILES_A_FOLDER:04d}" / f"{number:07d}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "one.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
