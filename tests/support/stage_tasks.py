"""Task functions for the engine's tests; imported by name, as tasks are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.engine.checksums import checksum_file
from pipeline.engine.receipts import TaskOutput

CALLS: list[str] = []
"""Names of the tasks that ran in this process."""


class TaskError(ValueError):
    """Raised by the task that fails."""


def write_file(folder: Path, payload: dict[str, Any], report: Callable[[int, int], None]) -> dict[str, Any]:
    """Write `payload["text"]`, or fail halfway if the payload says so."""
    CALLS.append(payload["name"])
    data = payload["text"].encode()
    path = Path(payload.get("outputs", folder)) / f"{payload['name']}.bin"
    path.write_bytes(data)
    report(len(data), 1)
    if payload.get("fail"):
        raise TaskError("halfway")
    return {"name": payload["name"], "files": {path.name: checksum_file(path)}, "seconds": {"x": 1}}


def damage_and_read(folder: Path, payload: dict[str, Any], report: Callable[[int, int], None]) -> dict[str, Any]:
    """Change a byte of another task's file and read it."""
    path: Path = payload["folder"] / payload["name"]
    before = path.stat()
    path.write_bytes(b"~" + path.read_bytes()[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return {"text": str(TaskOutput(payload["folder"]).read(payload["name"])), "files": {}}
