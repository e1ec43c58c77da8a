"""The module that the fork server loads once, so that every worker starts in milliseconds. Only workers import it.

On import it loads the libraries of the tasks, and ignores interrupts, which the build's own process handles. `end_with`
ends a worker when the build's process ends, even by SIGKILL, so that no worker outlives its build. The fork server then
ends too, and deletes the folder of its socket: a build's process may have been killed, and could not.
"""

# pyright: reportUnknownMemberType=false
import atexit
import gc
import os
import select
import shutil
import signal
import threading
import time
from contextlib import suppress

import awkward
import gigatoken  # noqa: F401  # pyright: ignore[reportUnusedImport]
import pyarrow as pa
import pyarrow.compute  # pyright: ignore[reportUnusedImport]
import pyarrow.parquet  # pyright: ignore[reportUnusedImport]
import tokenizers  # noqa: F401  # pyright: ignore[reportUnusedImport]

import pipeline.engine.tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]

_POLL_SECONDS = 0.1


def end_with(build: int) -> None:
    """End this local worker when the build's process ends. The fork server does not: it waits for its children."""

    def watch() -> None:
        _wait_for_end(build)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-build").start()


def _wait_for_end(process: int) -> None:
    """Wait until a process has ended; on Linux, a zombie that its parent has not reaped counts as ended."""
    with suppress(ProcessLookupError):
        if hasattr(os, "pidfd_open"):
            select.select([os.pidfd_open(process)], [], [])
            return
        while True:
            os.kill(process, 0)
            time.sleep(_POLL_SECONDS)


signal.signal(signal.SIGINT, signal.SIG_IGN)
if server_folder := os.environ.pop("TOKENMILL_FORK_SERVER_FOLDER", None):
    atexit.register(shutil.rmtree, server_folder, ignore_errors=True)  # workers end by os._exit, which skips this
awkward.from_arrow(pa.nulls(0, pa.large_string()))  # loads the rest of awkward, which saves 0.1 s in each worker
gc.freeze()  # else a collection in a worker copies every page of the libraries: 0.1 s, measured
