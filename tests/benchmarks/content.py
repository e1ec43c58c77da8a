"""How fast content is fetched from a bucket on loopback: files a second of the whole fetch task, by connections.

    python -m tests.benchmarks.content

The bucket runs in a separate process on the same cores: these figures are a floor of what the client can do. With
50 ms before each answer they show what distance costs, and that connections make up for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.material import ROOT, TopicSkippedError, corpus_folder, median

SERVER = "tests.support.servers.bucket"
LATENCY_MS = 50
ROUNDS = 3


def bench_content(work: Path, *, quick: bool = False) -> dict[str, Any]:
    """Fetch the objects of the corpus, each row of them asked for, checked, decoded and written.

    Returns:
        `files_per_s`: median of the rounds; `fetch_only_files_per_s`: without reading metadata and writing documents;
        `distant_files_per_s` with 64 connections and `LATENCY_MS` before each answer, and its share of what the
        connections allow, `distant_share`; `cpu_us_per_file` of the fetching process.

    Raises:
        TopicSkippedError: the corpus is not there.
    """
    folder = corpus_folder("python_edu")
    tar = folder / "swh_content.tar"
    if not tar.exists():
        raise TopicSkippedError(f"no {tar}")
    rows = _write_rows(folder, work)
    with _bucket(tar) as url:
        rounds = [_fetch(rows, work / f"near-{index}", url) for index in range(1 if quick else ROUNDS)]
    with _bucket(tar, "--latency-ms", str(LATENCY_MS)) as url:
        distant = _fetch(rows, work / "distant", url)
    distant_files_per_s = distant["files"] / distant["fetch_s"]
    return {
        "files": rounds[0]["files"],
        "files_per_s": median([one["files"] / one["seconds"] for one in rounds]),
        "fetch_only_files_per_s": median([one["files"] / one["fetch_s"] for one in rounds]),
        "cpu_us_per_file": median([1e6 * one["cpu_s"] / one["files"] for one in rounds]),
        "distant_files_per_s": distant_files_per_s,
        "distant_share": distant_files_per_s / (64 / (LATENCY_MS / 1000)),
    }


def _write_rows(folder: Path, work: Path) -> Path:
    """Write the corpus's rows as four files, so that each object is asked for by four tasks."""
    import pyarrow.parquet as pq

    rows = work / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    table = pq.read_table(sorted(folder.glob("*.parquet")))
    for part in range(4):
        pq.write_table(table, rows / f"part-{part}.parquet")
    return rows


@contextmanager
def _bucket(tar: Path, *options: str) -> Iterator[str]:
    command = [sys.executable, "-m", SERVER, "--tar", str(tar), *options]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip() + "/content"
    finally:
        server.communicate(timeout=30)


def _fetch(rows: Path, work: Path, url: str) -> dict[str, float]:
    """Run the fetch tasks of all files one after the other in this process; return files, seconds and CPU."""
    from pipeline.recipe.sources import FilesSource
    from pipeline.sources import files
    from pipeline.sources.base import Unit
    from pipeline.sources.kinds import list_spans
    from pipeline.sources.software_heritage import fetch

    os.environ["TOKENMILL_CONTENT_ENDPOINT"] = url
    source = FilesSource(name="code", weight=1, paths=[f"{rows}/*.parquet"], content="software-heritage")
    fetched = 0
    fetch_s = 0.0
    started, cpu = time.perf_counter(), time.process_time()
    for span in list_spans(source, files.list_files(source)):
        task = fetch.make_fetch_task(Unit(0, (span,)), source, work)
        folder = work / task.digest
        folder.mkdir(parents=True)
        result = fetch.fetch_unit(folder, task.payload, lambda rows, fetched: None)
        fetched += result["fetched"]
        fetch_s += result["seconds"]["fetch_s"]
    seconds = time.perf_counter() - started
    return {"files": fetched, "seconds": seconds, "fetch_s": fetch_s, "cpu_s": time.process_time() - cpu}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name, value in bench_content(Path(folder)).items():
            print(f"{name:>24}  {value:,.2f}")
