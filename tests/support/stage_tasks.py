"""Task functions for the engine's tests; imported by name, as tasks are."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.engine.checksums import WrittenFile, checksum_blocks, write_checksummed
from pipeline.engine.receipts import Result, TaskOutput
from pipeline.engine.tasks import Call, Report, Task, digest_of
from shards.errors import missing_extra
from shards.stores.object_client import NoCredentialsError, StoreError
from shards.stores.store import FolderStore

CALLS: list[str] = []
"""Names of the tasks that ran in this process."""


class TaskError(ValueError):
    """Raised by the task that fails."""


@dataclass(slots=True, kw_only=True)
class Named(Result):
    name: str


def write_file(folder: Path, payload: dict[str, Any], report: Report) -> Named:
    """Write `payload["text"]`, or fail halfway if the payload says so."""
    CALLS.append(payload["name"])
    data = payload["text"].encode()
    path = folder / f"{payload['name']}.bin"
    if not payload.get("absent"):
        path.write_bytes(data)
    report(len(data), 1)
    report.lap("x")
    if payload.get("fail"):
        raise TaskError("halfway")
    file = WrittenFile(len(data), checksums=checksum_blocks(data))
    return Named(name=payload["name"], files={path.name: file})


def need_extra(folder: Path, payload: dict[str, Any], report: Report) -> Result:
    """Fail as a task does on a node without a package that comes with an extra, without credentials, or otherwise."""
    if payload["package"] == "credentials":
        raise NoCredentialsError("no credentials")
    if payload["package"] == "bucket":
        raise StoreError("s3://b/x: there is no bucket")
    raise missing_extra(ModuleNotFoundError(name=payload["package"]))


def die_or_write(folder: Path, payload: dict[str, Any], report: Report) -> Result:
    """Kill this process, as the kernel does when memory runs out, `payload["times"]` times; then write a file."""
    report(1, 0)
    deaths = Path(payload["deaths"])
    before = deaths.read_text().count(f"{payload['name']}\n") if deaths.exists() else 0
    if before < payload["times"]:
        with deaths.open("a") as file:
            file.write(f"{payload['name']}\n")
        os.kill(os.getpid(), signal.SIGKILL)
    report(2, 1)
    return Result(files={"a.bin": write_checksummed(folder / "a.bin", b"text")})


def damage_and_read(folder: Path, payload: dict[str, Any], report: Report) -> Result:
    """Change a byte of another task's file and read it."""
    output = TaskOutput(FolderStore(Path(payload["folder"])))
    path = Path(payload["folder"]) / output.result.stored_name(payload["name"])
    before = path.stat()
    path.write_bytes(b"~" + path.read_bytes()[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    output.read(payload["name"])
    return Result()


def make_calls(stage: Path, payloads: list[dict[str, Any]], function: str) -> list[Call]:
    """Return calls of a function of this module, of a task for each payload, named by it."""
    stage.parent.mkdir(exist_ok=True)
    tasks = [Task(digest_of(payload), payload, 10, payload["name"]) for payload in payloads]
    return [Call(f"{__name__}:{function}", task, FolderStore(stage), None) for task in tasks]
