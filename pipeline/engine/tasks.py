"""One task: run in a temporary folder, renamed to its digest when it is whole.

A task's files are synced and its receipt is written before the folder gets its name, so that a folder is whole or
absent. `pipeline.engine.driver` decides which tasks run, `pipeline.engine.executors` where.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.engine.receipts import WorkFileDamagedError, write_receipt
from shards.stores.files import sync_folder

_COUNTERS = struct.Struct("<QQq")  # bytes done, tokens done, process at work (0: none)

Report = Callable[[int, int], None]
"""Called by a task with (bytes done, tokens done)."""
TaskFunction = Callable[[Path, Any, Report], dict[str, Any]]
"""(folder, payload, report) -> result. `result["files"]` lists what was written: by name, what
`pipeline.engine.checksums` returns, or `{"bytes": n, "sha256": digest}` for a file of the set."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a stage."""

    digest: str
    """Digest of everything that determines the result; the name of the task's folder."""
    payload: Any
    size: int
    """Bytes of work, for progress and to start large tasks first."""


def digest_of(value: Any) -> str:
    """Return a short digest of JSON values: 32 hex digits of the SHA-256 of their canonical text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_control(control: Path, function: str, tasks: list[Task], folder: Path, outputs: Path | None) -> None:
    """Write one file for each task, by its number, from which any process that sees the folder can run it."""
    control.mkdir()
    for number, task in enumerate(tasks):
        (control / f"{number:06d}.task").write_bytes(pickle.dumps((function, task, str(folder), outputs)))


def run_pending(control: Path, number: int) -> None:
    """Run the pending task with this number, in any process, and write its counters to a file that the build reads.

    If an input is damaged, record that instead of raising, so that the other tasks go on; see `read_damage`.
    """
    function, task, folder, outputs = pickle.loads((control / f"{number:06d}.task").read_bytes())
    with (control / f"{number:06d}.count").open("wb", buffering=0) as counters:

        def report(done_bytes: int, tokens: int, process: int = os.getpid()) -> None:
            nonlocal done
            done = (done_bytes, tokens)
            os.pwrite(counters.fileno(), _COUNTERS.pack(*done, process), 0)

        done = (0, 0)
        report(*done)
        try:
            run_task(function, task, Path(folder), outputs, report)
        except WorkFileDamagedError as error:
            record = [str(error.folder), error.name, error.reason]
            (control / f"{number:06d}.damaged").write_text(json.dumps(record), encoding="utf-8")
        finally:
            report(*done, process=0)


def run_task(function: str, task: Task, folder: Path, outputs: Path | None, report: Report) -> None:
    """Run a task in a temporary folder and rename it to its digest when it is whole.

    Args:
        function: `module:function` of the task function.
        task: the task.
        folder: the stage's folder.
        outputs: where the files of `result["files"]` are; the task's own folder when None.
        report: passed to the function.
    """
    module, _, attribute = function.partition(":")
    temporary = folder / f".{task.digest}.{os.getpid()}.tmp"
    temporary.mkdir()
    try:
        result = getattr(importlib.import_module(module), attribute)(temporary, task.payload, report)
        write_receipt(temporary, result, outputs)
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(temporary)
        final = folder / task.digest
        if final.exists():  # an earlier folder whose receipt is damaged
            shutil.rmtree(final)
        temporary.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_damage(control: Path) -> list[WorkFileDamagedError]:
    """Return the damaged files that tasks have found, each once."""
    records = {path.read_text(encoding="utf-8") for path in control.glob("*.damaged")}
    found = [json.loads(record) for record in sorted(records)]
    return [WorkFileDamagedError(Path(folder), name, reason) for folder, name, reason in found]


def read_counters(control: Path) -> tuple[int, int, int]:
    """Return (tasks begun, bytes done, tokens done) over the stage's tasks."""
    rows = [path.read_bytes() for path in control.glob("*.count")]
    counts = [_COUNTERS.unpack(row) for row in rows if len(row) == _COUNTERS.size]
    return len(counts), sum(count[0] for count in counts), sum(count[1] for count in counts)
