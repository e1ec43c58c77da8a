"""The one policy for failures that may pass: how long, how often, and what is said meanwhile."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate

import pytest

from shards.errors import InputError
from shards.stores import retry as retry_module
from shards.stores.retry import TransientError, parse_retry_after, retry


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


def test_what_passes_is_tried_again_with_pauses_that_grow_and_vary():
    attempt, calls = failing(20)
    pauses, failures = [], []
    answer = retry(
        "GET /x", attempt, error_type=GaveUpError, sleep=pauses.append, on_failure=lambda: failures.append(1)
    )
    assert (answer, len(calls), len(failures)) == ("answer", 21, 20)
    ceilings = [min(30.0, 0.2 * 2**number) for number in range(1, 21)]
    assert all(0 <= pause <= ceiling for pause, ceiling in zip(pauses, ceilings, strict=True))
    assert len(set(pauses)) == 20


def test_the_server_says_how_long_to_wait():
    attempt, _ = failing(2, retry_after_s=7.5)
    pauses = []
    retry("GET /x", attempt, error_type=GaveUpError, sleep=pauses.append)
    assert pauses == [7.5, 7.5]


def test_it_gives_up_when_the_time_is_up():
    attempt, calls = failing(10**9)
    began = time.monotonic()
    with pytest.raises(GaveUpError, match=r"^GET /x: gave up after \d s and \d+ attempts?; the last one: HTTP 503\. "):
        retry("GET /x", attempt, error_type=GaveUpError, give_up_s=0.5)
    assert time.monotonic() - began < 1
    assert calls
    attempt, calls = failing(10**9, retry_after_s=3600)  # a pause that would end too late is not begun
    with pytest.raises(GaveUpError):
        retry("GET /x", attempt, error_type=GaveUpError, give_up_s=600, sleep=pytest.fail)
    assert len(calls) == 1


@pytest.mark.parametrize(("own", "callers"), [(1.2, 600), (600, 1.2), (None, 1.2)])
def test_the_smaller_bound_counts_and_is_the_time_that_the_user_is_told(own, callers):
    """A failure that is probably final, such as an endpoint that never answered, says itself how long it is retried."""

    def attempt():
        raise TransientError("GET /x: nothing answers", give_up_s=own)

    notes, began = [], time.time()
    with pytest.raises(GaveUpError, match=r"gave up after [01] s and \d+ attempts; the last one: nothing answers\."):
        retry("GET /x", attempt, error_type=GaveUpError, give_up_s=callers, note=notes.append)
    assert time.time() - began < 1.3
    until = {time.strftime("%H:%M:%S", time.localtime(began + 1.2 + late)) for late in (0, 0.1)}
    assert notes[0].removeprefix("GET /x: nothing answers; trying again until ") in until


def test_a_failure_that_passes_after_one_that_would_not_gets_all_the_time():
    failures = [TransientError("nothing answers", give_up_s=0.5), *[TransientError("HTTP 503", retry_after_s=0.3)] * 3]

    def attempt():
        if failures:
            raise failures.pop(0)
        return "answer"

    assert retry("GET /x", attempt, error_type=GaveUpError, give_up_s=60) == "answer"


def test_an_error_that_is_final_is_not_tried_again():
    def attempt():
        raise InputError("HTTP 404")

    with pytest.raises(InputError, match="HTTP 404"):
        retry("GET /x", attempt, error_type=GaveUpError, sleep=pytest.fail)


def test_the_user_is_told_what_fails_and_until_when_but_not_each_time():
    attempt, _ = failing(10)
    notes = []
    retry("GET /x", attempt, error_type=GaveUpError, note=notes.append, sleep=lambda _: None)
    until = time.strftime("%H:%M", time.localtime(time.time() + retry_module.GIVE_UP_S))
    assert len(notes) == 1
    assert notes[0].startswith(f"GET /x: HTTP 503; trying again until {until}")


def test_an_attempt_that_hangs_is_reported_within_five_seconds(monkeypatch):
    assert retry_module.SLOW_S < 5
    monkeypatch.setattr(retry_module, "SLOW_S", 0.05)
    notes = []

    def attempt():
        while not notes:  # it hangs until the user has been told
            time.sleep(0.01)
        return "answer"

    assert retry("GET /x", attempt, error_type=GaveUpError, note=notes.append) == "answer"
    assert notes == ["GET /x: no answer for 0 s; waiting for it"]


def test_one_thread_watches_all_requests_and_reports_those_that_hang(monkeypatch):
    monkeypatch.setattr(retry_module, "SLOW_S", 0.2)
    monkeypatch.setattr(retry_module, "_watcher", retry_module._Watcher())
    notes = []
    for number in range(50):
        retry(f"GET /{number}", lambda: None, error_type=GaveUpError, note=notes.append)

    def ask():
        watching.append(sum(thread.name == "slow-requests" for thread in threading.enumerate()))
        until = time.monotonic() + 60
        while len(notes) < 4 and time.monotonic() < until:
            time.sleep(0.01)

    watching = []
    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            pool.submit(retry, f"PUT /{number}", ask, error_type=GaveUpError, note=notes.append)
    assert sorted(notes) == [f"PUT /{number}: no answer for 0 s; waiting for it" for number in range(4)]
    assert len(watching) == 4
    assert all(1 <= threads <= 2 for threads in watching)  # that of another test may not have ended yet


def test_a_request_is_made_without_room_for_a_thread_and_a_later_one_is_watched(monkeypatch):
    monkeypatch.setattr(retry_module, "SLOW_S", 0.05)
    monkeypatch.setattr(retry_module, "_watcher", retry_module._Watcher())
    notes = []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        assert retry("GET /x", lambda: "answer", error_type=GaveUpError, note=notes.append) == "answer"

    start, refused = threading.Thread.start, []

    def refuse_the_first_report(thread):
        if thread.name == "slow-request" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_first_report)

    def attempt():
        until = time.monotonic() + 60
        while not notes and time.monotonic() < until:
            time.sleep(0.01)

    retry("GET /y", attempt, error_type=GaveUpError, note=notes.append)
    assert refused
    assert notes == ["GET /y: no answer for 0 s; waiting for it"]


def test_a_report_that_blocks_or_fails_delays_no_other_and_its_failure_is_shown(monkeypatch):
    monkeypatch.setattr(retry_module, "SLOW_S", 0.05)
    failed, noted = [], threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda hook: failed.append(hook.exc_value))

    def fail(note):
        raise OSError("no space left on the log")

    with ThreadPoolExecutor(3) as pool:
        for note in (lambda note: noted.wait(60), fail, lambda note: noted.set()):
            pool.submit(retry, "GET /x", lambda: noted.wait(60), error_type=GaveUpError, note=note)
        assert noted.wait(30)
    assert [str(error) for error in failed] == ["no space left on the log"]


def test_a_forked_child_watches_its_requests():
    script = """
import os, threading
from shards.stores import retry as module
module.SLOW_S = 0.05
def ask():
    noted = threading.Event()
    module.retry("GET /x", lambda: noted.wait(60) or os._exit(1), error_type=ValueError, note=lambda _: noted.set())
ended = threading.Event()
hangs = lambda: module.retry("GET /y", lambda: ended.wait(60), error_type=ValueError, note=lambda _: None)
threading.Thread(target=hangs).start()
ask()  # the thread that watches runs
child = os.fork()
if not child:
    ask()
    os._exit(0)
status = os.waitpid(child, 0)[1]
ended.set()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=100)


def test_retry_after_is_a_number_or_a_date():
    assert parse_retry_after("120") == 120
    assert parse_retry_after(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=2)
    assert parse_retry_after(formatdate(time.time() - 60, usegmt=True)) == 0
    assert parse_retry_after("soon") is None
