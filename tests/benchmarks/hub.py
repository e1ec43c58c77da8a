"""Compare streaming from a Hub on loopback with the same files on disk: the cost of the network in a build.

The server is a separate process on the same cores. The tokenizer is trained, as every shipped recipe does: a build
begins with the sample, which encode reads again from the cache. Peaks of memory are taken at both sizes of text.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.build import run_timed
from tests.benchmarks.material import (
    MB,
    ROOT,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    corpus_files,
    median,
    text_bytes,
    write_copies,
)
from tests.benchmarks.memory import watch_build

REPO = "bench/bulk"


def bench_hub(work: Path, *, quick: bool = False, workers: int = 2) -> dict[str, Any]:
    """Build `bulk_prose` and four copies of it, from disk and from the Hub in turns.

    Returns:
        `hub_s`, `disk_s` and their `ratio` for the larger corpus; with `small_` for the small one; `worker_mb` and
        `small_worker_mb`, the peak of the largest worker at each size, and `worker_ratio`.

    Raises:
        TopicSkippedError: the corpus is not there.
        RuntimeError: a build failed.
    """
    small = corpus_files("bulk_prose")
    figures: dict[str, Any] = {}
    for name, files in (("small_", small), *(() if quick else (("", write_copies(small, work / "copies")),))):
        root = work / "hub"
        folder = root / REPO / "data"
        folder.mkdir(parents=True)
        for index, file in enumerate(files):
            (folder / f"train-{index:05d}-of-{len(files):05d}.parquet").symlink_to(file)
        with serve_hub(root) as url:
            environment = {"HF_ENDPOINT": url, "HF_HOME": str(work / "hf")}
            disk = f"paths = ['{folder}/*.parquet']"
            hub = f"kind = 'hub'\nrepo = '{REPO}'"
            seconds: dict[str, list[float]] = {"disk": [], "hub": []}
            for _ in range(1 if quick else 3):
                for kind, source in (("disk", disk), ("hub", hub)):
                    seconds[kind].append(_time(work, source, workers, environment))
            peak = watch_build(work, _recipe(hub), workers, environment)[1]
        figures |= {f"{name}text_mb": text_bytes(files) / MB, f"{name}worker_mb": peak / MB}
        figures |= {f"{name}{kind}_s": median(values) for kind, values in seconds.items()}
        figures[f"{name}ratio"] = figures[f"{name}hub_s"] / figures[f"{name}disk_s"]
        shutil.rmtree(root)
    if not quick:
        figures["worker_ratio"] = figures["worker_mb"] / figures["small_worker_mb"]
        shutil.rmtree(work / "copies")
    return figures


def _recipe(source: str) -> str:
    return (
        f'name = "bench"\n[[sources]]\nname = "bulk"\nweight = 1\n{source}\n'
        f'[tokenizer]\nvocab_size = {VOCAB_SIZE}\nspecial_tokens = {SPECIAL_TOKENS}\nsample_bytes = "100 MB"\n'
        "[shards]\ntokens = 4_400_000\n"
    )


def _time(work: Path, source: str, workers: int, environment: dict[str, str]) -> float:
    for name in ("streamed", "streamed.work", "hf"):
        shutil.rmtree(work / name, ignore_errors=True)
    recipe = work / "streamed.toml"
    recipe.write_text(_recipe(source))
    command = ["-m", "pipeline", "build", str(recipe), "--out", str(work / "streamed"), "--workers", str(workers)]
    seconds = run_timed(command, cwd=ROOT, **environment)
    shutil.rmtree(work / "streamed")
    shutil.rmtree(work / "streamed.work")
    return seconds


@contextmanager
def serve_hub(root: Path, *options: str) -> Generator[str]:
    """Serve a folder of repositories from a process of its own; yield its address."""
    command = [sys.executable, "-m", "tests.support.servers.hub", "--root", str(root), *options]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()
        server.stdout.read()
