"""The reporter of long work: the functions by which a command learns how far its work is and what it waits for.

Readers, stores and searches never print: a program that calls `shards.open_set` gets nothing on stderr. A command gives
`shards.terminal.progress.show_progress` for `Progress`, and `shards.terminal.display.say` for `Note`; the default of
both reports nothing. Stores, which are called from many places, use the reporter of the process: `report`.
"""

import threading
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Takes the work done and the work in all, both in one unit, such as tokens or bytes."""

Advance = Callable[[int], None]
"""Takes the work done since the last call."""

Note = Callable[[str], None]
"""Takes a line for a person: what is waited for, tried again, chosen or left out. Threads may call it."""


def count_up(progress: Progress, total: int) -> Advance:
    """Return a reporter of work that is done in pieces: threads call it with the amount of each piece."""
    done, lock = 0, threading.Lock()

    def advance(amount: int) -> None:
        nonlocal done
        with lock:
            done += amount
            progress(done, total)

    return advance


def no_progress(done: int, total: int) -> None:
    """Report no progress: the default of functions that take a `Progress`."""


def no_note(message: str) -> None:
    """Report no line for a person: the default of functions that take a `Note`."""


_reporter: Note | None = None


def report(sentence: str) -> None:
    """Tell this process's reporter something, if there is one."""
    if _reporter is not None:
        _reporter(sentence)


def report_to(reporter: Note | None) -> Note | None:
    """Set the reporter that the stores of this process tell what they wait for, or None. Return the one before."""
    global _reporter
    before, _reporter = _reporter, reporter
    return before


def has_reporter() -> bool:
    """Return whether there is a reporter that the stores of this process tell what they wait for."""
    return _reporter is not None
