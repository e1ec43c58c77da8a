"""The program inside an element of a Slurm job array: it runs its share of a stage's calls, one after the other.

The job's folder, which driver and nodes share, holds `calls` (written by the driver) and `N.results` (by element N). A
results file is written whole after every call, when the process has grown, and at the end, when it says why the
element ended.

Two minutes before its time is over, Slurm sends USR1: no further call is begun. When it is over, Slurm sends TERM: the
call at work cleans up and is given up. The driver submits again what is left.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from pydantic import TypeAdapter

from pipeline.engine.remote_workers import run_remote_call
from pipeline.engine.tasks import Outcome
from shards.errors import InputError, TokenmillError
from shards.stores.open import open_writable_store
from shards.stores.store import Store, WritableStore
from shards.terminal.display import say
from shards.terminal.waiting import report_to

CALLS_FILE = "calls"
WARNING_SECONDS = 120
_GROWTH = 1.25
"""How much the process grows before it writes how large it is: if it dies, that file is all that is known."""
_INDEX = struct.Struct("<Q")


@dataclass(slots=True)
class ElementResults:
    """An element's records so far."""

    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    """Of its first calls, in order."""
    end: Literal["all", "time", "error"] | None = None
    """Why it ended: all calls are done, no time was left for the next, or a call raised; None: it has not."""
    error: tuple[str, str] | None = None
    """Kind ("input", "run" or a class's name) and message of what a call raised."""
    peak_bytes: int = 0
    """The most memory that its process had resident when it last wrote."""


_RESULTS = TypeAdapter(ElementResults)


def pack_calls(elements: Sequence[Any]) -> bytes:
    """Return the bytes of the calls file: where each element's part begins, then the parts as JSON."""
    parts = [json.dumps(element).encode() for element in elements]
    first = (len(parts) + 1) * _INDEX.size
    starts = itertools.accumulate(map(len, parts), initial=first)
    return b"".join([*map(_INDEX.pack, starts), *parts])


def unpack_calls(data: bytes) -> list[Any]:
    """Return the parts of all elements."""
    (first,) = _INDEX.unpack_from(data)
    starts = [start for (start,) in _INDEX.iter_unpack(data[:first])]
    return [json.loads(data[start:stop]) for start, stop in itertools.pairwise(starts)]


def read_results(job: Store, element: int) -> ElementResults | None:
    """Return what an element has written; None if it has not begun."""
    try:
        return _RESULTS.validate_json(job.read(f"{element}.results"))
    except FileNotFoundError:
        return None


def main(address: str) -> None:
    """Run the calls of this element. The exit status is 0 unless the element could not begin."""
    report_to(say)
    _Element(open_writable_store(address), int(os.environ["SLURM_ARRAY_TASK_ID"])).run()


class _Element:
    def __init__(self, job: WritableStore, number: int):
        self.job = job
        self.number = number
        self.results = ElementResults()
        self.time_is_short = False

    def run(self) -> None:
        signal.signal(signal.SIGUSR1, self._on_warning)
        signal.signal(signal.SIGTERM, _on_end)
        self._write()
        # Read the own part alone: the calls of all elements may be many megabytes.
        at = self.number * _INDEX.size
        index = self.job.read_range(CALLS_FILE, at, at + 2 * _INDEX.size)
        part = json.loads(self.job.read_range(CALLS_FILE, *(stop for (stop,) in _INDEX.iter_unpack(index))))
        # Run them until all are done, the time is short, or one raises; the driver reads which.
        try:
            for text in part["calls"]:
                if self.time_is_short and self.results.outcomes:
                    self.results.end = "time"
                    break
                outcome = run_remote_call(text, part["versions"], lambda done, made: self._note_memory())
                self.results.outcomes.append(outcome)
                self._write()
            else:
                self.results.end = "all"
        except Exception as error:  # noqa: BLE001  it goes to the driver, which raises it
            traceback.print_exc()
            self.results.end, self.results.error = "error", _describe(error)
        self._write()

    def _write(self) -> None:
        self.results.peak_bytes = _peak_bytes()
        self.job.put(f"{self.number}.results", _RESULTS.dump_json(self.results))

    def _on_warning(self, _: int, __: FrameType | None) -> None:
        self.time_is_short = True

    def _note_memory(self) -> None:
        if _peak_bytes() > _GROWTH * self.results.peak_bytes:
            self._write()


def _on_end(_: int, __: FrameType | None) -> None:
    raise SystemExit(1)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _describe(error: Exception) -> tuple[str, str]:
    if isinstance(error, TokenmillError):
        return "input" if isinstance(error, InputError) else "run", str(error)
    return type(error).__name__, "".join(traceback.format_exception(error))


if __name__ == "__main__":
    main(sys.argv[1])
