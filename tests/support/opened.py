"""Which files a piece of code opens, by the interpreter's own audit events; and a process that may open none."""

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Generator

_lists: list[list[str]] = []
_installed: list[bool] = []
_last = threading.local()
"""The path that this thread has just opened by `open`, which may call an opener with it."""


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes):  # a number is a file that is open already
        path, mode = os.fsdecode(arguments[0]), arguments[1]
        by_opener = mode is None and getattr(_last, "path", None) == path  # which `open` has called
        _last.path = path if mode else None
        for opened in _lists if not by_opener else ():
            opened.append(path)


@contextlib.contextmanager
def record_opened() -> Generator[list[str]]:
    """Yield a list that grows by the path of every file that this process opens in the block, in any thread.

    Files that Arrow's C++ code opens are not in it.
    """
    if not _installed:
        sys.addaudithook(_note)  # a hook cannot be removed
        _installed.append(True)
    opened: list[str] = []
    _lists.append(opened)
    try:
        yield opened
    finally:
        _lists.remove(opened)


@contextlib.contextmanager
def no_more_files() -> Generator[None]:
    """Let this process open no more files in the block, as a process does that has reached `ulimit -n`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
