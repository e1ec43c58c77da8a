"""Loaded once by the fork server, so that every worker starts in milliseconds. Nothing else imports this module.

Importing it is its work: the libraries of the tasks are loaded, interrupts are left to the build's own process, and
every process forked from here ends itself when the build's process is gone, even by SIGKILL. No worker outlives its
build.
"""

import functools
import os
import signal
import threading
import time

import awkward
import gigatoken  # noqa: F401
import pyarrow as pa
import pyarrow.parquet
import tokenizers  # noqa: F401
from loguru import logger

import pipeline.assemble
import pipeline.encode
import pipeline.executor
import pipeline.sample
import pipeline.sources.files
import pipeline.sources.formats  # noqa: F401

_POLL_SECONDS = 0.1


def _exit_with_build(build: int) -> None:
    """Watch the build's process. The fork server cannot be watched in its place: it waits for its children."""

    def watch() -> None:
        while True:
            try:
                os.kill(build, 0)
            except ProcessLookupError:
                os._exit(1)
            time.sleep(_POLL_SECONDS)

    threading.Thread(target=watch, daemon=True, name="exit-with-build").start()


signal.signal(signal.SIGINT, signal.SIG_IGN)
os.register_at_fork(after_in_child=functools.partial(_exit_with_build, os.getppid()))
awkward.from_arrow(pa.nulls(0, pa.large_string()))  # loads the rest of awkward: 0.1 s that no worker spends again
logger.disable("datatrove")  # its progress messages; a failed task's exception reaches the build itself
