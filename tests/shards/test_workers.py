"""Workers end with the command: at an interrupt, in the middle of a task, without a word of their own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from shards.terminal.workers import map_tasks

ENDLESS = "(a|aa|[a-z ]+)+$9"
"""A pattern that takes `re` longer than any test on a line of small letters."""


def processes_of(process):
    """Return the ids of the processes that a process and its children have started."""
    with suppress(OSError):
        own = [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
        return [*own, *(inner for child in own for inner in processes_of(child))]
    return []


def cpu_seconds(process):
    """Return the time that a process has had of the processors."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def search(good_set):
    """Start an endless search with two workers in a process group of its own; all of it is gone after the test."""
    command = [sys.executable, "-m", "tokenmill", "trace", str(good_set), "--regex", ENDLESS, "--workers", "2"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    deadline = time.monotonic() + 30
    while len(processes_of(started.pid)) < 4 and time.monotonic() < deadline:  # two workers and what serves them
        time.sleep(0.02)
    yield started
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.communicate()


@pytest.mark.parametrize(("number", "busy_s"), [(signal.SIGINT, 0), (signal.SIGINT, 1), (signal.SIGTERM, 1)])
def test_an_interrupt_ends_the_workers_at_once(search, number, busy_s):
    """While they start, and in the middle of a task."""
    workers = processes_of(search.pid)
    deadline = time.monotonic() + 60
    while max(map(cpu_seconds, workers)) < busy_s and time.monotonic() < deadline:
        time.sleep(0.05)
    # As a terminal does, Ctrl-C reaches every process; SIGTERM only the one it is sent to.
    (os.killpg if number == signal.SIGINT else os.kill)(search.pid, number)
    out, err = search.communicate(timeout=30)
    said = "error: interrupted; run the same command to resume\n"
    assert (search.returncode, out, err) == (130, "", said)
    deadline = time.monotonic() + 30
    while (left := [worker for worker in workers if Path(f"/proc/{worker}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.02)  # the resources' tracker and the server end after this process, of themselves
    assert left == []


def sleep_or_fail(shared, seconds):
    """Sleep, or fail at once where there is nothing to sleep."""
    if not seconds:
        raise ValueError("nothing to sleep")
    time.sleep(seconds)


def test_an_error_ends_the_other_workers_at_once():
    started = time.monotonic()
    with pytest.raises(ValueError, match="nothing to sleep"):
        list(map_tasks(sleep_or_fail, None, [0, 3600, 3600], 2))
    assert time.monotonic() - started < 600


def test_a_reader_that_leaves_ends_the_workers():
    results = map_tasks(sleep_or_fail, None, [0.01, 3600, 3600], 2)
    assert next(results)[0] == 0.01
    del results  # the last reference: the iterator is closed


def end_at_once(shared, status):
    """End the process without a word."""
    os._exit(status)


def test_a_worker_that_is_killed_is_an_error_with_a_remedy():
    with pytest.raises(ChildProcessError, match=r"a worker process died .* fewer --workers"):
        list(map_tasks(end_at_once, None, [9, 9], 2))
