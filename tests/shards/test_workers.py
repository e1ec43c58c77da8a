"""Workers end at once, in the middle of a task, when an error or a reader that leaves makes their results useless."""

import os
import time

import pytest

from shards.terminal.workers import map_tasks


def sleep_or_fail(shared, seconds):
    """Sleep, or fail at once where there is nothing to sleep."""
    if not seconds:
        raise ValueError("nothing to sleep")
    time.sleep(seconds)


def test_an_error_ends_the_other_workers_at_once():
    started = time.monotonic()
    with pytest.raises(ValueError, match="nothing to sleep"):
        list(map_tasks(sleep_or_fail, None, [0, 60, 60], 2))
    assert time.monotonic() - started < 50


def test_a_reader_that_leaves_ends_the_workers():
    results = map_tasks(sleep_or_fail, None, [0.01, 60, 60], 2)
    assert next(results)[0] == 0.01
    del results  # the last reference: the iterator is closed


def end_at_once(shared, status):
    """End the process without a word."""
    os._exit(status)


def test_a_worker_that_is_killed_is_an_error_with_a_remedy():
    with pytest.raises(ChildProcessError, match=r"a worker process died .* fewer --workers"):
        list(map_tasks(end_at_once, None, [9, 9], 2))
