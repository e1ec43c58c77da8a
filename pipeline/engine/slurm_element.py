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
from typing import Any, Literal, cast

from pipeline.engine.remote_workers import check_remote_folders, check_remote_worker, name_node
from pipeline.engine.tasks import Outcome, call_from_json, run_call
from shards.errors import InputError, TokenmillError
from shards.stores.open import open_store
from shards.stores.store import Store, WritableStore

CALLS_FILE = "calls"
WARNING_SECONDS = 120
_GROWTH = 1.25
"""How much the process grows before it writes how large it is: if it dies, that file is all that is known."""
_INDEX = struct.Struct("<Q")

End = Literal["all", "time", "error"]


@dataclass(slots=True)
class ElementResults:
    """An element's records so far."""

    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    """Of its first calls, in order."""
    end: End | None = None
    """Why it ended: all calls are done, no time was left for the next, or a call raised; None: it has not."""
    error: tuple[str, str] | None = None
    """Kind ("input", "run" or a class's name) and message of what a call raised."""
    peak_bytes: int = 0
    """The most memory that its process had resident when it last wrote."""


def pack_calls(elements: Sequence[Any]) -> bytes:
    """Return the bytes of the calls file: where each element's part begins, then the parts as JSON."""
    parts = [json.dumps(element).encode() for element in elements]
    at = (len(parts) + 1) * _INDEX.size
    starts = [at]
    for part in parts:
        starts.append(starts[-1] + len(part))
    return b"".join([*map(_INDEX.pack, starts), *parts])


def unpack_calls(data: bytes) -> list[Any]:
    """Return the parts of all elements."""
    (first,) = _INDEX.unpack_from(data)
    starts = [_INDEX.unpack_from(data, at)[0] for at in range(0, first, _INDEX.size)]
    return [json.loads(data[start:stop]) for start, stop in itertools.pairwise(starts)]


def read_results(job: Store, element: int) -> ElementResults | None:
    """Return what an element has written; None if it has not begun."""
    try:
        data = json.loads(job.read(f"{element}.results"))
    except FileNotFoundError:
        return None
    outcomes = [Outcome(done, made, tuple(damage) if damage else None) for done, made, damage in data["outcomes"]]
    return ElementResults(outcomes, data["end"], tuple(data["error"]) if data["error"] else None, data["peak_bytes"])


def main(address: str) -> None:
    """Run the calls of this element. The exit status is 0 unless the element could not begin."""
    _Element(cast("WritableStore", open_store(address)), int(os.environ["SLURM_ARRAY_TASK_ID"])).run()


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
        start, stop = (_INDEX.unpack(part)[0] for part in self._read_index())
        part = json.loads(self.job.read_range(CALLS_FILE, start, stop))
        try:
            check_remote_worker(part["versions"])
            for text in part["calls"]:
                if self.time_is_short and self.results.outcomes:
                    self._write(end="time")
                    return
                call = call_from_json(text)
                check_remote_folders(call)
                with name_node():
                    outcome = run_call(call, lambda done, made: self._note_memory())
                self.results.outcomes.append(outcome)
                self._write()
            self._write(end="all")
        except Exception as error:  # noqa: BLE001  it goes to the driver, which raises it
            traceback.print_exc()
            self.results.error = _describe(error)
            self._write(end="error")

    def _read_index(self) -> tuple[bytes, bytes]:
        at = self.number * _INDEX.size
        index = self.job.read_range(CALLS_FILE, at, at + 2 * _INDEX.size)
        return index[: _INDEX.size], index[_INDEX.size :]

    def _write(self, end: End | None = None) -> None:
        results = self.results
        results.peak_bytes = _peak_bytes()
        data = {
            "outcomes": [[outcome.bytes, outcome.tokens, outcome.damage] for outcome in results.outcomes],
            "end": end,
            "error": results.error,
            "peak_bytes": results.peak_bytes,
        }
        self.job.put(f"{self.number}.results", json.dumps(data).encode())

    def _note_memory(self) -> None:
        if _peak_bytes() > _GROWTH * self.results.peak_bytes:
            self._write()

    def _on_warning(self, _: int, __: FrameType | None) -> None:
        self.time_is_short = True


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _on_end(_: int, __: FrameType | None) -> None:
    raise SystemExit(1)


def _describe(error: Exception) -> tuple[str, str]:
    if isinstance(error, TokenmillError):
        return "input" if isinstance(error, InputError) else "run", str(error)
    return type(error).__name__, "".join(traceback.format_exception(error))


if __name__ == "__main__":
    main(sys.argv[1])
