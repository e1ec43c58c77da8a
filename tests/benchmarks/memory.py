"""Peak memory of a build's processes, at one size of text and at four times as much: it must not grow with the corpus.

The larger corpus is four copies of `bulk_prose` in which each document begins with its copy's number, so that all are
distinct. Peaks are the kernel's own high-water marks (VmHWM), read every few milliseconds. There is no quicker
variant: a stage of a single task runs in the command itself, and nothing would be compared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.build import recipe_text
from tests.benchmarks.material import MB, ROOT, corpus_files, text_bytes, write_copies, write_tokenizer

_POLL_SECONDS = 0.01


def bench_memory(work: Path, *, workers: int = 2) -> dict[str, Any]:
    """Build both corpora and watch every process.

    Returns:
        `text_mb`, `large_text_mb`; peaks of the largest worker (`worker_mb`, `large_worker_mb`) and of the command
        itself (`command_mb`, `large_command_mb`); `worker_ratio` and `command_ratio`, large to small.

    Raises:
        TopicSkippedError: the corpus is not there.
        RuntimeError: a build failed.
    """
    files = corpus_files("bulk_prose")
    tokenizer = write_tokenizer(files, work / "tokenizer.json")
    copies = write_copies(files, work / "copies")
    small = watch_build(work, recipe_text(files, tokenizer), workers)
    large = watch_build(work, recipe_text(copies, tokenizer), workers)
    figures: dict[str, Any] = {"text_mb": text_bytes(files) / MB, "large_text_mb": text_bytes(copies) / MB}
    shutil.rmtree(work / "copies")
    for name, peaks in (("", small), ("large_", large)):
        figures |= {f"{name}command_mb": peaks[0] / MB, f"{name}worker_mb": peaks[1] / MB}
    figures["worker_ratio"] = large[1] / small[1]
    figures["command_ratio"] = large[0] / small[0]
    return figures


def watch_build(work: Path, recipe: str, workers: int, environment: dict[str, str] | None = None) -> tuple[int, int]:
    """Build from nothing; return the peak bytes of the command and of its largest other process."""
    import psutil

    for name in ("memory", "memory.work"):
        shutil.rmtree(work / name, ignore_errors=True)
    path, log = work / "memory.toml", work / "memory.log"
    path.write_text(recipe)
    command = [sys.executable, "-m", "pipeline", "build", str(path), "--out", str(work / "memory")]
    peaks: dict[int, int] = {}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--workers", str(workers)],
            cwd=ROOT,
            env=os.environ | (environment or {}),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        root = psutil.Process(process.pid)
        while process.poll() is None:
            for pid in [process.pid, *_descendants(root)]:
                peaks[pid] = max(peaks.get(pid, 0), _high_water(pid))
            time.sleep(_POLL_SECONDS)
    if process.returncode:
        raise RuntimeError(f"build: exit code {process.returncode}\n{log.read_text()[-2000:]}")
    for name in ("memory", "memory.work"):
        shutil.rmtree(work / name)
    own = peaks.pop(process.pid)
    return own, max(peaks.values(), default=0)


def _descendants(root: Any) -> list[int]:
    import psutil

    try:
        return [child.pid for child in root.children(recursive=True)]
    except psutil.NoSuchProcess:  # it ended between two looks
        return []


def _high_water(pid: int) -> int:
    """Return a process's peak resident bytes, 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
