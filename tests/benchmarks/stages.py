"""Where the milliseconds go: one build of `bulk_prose` in one process, by stage and step, in ms for each MB of text.

The figures are the build's own laps, from its work folder's build.json. Compression and hashing are steps inside
`shards.format.writer`, so both are timed once more, alone, on the tokens of the finished set.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.benchmarks.build import recipe_text, time_ours
from tests.benchmarks.material import MB, corpus_files, text_bytes, write_tokenizer


def bench_stages(work: Path, *, quick: bool = False) -> dict[str, Any]:
    """Build with one worker and split the time.

    Returns:
        `ms_per_mb`: step -> milliseconds for each MB of text, in the order of the work; `total_ms_per_mb`; `text_mb`.

    Raises:
        TopicSkippedError: the corpus is not there.
    """
    files = corpus_files("bulk_prose")[: 1 if quick else None]
    size_mb = text_bytes(files) / MB
    recipe = work / "stages.toml"
    recipe.write_text(recipe_text(files, write_tokenizer(corpus_files("bulk_prose"), work / "tokenizer.json")))
    wall = time_ours(work, recipe, 1, validate="full", name="stages")
    report = json.loads((work / "stages.work" / "build.json").read_text())
    seconds: dict[str, float] = {}
    for stage, facts in report["stages"].items():
        for step, spent in facts["detail"].items():
            seconds[f"{stage}: {step.removesuffix('_s')}"] = spent
        seconds[f"{stage}: around its tasks"] = facts["seconds"] - sum(facts["detail"].values())
    in_stages = sum(facts["seconds"] for facts in report["stages"].values())
    seconds["validation, recipe, manifest"] = report["seconds"] - in_stages
    seconds["process start and end"] = wall - report["seconds"]
    seconds |= {f"(alone) {name}": spent for name, spent in _time_writer_steps(work / "stages").items()}
    return {
        "text_mb": size_mb,
        "total_ms_per_mb": 1000 * wall / size_mb,
        "ms_per_mb": {name: 1000 * spent / size_mb for name, spent in seconds.items()},
    }


def _time_writer_steps(folder: Path) -> dict[str, float]:
    import zstandard

    import shards
    from shards.format.codec import FRAME_BYTES

    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    spent = {"compress": 0.0, "sha256 of the tokens": 0.0}
    for shard in shards.open_set(folder).shards:
        content = memoryview(shard.read()).cast("B")
        for start in range(0, len(content), FRAME_BYTES):
            begin = perf_counter()
            compressor.compress(content[start : start + FRAME_BYTES])
            middle = perf_counter()
            hashlib.sha256(content[start : start + FRAME_BYTES])
            spent["compress"] += middle - begin
            spent["sha256 of the tokens"] += perf_counter() - middle
    return spent
