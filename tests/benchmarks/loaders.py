"""`TokenWindows` through a DataLoader beside MosaicML's and LitData's loaders, and a memory map.

The others read what `tokenmill export` writes of the same set. Each loader runs in a process of its own, without
workers, and they take turns. MosaicML's and LitData's are in the environment of `make test-exports`.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from shards import open_set
from shards.convert.export import export_set
from shards.convert.layouts import LayoutName
from tests.benchmarks.build import write_set
from tests.benchmarks.harness import MB, ROOT, Figures, TopicSkippedError, alternate, run_module

BATCH, SEQ_LEN = 64, 512
ROUNDS = 3
"""Each loader runs this often, in turns, and its best round counts: a shared machine only ever makes it slower."""
OURS = ("tokenmill", "tokenmill_stream")
LAYOUTS: dict[str, LayoutName] = {"mosaicml": "mds", "litdata": "litdata", "memory_map": "nanogpt"}


def bench_loader(work: Path, quick: bool) -> Figures:
    """Read an epoch of the train split with our loaders and the memory map, as `bench_loaders` with all."""
    return _compare(work, [*OURS, "memory_map"], sys.executable, rounds=1 if quick else ROUNDS)


def bench_loaders(work: Path, quick: bool) -> Figures:
    """Read an epoch of the train split with each loader.

    `first_batch_ms` counts from opening on, `resident_mb` is memory besides what is imported; a `_ratio` of the others
    is above 1 if `TokenWindows` is faster by the clock.
    """
    return _compare(work, [*OURS, *LAYOUTS], exports_python(), rounds=1 if quick else ROUNDS)


def _compare(work: Path, kinds: list[str], python: str | Path, *, rounds: int) -> Figures:
    shard_set = open_set(write_set(work))
    train = shard_set.splits["train"]
    places = dict.fromkeys(kinds, work / "set")
    for kind in kinds[len(OURS) :]:
        places[kind] = work / "exports" / LAYOUTS[kind]
        if not places[kind].exists():
            export_set(shard_set, places[kind], layout=LAYOUTS[kind], splits=("train",))
    tokens, documents = sum(shard.num_tokens for shard in train), sum(shard.num_documents for shard in train)
    samples = tokens // (4 if rounds == 1 else 1) // SEQ_LEN // BATCH * BATCH
    numbers = (samples, BATCH, SEQ_LEN, max(1, BATCH * SEQ_LEN * documents // tokens))
    home = work / "home"  # LitData and MosaicML keep files in the user's
    home.mkdir(exist_ok=True)
    own: dict[str, Any] = {"HOME": str(home), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}

    def read(kind: str) -> dict[str, float]:
        interpreter = sys.executable if kind in OURS else python
        return run_module("tests.benchmarks.read_set", kind, places[kind], *numbers, python=interpreter, **own)

    runs = alternate(rounds, {kind: partial(read, kind) for kind in places})
    count = samples * SEQ_LEN
    figures: Figures = {"tokens": count}
    for kind, found in runs.items():
        best = {name: min(run[name] for run in found) for name in found[0]}
        figures[kind] = {
            "tokens_per_s": count / best["seconds"],
            "processor_tokens_per_s": count / best["processor_s"],
            "import_s": best["import_s"],
            "first_batch_ms": 1000 * best["first_batch_s"],
            "first_batch_processor_ms": 1000 * best["first_batch_processor_s"],
            "resident_mb": best["resident_bytes"] / MB,
            "disk_mb": sum(path.stat().st_size for path in _train_files(kind, places[kind])) / MB,
        }
    figures["first_batch_ms"] = figures["tokenmill"]["first_batch_ms"]
    for kind in kinds[len(OURS) :]:
        for name in ("", "processor_"):
            key = f"{name}tokens_per_s"
            figures[f"{kind}_{name}ratio"] = figures["tokenmill"][key] / figures[kind][key]
    return figures


def exports_python() -> Path:
    """Return the Python of the environment that has the other loaders.

    Raises:
        TopicSkippedError: it is not there.
    """
    folder = Path(os.environ.get("TOKENMILL_EXPORTS_VENV", ROOT / ".venv-exports"))
    python = folder / "bin/python"
    if not python.exists():
        remedy = "`make test-exports` makes it; TOKENMILL_EXPORTS_VENV names another"
        raise TopicSkippedError(f"no environment with MosaicML's and LitData's loaders in {folder}: {remedy}")
    return python


def _train_files(kind: str, place: Path) -> list[Path]:
    """Return the files that a loader reads tokens from, and their indices."""
    if kind in OURS:
        return [place / "manifest.json", *place.glob("train-*.bin.zst")]
    return [place / "train.bin"] if kind == "memory_map" else list((place / "train").iterdir())
