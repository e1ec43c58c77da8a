"""How fast content is fetched from a bucket on loopback: files a second of the whole fetch task, by connections.

The bucket runs in a separate process on the same cores: these figures are a floor of what the client can do. With
50 ms before each answer they show what distance costs, and that connections make up for it.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.benchmarks.harness import Figures, TopicSkippedError, median, serve, timed
from tests.benchmarks.material import corpus_folder

SERVER = "tests.support.servers.bucket"
LATENCY_MS = 50
ROUNDS = 3


def bench_content(work: Path, quick: bool) -> Figures:
    """Fetch the objects of the corpus, each row of them asked for, checked, decoded and written.

    `fetch_only_files_per_s` leaves out reading metadata and writing documents; `distant_share` is the part of what 64
    connections allow with `LATENCY_MS` before each answer.
    """
    import pyarrow.parquet as pq

    folder = corpus_folder("python_edu")
    tar = folder / "swh_content.tar"
    if not tar.exists():
        raise TopicSkippedError(f"no {tar}")
    # The corpus's rows as four files, so that each object is asked for by four tasks.
    (work / "rows").mkdir(parents=True, exist_ok=True)
    table = pq.read_table(sorted(folder.glob("*.parquet")))
    for part in range(4):
        pq.write_table(table, work / f"rows/part-{part}.parquet")
    with serve(SERVER, "--tar", tar) as url:
        near = [_fetch(work, f"near-{index}", url) for index in range(1 if quick else ROUNDS)]
    with serve(SERVER, "--tar", tar, "--latency-ms", LATENCY_MS) as url:
        distant = _fetch(work, "distant", url)
    distant_files_per_s = distant["files"] / distant["fetch_s"]
    return {
        "files": near[0]["files"],
        "files_per_s": median([one["files"] / one["seconds"] for one in near]),
        "fetch_only_files_per_s": median([one["files"] / one["fetch_s"] for one in near]),
        "cpu_us_per_file": median([1e6 * one["cpu_s"] / one["files"] for one in near]),
        "distant_files_per_s": distant_files_per_s,
        "distant_share": distant_files_per_s / (64 / (LATENCY_MS / 1000)),
    }


def _fetch(work: Path, name: str, url: str) -> dict[str, float]:
    """Run the fetch tasks of all files one after the other in this process; return files, seconds and CPU."""
    from pipeline.recipe.sources import FilesSource
    from pipeline.sources import files
    from pipeline.sources.base import Unit
    from pipeline.sources.kinds import list_spans
    from pipeline.sources.software_heritage import fetch

    os.environ["TOKENMILL_CONTENT_ENDPOINT"] = f"{url}/content"
    source = FilesSource(name="code", weight=1, paths=[f"{work}/rows/*.parquet"], content="software-heritage")
    found = {"files": 0, "fetch_s": 0.0}

    def run() -> None:
        for span in list_spans(source, files.list_files(source)):
            task = fetch.make_fetch_task(Unit(0, (span,)), source, work / name)
            folder = work / name / task.digest
            folder.mkdir(parents=True)
            result = fetch.fetch_unit(folder, task.payload, lambda rows, fetched: None)
            found["files"] += result.fetched
            found["fetch_s"] += result.seconds["fetch_s"]

    usage, _ = timed(run)
    return found | {"seconds": usage.seconds, "cpu_s": usage.core_seconds}
