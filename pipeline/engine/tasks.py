"""Tasks and calls: what a stage does, as plain data that any process on any host can run.

A task is a pure function of its digest, which is made from the fields of its payload, except those that the payload's
class marks, and from the versions of our code and of libraries. A call is a task with the function that runs it and the
stores that it writes to. It is small and can be pickled, so that each executor sends it in its own way.
`run_call` runs one; `pipeline.engine.attempts` publishes what it wrote. `pipeline.engine.driver` decides which tasks
run, `pipeline.engine.executors` where.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

from pydantic_core import to_jsonable_python

from pipeline.engine.attempts import open_attempt, publish_attempt
from pipeline.engine.receipts import ResultT, load_receipt
from shards.stores.retry import count_retries
from shards.stores.store import WritableStore


class Report:
    """What a task tells while it runs: how far it is, and the time of its steps.

    Time is counted by the clock, and of the processor. The second is what this process has used, all its threads: on a
    machine that does nothing else, one task takes no more of it than of the first on each core.
    """

    def __init__(self, advance: Callable[[int, int], None] = lambda done, tokens: None):
        self.done = 0, 0
        self.seconds: dict[str, float] = {}
        self.core_seconds: dict[str, float] = {}
        self._advance = advance
        self._last = time.perf_counter(), time.process_time()

    def __call__(self, done_bytes: int, tokens: int) -> None:
        """Tell how many bytes and tokens are done so far."""
        self.done = done_bytes, tokens
        self._advance(done_bytes, tokens)

    def lap(self, name: str) -> None:
        """Count the time of a task since the last lap, or since creation, as `name`."""
        now = time.perf_counter(), time.process_time()
        for sums, start, end in zip((self.seconds, self.core_seconds), self._last, now, strict=True):
            sums[name] = sums.get(name, 0.0) + end - start
        self._last = now


TaskFunction: TypeAlias = Callable[[Path, Any, Report], ResultT]
"""(folder, payload, report) -> result. The function, of the top level of a module, writes files into `folder`, which is
on its machine and empty; the result lists them. The annotations are the classes of payload and result."""


@dataclass(frozen=True, slots=True)
class InDigest:
    """How a field of a payload counts in the digest of its task, if not by its own value: `Annotated[str, InDigest()]`.

    A new field counts unless it is marked: then forgetting the mark runs a task too often, and never too rarely.
    """

    counts: Callable[[Any], Any] | None = None
    """Takes the field's value, and returns what counts of it, as JSON values; None if nothing does."""
    called: str = "{name}"
    """What messages call the field, where `{task}` is the payload; a dict of what counts may be called nothing."""


NOT_IN_DIGEST = InDigest(lambda _: None)
"""Marks a field that does not decide the result, or that other fields decide."""


def last_part(folder: WritableStore | str | None) -> str | None:
    """Return the last part of a task's folder or of its address: its digest, wherever the work folder is."""
    return None if folder is None else str(folder).rpartition("/")[2]


RECEIPTS = 2
"""Increase when receipts hold results in another way."""
NUMBER = "number"
"""What a field is called that tells the tasks of a stage apart, and is no cause for running them again."""


class Payload:
    """The base class of payloads: frozen dataclasses of values that pydantic can write as JSON."""

    __slots__ = ()

    CODE: ClassVar[Any] = 1
    """Increase when the same payload would give another result."""
    LIBRARIES: ClassVar[tuple[str, ...]] = ()
    """Libraries whose versions may decide the result."""


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

    def __str__(self) -> str:
        return self.name or self.digest


def make_task(payload: Payload, size: int, name: str = "") -> Task:
    """Return the task of a payload, from which its digest is made; see `Task`."""
    return Task(digest_of_payload(payload), payload, size, name)


def digest_of_payload(payload: Payload) -> str:
    """Return the digest of a task from its payload."""
    return digest_of({name: value for name, _, value in list_parts(payload)})


def list_parts(payload: Payload) -> Iterator[tuple[str, str, Any]]:
    """Yield what decides the result of a task: for each field of its payload that is set, the name and the JSON values.

    Fields that are None, empty or false are not set: so a new field of this kind leaves earlier digests as they are.

    Yields:
        The field's name, what messages call it, and what counts.
    """
    kind = type(payload)
    libraries = {library: _version(library) for library in kind.LIBRARIES}
    yield "code", "code", {"tokenmill": [RECEIPTS, kind.CODE], **libraries}
    for name, mark in _list_marks(kind):
        # What counts, by the mark or as it is; what is not set leaves no trace.
        value = getattr(payload, name)
        if mark.counts is not None:
            value = mark.counts(value)
        if value not in (None, "", (), [], {}) and value is not False:
            yield name, mark.called.format(name=name, task=payload), to_json_values(value)


def to_json_values(value: Any) -> Any:
    """Return the JSON values of a field of a task's payload."""
    if isinstance(value, Payload):
        return {name: part for name, _, part in list_parts(value)}
    if isinstance(value, dict):
        return {key: to_json_values(item) for key, item in cast("dict[str, Any]", value).items()}
    return value if isinstance(value, JsonText) else to_jsonable_python(value)


@functools.cache
def _list_marks(kind: type) -> list[tuple[str, InDigest]]:
    """Return the fields of a task payload's class, each with its mark."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found: list[tuple[str, InDigest]] = []
    for field in dataclasses.fields(kind):
        notes = getattr(hints[field.name], "__metadata__", ())
        found.append((field.name, next((note for note in notes if isinstance(note, InDigest)), InDigest())))
    return found


_version = functools.cache(version)


@dataclass(frozen=True, slots=True)
class Call:
    """One task, and everything that a process needs to run it."""

    function: str
    """`module:function` of a `TaskFunction`, by which any process finds it."""
    task: Task
    stage: WritableStore
    """The stage's folder in the work folder; the task's folder in it is named by the digest."""
    outputs: WritableStore | None
    """Where the files of the result go; the task's own folder when None."""
    scratch: str | None = None
    """The folder on the machine that runs the call where the task writes; see `open_attempt`."""

    def __str__(self) -> str:
        return f"{last_part(self.stage)} task {self.task}"


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


def _canonical(value: Any) -> str:
    if isinstance(value, JsonText):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def run_call(
    call: Call, advance: Callable[[int, int], None], turn: AbstractContextManager[Any] | None = None
) -> tuple[int, int]:
    """Run the task of a call unless it is done, in a folder of this attempt alone, and publish what it wrote.

    Args:
        call: the task.
        advance: called with (bytes done, tokens done) as the task reports them.
        turn: held while the task's function works, and not while its files are sent, which is mostly waiting.

    Returns:
        The task's last report; zeros if another attempt finished before.

    Raises:
        RunError: another attempt has finished with other files.
        Whatever the task raises.
    """
    # Another host may have been faster.
    if load_receipt(call.stage.child(call.task.digest)) is not None:
        return 0, 0
    places = (call.stage, call.outputs, call.scratch)
    with open_attempt(*places, digest=call.task.digest, label=str(call)) as attempt:
        with turn or nullcontext():
            module, _, name = call.function.partition(":")
            function: TaskFunction[Any] = getattr(importlib.import_module(module), name)
            before, report = count_retries(), Report(advance)
            result = function(attempt.folder, call.task.payload, report)
            result.retries = count_retries() - before
            result.seconds, result.core_seconds = report.seconds, report.core_seconds
        publish_attempt(attempt, result)
    return report.done


@functools.cache
def kind_of_result(function: TaskFunction[ResultT]) -> type[ResultT]:
    """Return the class of a task function's result."""
    return typing.get_type_hints(function)["return"]
