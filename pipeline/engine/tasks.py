"""Tasks and calls: what a stage does, as plain data that any process on any host can run.

A task is a pure function of its digest. A call is a task with the function that runs it and the stores that it writes
to. It is small and can be written as JSON, so that each executor sends it in its own way. `run_call` runs one;
`pipeline.engine.attempts` publishes what it wrote. `pipeline.engine.driver` decides which tasks run,
`pipeline.engine.executors` where.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import typing
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.engine.attempts import Target, open_attempt, publish_attempt
from pipeline.engine.receipts import WorkFileDamagedError, load_receipt
from shards.stores.open import open_writable_store
from shards.stores.store import WritableStore

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Report = Callable[[int, int], None]
"""Called by a task with (bytes done, tokens done)."""
TaskFunction = Callable[[Path, Any, Report], dict[str, Any]]
"""(folder, payload, report) -> result. The function writes files into `folder`, which is on its machine and empty.
`result["files"]` lists them: by name, what `pipeline.engine.checksums` returns, or `{"bytes": n, "sha256": digest}` for
a file of the set."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a stage."""

    digest: str
    """Digest of everything that determines the result; the name of the task's folder."""
    payload: Any
    """The function's second argument, of the type that it declares: values that pydantic can write as JSON."""
    size: int
    """Bytes of work, for progress and to start large tasks first."""
    name: str = ""
    """The subject of the task, for a person; the digest if it has no other name."""
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """What the digest is made from."""
    names: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    """What keys of the identity are called for a person, if not by themselves: `{"source": "sources.web"}`."""

    def __str__(self) -> str:
        return self.name or self.digest


def make_task(
    identity: Mapping[str, Any], payload: Any, size: int, name: str = "", names: Mapping[str, str] | None = None
) -> Task:
    """Return the task with the digest of an identity: JSON values; see `Task`."""
    return Task(digest_of(dict(identity)), payload, size, name, identity, names or {})


@dataclass(frozen=True, slots=True)
class Call:
    """One task, and everything that a process needs to run it."""

    function: str
    """`module:function` of a `TaskFunction`."""
    task: Task
    stage: WritableStore
    """The stage's folder in the work folder; the task's folder in it is named by the digest."""
    outputs: WritableStore | None
    """Where the files of the result go; the task's own folder when None."""
    scratch: str | None = None
    """The folder on the machine that runs the call where the task writes; see `Target`."""

    def __str__(self) -> str:
        return f"{str(self.stage).rpartition('/')[2]} task {self.task}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended, unless it raised; plain data."""

    bytes: int = 0
    tokens: int = 0
    """The task's last report, from this attempt or from the one that finished before."""
    damage: tuple[str, str, str] | None = None
    """The damaged file of an earlier task that kept this one from finishing, as `WorkFileDamagedError` takes it."""


class JsonText(str):
    """Canonical JSON that is written already, for `digest_of`: sorted keys, no spaces, letters as they are."""


def digest_of(value: Any) -> str:
    """Return the digest of JSON values that names a task: 32 hex digits of the SHA-256 of their canonical text.

    Args:
        value: JSON values; those of an outermost dict may be `JsonText`.
    """
    if isinstance(value, dict):
        items = sorted(cast("dict[str, Any]", value).items())
        text = "{" + ",".join(f"{_canonical(key)}:{_canonical(item)}" for key, item in items) + "}"
    else:
        text = _canonical(value)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def versions_of(code: Any, *libraries: str) -> dict[str, Any]:
    """Return the versions that decide a task's result, for its identity: of our code of the stage, and of libraries."""
    return {"tokenmill": code} | {library: version(library) for library in libraries}


def digest_in(folder: WritableStore) -> str:
    """Return the digest of the task whose folder this is: its name."""
    return str(folder).rpartition("/")[2]


def _canonical(value: Any) -> str:
    if isinstance(value, JsonText):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def run_call(call: Call, report: Report, turn: AbstractContextManager[Any] | None = None) -> Outcome:
    """Run the task of a call unless it is done, in a folder of this attempt alone, and publish what it wrote.

    Args:
        call: the task.
        report: called with what the task reports.
        turn: held while the task's function works, and not while its files are sent, which is mostly waiting.

    Raises:
        RunError: another attempt has finished with other files.
        Whatever the task raises.
    """
    done = (0, 0)

    def keep(done_bytes: int, tokens: int) -> None:
        nonlocal done
        done = (done_bytes, tokens)
        report(done_bytes, tokens)

    try:
        receipt = load_receipt(call.stage.child(call.task.digest))
        if receipt is not None:
            return Outcome(*receipt.get("reported", done))
        target = Target(call.stage, call.outputs, call.scratch)
        with open_attempt(target, call.task.digest, label=str(call)) as attempt:
            with turn or nullcontext():
                result = _load_function(call.function)(attempt.folder, call.task.payload, keep)
            publish_attempt(attempt, result | {"reported": done})
    except WorkFileDamagedError as damage:
        return Outcome(*done, (damage.place, damage.name, damage.reason))
    return Outcome(*done)


def call_to_json(call: Call) -> str:
    """Return a call of a task as JSON; `call_from_json` makes an equal one of it, on any host."""
    task = call.task
    return json.dumps(
        {
            "function": call.function,
            "digest": task.digest,
            "size": task.size,
            "name": task.name,
            "stage": str(call.stage),
            "outputs": None if call.outputs is None else str(call.outputs),
            "scratch": call.scratch,
            "payload": _adapter(call.function).dump_python(task.payload, mode="json"),
        }
    )


def call_from_json(text: str) -> Call:
    """Return the call of a task that `call_to_json` wrote."""
    data = json.loads(text)
    payload = _adapter(data["function"]).validate_python(data["payload"], strict=False)
    task = Task(data["digest"], payload, data["size"], data["name"])
    outputs = None if data["outputs"] is None else open_writable_store(data["outputs"])
    return Call(data["function"], task, open_writable_store(data["stage"]), outputs, data["scratch"])


def _load_function(name: str) -> TaskFunction:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@functools.cache
def _adapter(function: str) -> TypeAdapter[Any]:
    """Return what reads and writes the payload of a task function, from the function's annotations."""
    from pydantic import TypeAdapter  # late: 0.06 s, for which the fork server would wait

    hints = typing.get_type_hints(_load_function(function))
    _, payload, *_ = hints.values()
    return TypeAdapter(payload)
