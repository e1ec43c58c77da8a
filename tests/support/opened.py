"""Which files a piece of code opens, by the interpreter's own audit events; and a process that may open none."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Generator

_lists: list[list[str]] = []
_installed: list[bool] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    # A number is a file that is open already. Without a mode it is of `os.open`, which an `opener` of `open` calls.
    if event == "open" and isinstance(arguments[0], str | bytes) and arguments[1] is not None:
        for opened in _lists:
            opened.append(os.fsdecode(arguments[0]))


@contextlib.contextmanager
def record_opened() -> Generator[list[str]]:
    """Yield a list that grows by the path of every file that this process opens in the block, in any thread.

    Files that Arrow's C++ code or `os.open` opens are not in it.
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
