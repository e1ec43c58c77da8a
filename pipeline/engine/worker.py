"""Loaded once by the fork server, so that every worker starts in milliseconds. Only workers import this module.

Importing it is its work: the libraries of the tasks are loaded, and interrupts are left to the build's own process.
`end_with` ends a worker when the build's process has ended, even by SIGKILL: no worker outlives its build.
"""
# ruff: noqa: E402

import gc
import os
import select
import signal
import threading
import time
from contextlib import suppress

gc.disable()  # until all is loaded, see the end

import awkward
import gigatoken  # noqa: F401  # pyright: ignore[reportUnusedImport]
import pyarrow as pa
import pyarrow.parquet  # pyright: ignore[reportUnusedImport]
import tokenizers  # noqa: F401  # pyright: ignore[reportUnusedImport]

_POLL_SECONDS = 0.1


def end_with(build: int) -> None:
    """Watch the build's process. The fork server cannot be watched in its place: it waits for its children."""

    def watch() -> None:
        _wait_for_end(build)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-build").start()


def _wait_for_end(process: int) -> None:
    """Return when a process has ended; where the system can tell (Linux), even one that nobody has waited for yet."""
    with suppress(ProcessLookupError):
        if hasattr(os, "pidfd_open"):
            select.select([os.pidfd_open(process)], [], [])
            return
        while True:
            os.kill(process, 0)
            time.sleep(_POLL_SECONDS)


signal.signal(signal.SIGINT, signal.SIG_IGN)
awkward.from_arrow(pa.nulls(0, pa.large_string()))  # loads the rest of awkward: 0.1 s that no worker spends again
gc.freeze()  # a collection in a worker would touch, and so copy, every page of the libraries: 0.1 s of a task, measured
gc.enable()
