"""The one policy for failures that may pass: how long, how often, and what the user is told meanwhile."""

import threading
import time
import types
from concurrent.futures import Future
from email.utils import formatdate
from functools import partial

import pytest

from shards.errors import InputError
from shards.stores import retry as retry_module
from shards.stores.retry import (
    REPEAT_S,
    SILENT_S,
    StoreError,
    TransientError,
    count_retries,
    note_reached,
    parse_retry_after,
    retry,
    stop_on,
)
from shards.terminal import reporter


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
    pauses.clear()
    retry("GET /x", failing(2, retry_after_s=7.5)[0])  # the server says how long to wait
    assert pauses == [7.5, 7.5]


def test_an_attempt_that_does_not_end_is_left_and_sees_the_context_of_its_caller(monkeypatch):
    seen, end = [], threading.Event()
    with stop_on(end):

        def attempt():
            seen.append(retry_module._stop.get())
            end.wait(60)

        with pytest.raises(StoreError, match="gave up after 0 s and 1 attempt; the last one: no complete answer"):
            retry("GET /x", attempt, give_up_s=0.1, interrupt=True)
        assert seen == [end]
        assert retry("GET /x", lambda: "answer", interrupt=True) == "answer"
        with pytest.raises(TimeoutError, match="its own"):
            retry("GET /x", partial(_fail, TimeoutError("its own")), interrupt=True)
        end.set()
    result = Future.result
    late = lambda of, seconds=None: _fail(TimeoutError()) if result(of) and seconds else result(of)  # noqa: E731
    monkeypatch.setattr(Future, "result", late)
    assert retry("GET /x", lambda: "just in time", interrupt=True) == "just in time"


def _fail(error):
    raise error


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


@pytest.mark.parametrize(
    ("host", "soon", "callers"), [("never", 1.2, 600), ("never", 600, 1.2), ("reached", 0.1, 1.2), ("", 0.1, 1.2)]
)
def test_a_host_that_never_answered_is_given_up_soon_and_the_user_is_told_when(host, soon, callers, monkeypatch):
    def attempt():
        raise TransientError("GET /x: nothing answers", no_connection_to=host)

    monkeypatch.setenv("TOKENMILL_REACHED", "")
    note_reached("reached")
    monkeypatch.setattr(retry_module, "UNREACHED_S", soon)
    monkeypatch.setattr(retry_module.random, "uniform", lambda low, high: min(high, 0.1))  # no long pause by chance
    told, began = [], time.time()
    monkeypatch.setattr(retry_module, "SILENT_S", 0.3)
    monkeypatch.setattr(reporter, "_reporter", told.append)
    with pytest.raises(GaveUpError, match=r"gave up after [01] s and \d+ attempts; the last one: nothing answers\."):
        retry("GET /x", attempt, error_type=GaveUpError, give_up_s=callers)
    assert time.time() - began < 1.3
    assert len(told) == 1
    what, _, until = told[0].partition("; trying again until ")
    assert what.startswith("GET /x: no answer for 0 s (")
    assert what.endswith("the last one: nothing answers)")
    assert until in {time.strftime("%H:%M:%S", time.localtime(began + 1.2 + late)) for late in (0, 0.1)}


# --- What the user is told ---


def test_one_failure_among_many_answers_is_not_silence(monkeypatch):
    now, told = [1000.0], []
    clock = types.SimpleNamespace(
        sleep=lambda _: None, monotonic=lambda: now[0], time=time.time, strftime=time.strftime, localtime=time.localtime
    )
    monkeypatch.setattr(retry_module, "time", clock)
    for name, value in {"GIVE_UP_S": 10_000, "_answered": 0.0, "_told": 0.0}.items():
        monkeypatch.setattr(retry_module, name, value)
    monkeypatch.setattr(reporter, "_reporter", told.append)
    passing = [True] * 3 + [False] * 5  # while the slow one fails, is another request answered?

    def slow():
        now[0] += SILENT_S + 1
        if not passing:
            return "answer"
        if passing.pop(0):
            retry("fast", lambda: None)
        else:
            now[0] += REPEAT_S / 2
        raise TransientError("slow: HTTP 503")

    retry("slow", slow)
    # Told at first, and about once a minute.
    assert [line.partition(" for ")[0] for line in told] == ["slow: no answer"] * 3
    assert told[0].startswith("slow: no answer for 50 s"), "not while another is answered, for 15 s"


def test_a_program_is_told_nothing_unless_it_gives_a_reporter(capfd):
    reporter.report("GET /x: damaged")
    told = []
    assert reporter.report_to(told.append) is None
    reporter.report("GET /x: damaged")
    assert reporter.report_to(None) == told.append
    assert told == ["GET /x: damaged"]
    assert capfd.readouterr() == ("", "")


def test_retry_after_is_a_number_or_a_date():
    assert parse_retry_after("120") == 120
    assert parse_retry_after(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=2)
    assert parse_retry_after(formatdate(time.time() - 60, usegmt=True)) == 0
    assert parse_retry_after("soon") is parse_retry_after("\xb2") is None
