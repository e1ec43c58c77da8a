"""Compare `TokenWindows` through a DataLoader with MosaicML's and LitData's loaders, and with a memory map.

    python -m tests.benchmarks.loaders DIR

The others read what `tokenmill export` writes of the same set. Each loader runs in a process of its own, without
workers, and they take turns. MosaicML's and LitData's are in the environment of `make test-exports`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shards import open_set
from shards.convert.export import export_set
from shards.convert.layouts.__init__ import LayoutName
from tests.benchmarks.material import MB, ROOT, TopicSkippedError

BATCH, SEQ_LEN = 64, 512
ROUNDS = 3
"""Each loader runs this often, in turns, and its best round counts: a shared machine only ever makes it slower."""

OURS = ("tokenmill", "tokenmill_stream")
LAYOUTS: dict[str, LayoutName] = {"mosaicml": "mds", "litdata": "litdata", "memory_map": "nanogpt"}


def bench_loaders(set_path: Path, work: Path, *, quick: bool = False) -> dict[str, Any]:
    """Read an epoch of the train split with each loader.

    Returns:
        `tokens` read a round; for each loader, and for `TokenStream` as `tokenmill_stream`, `tokens_per_s`,
        `processor_tokens_per_s`, `import_s` of its library besides torch, `first_batch_ms` from opening on,
        `first_batch_processor_ms` of all threads, `resident_mb` at the most besides what is imported, and `disk_mb`;
        our `first_batch_ms` again; and for each of the
        others its `_ratio` (above 1: `TokenWindows` is faster by the clock) and `_processor_ratio`.

    Raises:
        TopicSkippedError: the environment of the others is not installed.
        RuntimeError: a loader failed.
    """
    python = exports_python()
    shard_set = open_set(set_path)
    train = shard_set.splits["train"]
    places = dict.fromkeys(OURS, set_path)
    for kind, layout in LAYOUTS.items():
        places[kind] = work / "exports" / layout
        if not places[kind].exists():
            export_set(shard_set, places[kind], layout=layout, splits=("train",))
    tokens, documents = sum(shard.num_tokens for shard in train), sum(shard.num_documents for shard in train)
    samples = tokens // (4 if quick else 1) // SEQ_LEN // BATCH * BATCH
    options = [samples, BATCH, SEQ_LEN, max(1, BATCH * SEQ_LEN * documents // tokens)]
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in places}
    for _ in range(1 if quick else ROUNDS):
        for kind, place in places.items():
            runs[kind].append(_run(sys.executable if kind in OURS else str(python), kind, place, options, work))
    figures: dict[str, Any] = {"tokens": samples * SEQ_LEN}
    read = samples * SEQ_LEN
    for kind, found in runs.items():
        best = {name: min(run[name] for run in found) for name in found[0]}
        figures[kind] = {
            "tokens_per_s": read / best["seconds"],
            "processor_tokens_per_s": read / best["processor_s"],
            "import_s": best["import_s"],
            "first_batch_ms": 1000 * best["first_batch_s"],
            "first_batch_processor_ms": 1000 * best["first_batch_processor_s"],
            "resident_mb": best["resident_bytes"] / MB,
            "disk_mb": sum(path.stat().st_size for path in _train_files(kind, places[kind])) / MB,
        }
    figures["first_batch_ms"] = figures["tokenmill"]["first_batch_ms"]
    for kind in LAYOUTS:
        for name, key in (("ratio", "tokens_per_s"), ("processor_ratio", "processor_tokens_per_s")):
            figures[f"{kind}_{name}"] = figures["tokenmill"][key] / figures[kind][key]
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


def _run(python: str, kind: str, place: Path, options: list[int], work: Path) -> dict[str, float]:
    command = [python, "-m", "tests.benchmarks.read_set", kind, str(place), *map(str, options)]
    home = work / "home"  # LitData and MosaicML keep files in the user's
    home.mkdir(exist_ok=True)
    environment = {**os.environ, "HOME": str(home), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{kind}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _train_files(kind: str, place: Path) -> list[Path]:
    """Return the files that a loader reads tokens from, and their indices."""
    if kind in OURS:
        return [place / "manifest.json", *place.glob("train-*.bin.zst")]
    return [place / "train.bin"] if kind == "memory_map" else list((place / "train").iterdir())


if __name__ == "__main__":
    from tests.benchmarks.bench import print_table
    from tests.benchmarks.build import write_set

    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        print_table("loaders", bench_loaders(write_set(Path(sys.argv[1])), Path(folder)))
