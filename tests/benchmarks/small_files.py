"""What many small files cost: the same documents as one file each, and as one file of JSON lines.

Planned, built and built again with nothing to do; the sets must hold the same documents. Run alone:

    python -m tests.benchmarks.small_files
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FILES, QUICK_FILES = 20_000, 2_000
FILES_A_FOLDER = 1000


def bench_small_files(work: Path, *, quick: bool = False) -> dict[str, Any]:
    """Plan, build and build again, from small files and from one file.

    Returns:
        `files`; `plan_s`, `build_s` and `again_s` of a thousand small files, on two workers, without process start;
        `plan_ratio`, `build_ratio` and `again_ratio` to one file of the same documents.

    Raises:
        RuntimeError: the two sets do not hold the same number of tokens.
    """
    files = QUICK_FILES if quick else FILES
    root = work / "small-files"
    _write_files(root, files)
    small, tokens = _time_steps(root, "small", "small/*/*.md")
    one, expected = _time_steps(root, "one", "one.jsonl")
    if tokens != expected:
        raise RuntimeError(f"{tokens} tokens from small files, {expected} from one file of the same documents")
    per_thousand = {f"{step}_s": seconds * 1000 / files for step, seconds in small.items()}
    return {"files": files, **per_thousand, **{f"{step}_ratio": small[step] / one[step] for step in small}}


def _time_steps(root: Path, name: str, paths: str) -> tuple[dict[str, float], int]:
    """Return the seconds of each step, and the tokens of the set."""
    from pipeline.build.api import build_set, plan_set
    from pipeline.recipe.load import load_recipe

    times = [time.perf_counter()]
    recipe = load_recipe(_recipe(name, paths), folder=root)
    plan_set(recipe, probe=False)
    times.append(time.perf_counter())
    out, work = root / f"{name}.set", root / f"{name}.work"
    build_set(recipe, out=out, work=work, workers=2)
    times.append(time.perf_counter())
    built = build_set(recipe, out=out, work=work, workers=2)  # has nothing to do
    times.append(time.perf_counter())
    seconds = [stop - start for start, stop in itertools.pairwise(times)]
    tokens = sum(split.tokens for split in built.manifest.splits.values())
    return dict(zip(("plan", "build", "again"), seconds, strict=True)), tokens


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
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(bench_small_files(Path(folder), quick="--quick" in sys.argv), indent=2))
