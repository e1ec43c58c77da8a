"""The one policy for failures that may pass: how long, how often, and what the user is told meanwhile."""

import subprocess
import sys
import threading
import time
import types
from email.utils import formatdate

import pytest

from shards.errors import InputError
from shards.stores import retry as retry_module
from shards.stores.retry import (
    StoreError,
    TransientError,
    count_retries,
    parse_retry_after,
    retry,
    stop_on,
)
from shards.terminal import waiting
from shards.terminal.waiting import REPEAT_S, SILENT_S, Watcher


class GaveUpError(InputError):
    """What a caller raises at the end."""


def failing(times, *, retry_after_s=None):
    """Return an attempt that fails so many times, then answers; and the list of its calls."""
    calls = []

    def attempt():
        calls.append(time.monotonic())
        if len(calls) <= times:
            raise TransientError("GET /x: HTTP 503", retry_after_s=retry_after_s)
        return "answer"

    return attempt, calls


@pytest.fixture
def pauses(monkeypatch):
    """Return the pauses that `retry` makes, which take no time here."""
    made = []
    monkeypatch.setattr(
        retry_module, "time", types.SimpleNamespace(sleep=made.append, monotonic=time.monotonic, time=time.time)
    )
    return made


def test_what_passes_is_tried_again_with_pauses_that_grow_and_vary(pauses):
    attempt, calls = failing(20)
    before = count_retries()
    assert retry("GET /x", attempt) == "answer"
    assert (len(calls), count_retries() - before) == (21, 20)
    ceilings = [min(30.0, 0.2 * 2**number) for number in range(1, 21)]
    assert all(0 <= pause <= ceiling for pause, ceiling in zip(pauses, ceilings, strict=True))
    assert len(set(pauses)) == 20


def test_the_server_says_how_long_to_wait(pauses):
    attempt, _ = failing(2, retry_after_s=7.5)
    retry("GET /x", attempt)
    assert pauses == [7.5, 7.5]


def test_it_gives_up_when_the_time_is_up(pauses):
    attempt, calls = failing(10**9)
    began = time.monotonic()
    with pytest.raises(GaveUpError, match=r"^GET /x: gave up after \d s and \d+ attempts?; the last one: HTTP 503\. "):
        retry("GET /x", attempt, error_type=GaveUpError, give_up_s=0.5)
    assert time.monotonic() - began < 1
    assert calls
    pauses.clear()
    attempt, calls = failing(10**9, retry_after_s=3600)  # a pause that would end too late is not begun
    with pytest.raises(StoreError, match="and 1 attempt;"):
        retry("GET /x", attempt, give_up_s=600)
    assert (len(calls), pauses) == (1, [])


@pytest.mark.parametrize(("own", "callers"), [(1.2, 600), (600, 1.2), (None, 1.2)])
def test_the_smaller_bound_counts_and_is_the_time_that_the_user_is_told(own, callers, monkeypatch):
    """A failure that is probably final, such as an endpoint that never answered, says itself how long it is retried."""

    def attempt():
        raise TransientError("GET /x: nothing answers", give_up_s=own)

    monkeypatch.setattr(retry_module.random, "uniform", lambda low, high: min(high, 0.1))  # no long pause by chance
    told, began = [], time.time()
    monkeypatch.setattr(waiting, "SILENT_S", 0.3)
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(waiting, "_watcher", Watcher(told.append))
    with pytest.raises(GaveUpError, match=r"gave up after [01] s and \d+ attempts; the last one: nothing answers\."):
        retry("GET /x", attempt, error_type=GaveUpError, give_up_s=callers)
    assert time.time() - began < 1.3
    assert len(told) == 1
    what, _, until = told[0].partition("; trying again until ")
    assert what.startswith("GET /x: no answer for 0 s (")
    assert what.endswith("the last one: nothing answers)")
    assert until in {time.strftime("%H:%M:%S", time.localtime(began + 1.2 + late)) for late in (0, 0.1)}


def test_what_failed_is_told_also_where_it_is_a_part_of_something_larger(monkeypatch):
    """A file is tried again as a whole, and each of its requests too: only a request knows what failed."""

    def attempt():
        raise TransientError("GET /x: HTTP 503")

    told = []
    monkeypatch.setattr(retry_module.random, "uniform", lambda low, high: min(high, 0.1))
    monkeypatch.setattr(waiting, "SILENT_S", 0.3)
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(waiting, "_watcher", Watcher(told.append))
    with pytest.raises(StoreError):
        retry("the file x", lambda: retry("GET /x", attempt, give_up_s=1), give_up_s=60)
    assert len(told) == 1
    assert "GET /x: no answer" in told[0]
    assert "the last one: HTTP 503" in told[0]


def test_a_failure_that_passes_after_one_that_would_not_gets_all_the_time():
    failures = [TransientError("nothing answers", give_up_s=0.5), *[TransientError("HTTP 503", retry_after_s=0.3)] * 3]

    def attempt():
        if failures:
            raise failures.pop(0)
        return "answer"

    assert retry("GET /x", attempt, give_up_s=60) == "answer"


def test_an_error_that_is_final_is_not_tried_again(pauses):
    def attempt():
        raise InputError("HTTP 404")

    with pytest.raises(InputError, match="HTTP 404"):
        retry("GET /x", attempt)
    assert pauses == []


def test_a_request_that_nobody_needs_is_not_made_again():
    stop = threading.Event()

    def attempt():
        stop.set()
        raise TransientError("HTTP 503", retry_after_s=60)

    with stop_on(stop), pytest.raises(InputError, match="stopped"):
        retry("GET /x", attempt)


# --- What the user is told ---


def test_one_slow_answer_among_many_is_not_silence():
    told = []
    watcher = Watcher(told.append)
    with watcher.wait_for("slow", 600) as slow:
        with watcher.wait_for("fast", 600):
            pass
        watcher.look(slow.started + SILENT_S / 2)
        slow.started -= SILENT_S  # it has waited for long, but another request was answered just now
        watcher.look(time.monotonic() + SILENT_S / 2)
        assert told == []
        for later in (1, 2, REPEAT_S - 1, REPEAT_S + 2):  # told at first, and once a minute
            watcher.look(time.monotonic() + SILENT_S + later)
    assert [line.partition(" for ")[0] for line in told] == ["slow: no answer"] * 2
    assert "the server is silent" in told[0]
    watcher.look(time.monotonic() + 1000)
    assert len(told) == 2


def test_silence_is_told_within_five_seconds_and_by_one_thread(monkeypatch):
    assert SILENT_S + waiting.LOOK_EVERY_S < 5
    monkeypatch.setattr(waiting, "SILENT_S", 0.05)
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.01)
    told, failed, threads = threading.Event(), [], threading.active_count()
    monkeypatch.setattr(threading, "excepthook", lambda hook: failed.append(str(hook.exc_value)))
    reporters = [lambda line: told.set()]

    def tell(line):
        if reporters:
            reporters.pop()
            raise OSError("no space left on the log")
        told.set()

    monkeypatch.setattr(waiting, "_watcher", Watcher(tell))
    for _ in range(2):  # the first report fails, which ends the thread and nothing else
        retry("GET /x", lambda: told.wait(0.5))
        assert threading.active_count() <= threads + 1
    assert told.is_set()
    assert failed == ["no space left on the log"]


def test_a_request_is_made_without_room_for_a_thread_and_a_later_one_is_watched(monkeypatch):
    monkeypatch.setattr(waiting, "SILENT_S", 0.05)
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.01)
    told = threading.Event()
    monkeypatch.setattr(waiting, "_watcher", Watcher(lambda line: told.set()))

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        assert retry("GET /x", lambda: "answer") == "answer"
    assert retry("GET /y", lambda: told.wait(60))


def test_a_forked_child_watches_its_requests():
    script = """
import os, threading
from shards.terminal import waiting
from shards.stores.retry import retry
waiting.SILENT_S = 0.05
waiting.LOOK_EVERY_S = 0.01
def ask():
    told = threading.Event()
    waiting.report_to(lambda line: line.startswith("GET /x") and told.set())
    retry("GET /x", lambda: told.wait(60) or os._exit(1))
ended = threading.Event()
ask()  # the watcher's thread runs
threading.Thread(target=retry, args=("GET /y", lambda: ended.wait(60))).start()
child = os.fork()
if not child:
    ask()
    os._exit(0)
status = os.waitpid(child, 0)[1]
ended.set()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=100)


def test_a_program_is_told_nothing_unless_it_gives_a_reporter(monkeypatch, capfd):
    monkeypatch.setattr(waiting, "SILENT_S", 0.05)
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.01)
    threads = threading.active_count()
    monkeypatch.setattr(waiting, "_watcher", Watcher())
    retry("GET /x", lambda: time.sleep(0.3))
    waiting.report("GET /x: damaged")
    assert threading.active_count() == threads
    told = []
    assert waiting.report_to(told.append) is None
    waiting.report("GET /x: damaged")
    retry("GET /x", lambda: time.sleep(0.3))
    assert waiting.report_to(None) == told.append
    assert [line.partition(" for ")[0] for line in told] == ["GET /x: damaged", "GET /x: no answer"]
    assert capfd.readouterr() == ("", "")


def test_retry_after_is_a_number_or_a_date():
    assert parse_retry_after("120") == 120
    assert parse_retry_after(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=2)
    assert parse_retry_after(formatdate(time.time() - 60, usegmt=True)) == 0
    assert parse_retry_after("soon") is None
