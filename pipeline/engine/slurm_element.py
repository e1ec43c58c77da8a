"""The program inside an element of a Slurm job array: it runs its share of a stage's calls, one after the other.

The job's folder, which driver and nodes share, holds `N.calls` (written by the driver) and `N.results` (by element N).
A results file is written whole after every call, when the process has grown, and at the end, when it says why the
element ended.

Two minutes before its time is over, Slurm sends USR1: no further call is begun. When it is over, Slurm sends TERM: the
call at work cleans up and is given up. The driver submits again what is left.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter

from pipeline.engine.remote_workers import run_remote_call
from pipeline.engine.tasks import Outcome
from shards.errors import InputError, TokenmillError
from shards.stores.open import open_writable_store
from shards.stores.store import Store
from shards.terminal.display import say
from shards.terminal.waiting import report_to

WARNING_SECONDS = 120
_GROWTH = 1.25
"""How much the process grows before it writes how large it is: if it dies, that file is all that is known."""


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


def read_results(job: Store, element: int) -> ElementResults | None:
    """Return what an element has written; None if it has not begun."""
    try:
        return _RESULTS.validate_json(job.read(f"{element}.results"))
    except FileNotFoundError:
        return None


def main(address: str) -> None:
    """Run the calls of this element. The exit status is 0 unless the element could not begin."""
    report_to(say)
    job, number = open_writable_store(address), int(os.environ["SLURM_ARRAY_TASK_ID"])
    results, time_is_short = ElementResults(), False

    def write() -> None:
        results.peak_bytes = _peak_bytes()
        job.put(f"{number}.results", _RESULTS.dump_json(results))

    def note_memory(_done: int, _made: int) -> None:
        if _peak_bytes() > _GROWTH * results.peak_bytes:
            write()

    def warn(*_: Any) -> None:
        nonlocal time_is_short
        time_is_short = True

    signal.signal(signal.SIGUSR1, warn)
    signal.signal(signal.SIGTERM, _end)
    write()
    part = json.loads(job.read(f"{number}.calls"))

    # Run them until all are done, the time is short, or one raises; the driver reads which.
    try:
        for text in part["calls"]:
            if time_is_short and results.outcomes:
                results.end = "time"
                break
            results.outcomes.append(run_remote_call(text, part["versions"], note_memory))
            write()
        else:
            results.end = "all"
    except Exception as error:  # noqa: BLE001  it goes to the driver, which raises it
        traceback.print_exc()
        results.end, results.error = "error", _describe(error)
    write()


def _end(*_: Any) -> None:
    raise SystemExit(1)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _describe(error: Exception) -> tuple[str, str]:
    if isinstance(error, TokenmillError):
        return "input" if isinstance(error, InputError) else "run", str(error)
    return type(error).__name__, "".join(traceback.format_exception(error))


if __name__ == "__main__":
    main(sys.argv[1])
