"""Task functions for the engine's tests; imported by name, as tasks are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

CALLS: list[str] = []
"""Names of the tasks that ran in this process."""


class TaskError(ValueError):
    """What the failing task raises."""


def write_file(folder: Path, payload: dict[str, Any], report: Callable[[int, int], None]) -> dict[str, Any]:
    """Write `payload["text"]`, or fail halfway where it says so."""
    CALLS.append(payload["name"])
    data = payload["text"].encode()
    path = Path(payload.get("outputs", folder)) / f"{payload['name']}.bin"
    path.write_bytes(data)
    report(len(data), 1)
    if payload.get("fail"):
        raise TaskError("halfway")
    digest = xxhash.xxh3_128_hexdigest(data)
    return {
        "name": payload["name"],
        "files": {path.name: {"bytes": len(data), "xxh3_128": digest}},
        "seconds": {"x": 1},
    }
