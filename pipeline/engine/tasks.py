"""The engine: runs the tasks of a stage that are not yet done, and keeps a receipt for each.

A task writes into a temporary folder; when it is done its files are synced, a receipt is put beside them, and the
folder is renamed to the task's digest: it is there whole or not at all. A re-run skips exactly the tasks whose receipt
and files are whole. Where tasks run is `pipeline.engine.executors`'s matter.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pickle
import shutil
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine.progress import Progress
from shards.stores.files import sync_folder

if TYPE_CHECKING:
    from pipeline.engine.executors import Executor

RECEIPT_FILE = "receipt.json"
_COUNTERS = struct.Struct("<QQq")  # bytes done, tokens done, process at work (0: none)

TaskFunction = Callable[[Path, Any, Callable[[int, int], None]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a stage."""

    digest: str
    """Of everything that decides the result; the task's folder is named by it."""
    payload: Any
    size: int
    """Bytes of work, for progress and for taking the large tasks first."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage did. `results` are in task order, whether run now or before."""

    results: list[dict[str, Any]]
    ran: int
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Return the stage's line of build.json: `detail` adds up what its tasks measured, over all runs."""
        detail: dict[str, float] = {}
        for result in self.results:
            for name, seconds in result.get("seconds", {}).items():
                detail[name] = detail.get(name, 0.0) + seconds
        return {"seconds": self.seconds, "tasks": len(self.results), "ran": self.ran, "detail": detail}


def digest_of(value: Any) -> str:
    """Return a short digest of JSON values: 32 hex digits of the SHA-256 of their canonical text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_stage(
    name: str,
    function: str,
    tasks: list[Task],
    *,
    work: Path,
    executor: Executor,
    progress: Progress,
    outputs: Path | None = None,
) -> StageResult:
    """Run the tasks that are not yet done.

    Args:
        name: the stage's name and folder.
        function: `module:function` of the task function: (folder, payload, report) -> result. `result["files"]` lists
            what it wrote: `{name: {"bytes": n, "sha256" or "xxh3_128": digest}}`.
        tasks: the tasks; their order decides nothing but the order of the results.
        work: the work folder.
        executor: where the tasks run.
        progress: told how far the stage is.
        outputs: where the files of `result["files"]` lie; the task's own folder when None.

    Raises:
        Whatever a task raises. Finished tasks stay finished.
    """
    started = time.perf_counter()
    folder = work / name
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".*.tmp"):
        shutil.rmtree(leftover)
    done = {task.digest: read_receipt(folder / task.digest, outputs) for task in tasks}
    pending = sorted((task for task in tasks if done[task.digest] is None), key=lambda task: -task.size)
    if pending:
        control = folder / "control"
        shutil.rmtree(control, ignore_errors=True)
        control.mkdir()
        for rank, task in enumerate(pending):
            (control / f"{rank:06d}.task").write_bytes(pickle.dumps((function, task, str(folder), outputs)))
        total = sum(task.size for task in pending)
        shown = progress.stage(name, total=total, tasks=len(pending), read=lambda: _read_counters(control))
        with shown:
            executor.run(control, len(pending))
        shutil.rmtree(control)
        done |= {task.digest: read_receipt(folder / task.digest, outputs) for task in pending}
    results = [done[task.digest] for task in tasks]
    whole = [result for result in results if result is not None]
    if len(whole) != len(results):
        raise RuntimeError(f"stage {name}: {len(results) - len(whole)} tasks left no whole receipt in {folder}")
    return StageResult(whole, len(pending), time.perf_counter() - started)


def run_rank(control: Path, rank: int) -> None:
    """Run the stage's task of this rank, in whatever process, and keep its counters for whoever watches."""
    function, task, folder, outputs = pickle.loads((control / f"{rank:06d}.task").read_bytes())
    with (control / f"{rank:06d}.count").open("wb", buffering=0) as counters:

        def report(done_bytes: int, tokens: int, process: int = os.getpid()) -> None:
            nonlocal done
            done = (done_bytes, tokens)
            os.pwrite(counters.fileno(), _COUNTERS.pack(*done, process), 0)

        done = (0, 0)
        report(*done)
        try:
            run_task(function, task, Path(folder), outputs, report)
        finally:
            report(*done, process=0)


def run_task(function: str, task: Task, folder: Path, outputs: Path | None, report: Callable[[int, int], Any]) -> None:
    """Run a task in a temporary folder and rename it to its digest when it is whole."""
    module, _, attribute = function.partition(":")
    temporary = folder / f".{task.digest}.{os.getpid()}.tmp"
    temporary.mkdir()
    try:
        result = getattr(importlib.import_module(module), attribute)(temporary, task.payload, report)
        base = outputs or temporary
        for name, facts in result["files"].items():
            facts["mtime_ns"] = (base / name).stat().st_mtime_ns
        (temporary / RECEIPT_FILE).write_text(json.dumps(result))
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(temporary)
        final = folder / task.digest
        if final.exists():  # its receipt was not whole
            shutil.rmtree(final)
        temporary.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_receipt(folder: Path, outputs: Path | None = None) -> dict[str, Any] | None:
    """Return a finished task's result, or None when it is not whole: no receipt, or a file missing or altered.

    A file whose size and modification time are as recorded is taken as it is; one whose time differs (a restored
    backup, a copied folder) is compared by checksum.
    """
    try:
        result: dict[str, Any] = json.loads((folder / RECEIPT_FILE).read_text(encoding="utf-8"))
        files = [((outputs or folder) / name, facts) for name, facts in result["files"].items()]
        whole = all(_is_whole(path, facts) for path, facts in files)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a receipt that was cut off, or overwritten, is none
    return result if whole else None


def _is_whole(path: Path, facts: dict[str, Any]) -> bool:
    if not path.is_file() or path.stat().st_size != facts["bytes"]:
        return False
    return path.stat().st_mtime_ns == facts["mtime_ns"] or _same_content(path, facts)


def _same_content(path: Path, facts: dict[str, Any]) -> bool:
    import xxhash

    hashing = hashlib.sha256() if "sha256" in facts else xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            hashing.update(block)
    return hashing.hexdigest() == facts.get("sha256", facts.get("xxh3_128"))


def read_counts(control: Path) -> list[tuple[int, int, int]]:
    """Return (bytes done, tokens done, process at work or 0) of each task that has begun."""
    rows = [path.read_bytes() for path in control.glob("*.count")]
    return [_COUNTERS.unpack(row) for row in rows if len(row) == _COUNTERS.size]


def _read_counters(control: Path) -> tuple[int, int, int]:
    """Return (tasks begun, bytes done, tokens done) over the stage's tasks."""
    counts = read_counts(control)
    return len(counts), sum(count[0] for count in counts), sum(count[1] for count in counts)
