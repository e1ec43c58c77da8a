"""Executors: run calls in worker processes, on this machine or elsewhere. The set's bytes do not depend on the choice.

Every executor runs `pipeline.engine.tasks.run_call`. The local executor has a pool of `shards.terminal.workers`, whose
fork server has loaded the libraries. It lives as long as the build, which saves 0.17 s of imports in each process and
stage.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from pipeline.engine.stage_progress import Advance
from pipeline.engine.tasks import Call, run_call
from shards.errors import RunError
from shards.terminal.workers import open_pool, start_server, submit, terminate

MAX_LOSSES = 3
"""How often a task may take its process with it before the build stops."""
_POLL_SECONDS = 0.25
_CALLS_AHEAD = 4
"""Calls given to the pool for each worker, so that the next one waits there when one ends."""

_LAST_THREADS = 4
"""The most threads of one of the last calls of a stage."""

_WORKERS_A_SENDER = 4
"""If files are sent to a store, there is one more process for this many workers. At most as many tasks as there are
workers compute at the same time; one whose files are on their way leaves its turn to the next."""

_PRELOADED = [
    "pipeline.encode.encode",
    "pipeline.assemble",
    "pipeline.sources.formats.parquet",
    "awkward",
    "gigatoken",
    "numpy.ma",
    "pyarrow.compute",
    "tokenizers",
]
"""The modules that the fork server loads, by name, since the engine knows no stage: the modules of the tasks that every
build has many of, 0.15 s in each worker, and the libraries that they load late."""

_COMPILED = ["pipeline.clean.measures.families", "pipeline.clean.measures.shingles"]
"""Load numba for 0.4 s of a core, which a recipe without presets and near-duplicates does not need."""


def count_cores() -> int:
    """Return how many workers an executor has by default: the cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Executor(ABC):
    """Runs the calls of a stage.

    A call may run twice, anywhere, at the same time: `run_call` sees to it that the first that finishes wins. So an
    executor that is in doubt whether a call has ended runs it again, and stops nothing on another host.

    What ends a call decides what follows:
    - `run_call` returns: the call is done.
    - `run_call` raises: the task is wrong, or found a damaged file of an earlier one. `run` raises the same at once;
      other calls are ended.
    - the process, node or job ends otherwise: run the call again, alone if possible. After `MAX_LOSSES` losses of one
      call, raise `RunError` with the call's name.
    """

    @property
    @abstractmethod
    def workers(self) -> int:
        """Calls that run at the same time."""

    @abstractmethod
    def run(self, calls: Sequence[Call], advance: Advance) -> None:
        """Run each call to its end, in any order; the first ones are the largest.

        Args:
            calls: what to run.
            advance: tells how far a call is. Call it from one thread, at least when a call has ended.

        Raises:
            RunError: a call was lost `MAX_LOSSES` times.
            Whatever a call or `advance` raises.
        """

    def count_threads(self, calls: int) -> list[int]:
        """Return how many threads each call may compute with, in the order in which they start."""
        return [1] * calls

    def close(self) -> None:  # noqa: B027  some have nothing to end
        """End the processes."""


def count_loss(losses: Counter[str], call: Call, how: str = "") -> None:
    """Count the loss of a call whose process ended.

    Args:
        losses: those of each task so far, by its digest.
        call: the call that was lost.
        how: what else is known of it, as an end of the clause that memory ran out.

    Raises:
        RunError: the call has been lost `MAX_LOSSES` times.
    """
    losses[call.task.digest] += 1
    if losses[call.task.digest] >= MAX_LOSSES:
        raise RunError(
            f"{call}: lost {MAX_LOSSES} times, usually because memory ran out{how}. Finished work is kept. Run again "
            "with more memory for each process, or read this part in smaller files."
        )


class LocalExecutor(Executor):
    """Worker processes of this machine. They are started when a stage has more than one task."""

    def __init__(self, workers: int, *, measures: bool = False):
        """Start to load the workers' libraries, while this process reads recipe and footers.

        Args:
            workers: processes at most.
            measures: whether the tasks are likely to measure documents, or to look for near-duplicates.

        Raises:
            InputError: the folder for temporary files has too long a path for a socket.
        """
        self._workers = workers
        self._pool: tuple[ProcessPoolExecutor, _Slots] | None = None
        if workers > 1:
            start_server([*(_COMPILED if measures else []), *_PRELOADED])

    @property
    def workers(self) -> int:
        """Processes at most."""
        return self._workers

    def count_threads(self, calls: int) -> list[int]:
        """Return several threads for each of the last calls, of which each worker has one.

        They take the cores of workers that have no more calls.
        """
        last = min(calls, self._workers)
        return [1] * (calls - last) + [min(_LAST_THREADS, self._workers)] * last

    def run(self, calls: Sequence[Call], advance: Advance) -> None:
        """Run calls in worker processes; with only one worker or one call, in this process, one by one.

        Calls that were at work when a process died run again one at a time, to find the one that took it along.
        """
        if self.workers == 1 or len(calls) == 1:
            for number, call in enumerate(calls):
                advance(number, *run_call(call, partial(advance, number)))
            return
        # All calls together at first; after a loss, the suspects run alone.
        ended: set[int] = set()
        losses: Counter[str] = Counter()
        while waiting := [number for number in range(len(calls)) if number not in ended]:
            suspects = [number for number in waiting if losses[calls[number].task.digest]]
            for number in self._run_in_pool(calls, suspects[:1] or waiting, ended, advance):
                count_loss(losses, calls[number])

    def _run_in_pool(self, calls: Sequence[Call], numbers: list[int], ended: set[int], advance: Advance) -> list[int]:
        """Run calls in the pool, and add to `ended`. Return those running when a process died."""
        pool, slots = self._pool_for(calls)
        futures: dict[Future[tuple[int, int]], int] = {}
        waiting = iter(numbers)

        def end(number: int, reported: tuple[int, int]) -> None:
            ended.add(number)
            advance(number, *reported)

        try:
            while True:
                for number in itertools.islice(waiting, _CALLS_AHEAD * self.workers - len(futures)):
                    futures[submit(pool, _run_in_worker, number, calls[number])] = number
                if not futures:
                    return []
                finished, _ = wait(futures, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in finished:
                    reported = future.result()
                    end(futures.pop(future), reported)
                for number, done, made in slots.busy():
                    if number not in ended:
                        advance(number, done, made)
        except BrokenProcessPool:
            # Keep what has ended; of the rest, those at work are suspected, or all if none was.
            self.close()
            for future, number in futures.items():
                if future.exception() is None:
                    end(number, future.result())
            left = [number for number in futures.values() if number not in ended]
            at_work = {number for number, _, _ in slots.busy()}
            suspects = [number for number in left if number in at_work] or left
            return suspects or [number for number in numbers if number not in ended][:1]
        except BaseException:
            terminate(pool)
            self.close()
            raise

    def _pool_for(self, calls: Sequence[Call]) -> tuple[ProcessPoolExecutor, _Slots]:
        """Return the pool and its slots, with processes for tasks that send files if these calls do."""
        sends = any((call.outputs or call.stage).request_bytes for call in calls)
        processes = self.workers + (-(-self.workers // _WORKERS_A_SENDER) if sends else 0)
        if self._pool is not None and self._pool[1].processes < processes:
            self.close()
        if self._pool is None:
            start_server(_PRELOADED)
            slots = _Slots(processes, self.workers)
            self._pool = open_pool(processes, _take_row, slots), slots
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool[0].shutdown(cancel_futures=True)
            self._pool = None


class _Slots:
    """The state of each worker process, in memory shared with the build: a row of `_ROW` numbers per process."""

    _ROW = 3

    def __init__(self, processes: int, workers: int):
        context = multiprocessing.get_context("forkserver")
        self.processes = processes
        self.turns = context.BoundedSemaphore(workers)
        """Held by each task that computes."""
        self._taken = context.Value("q", 0)
        self._rows = context.RawArray("q", processes * self._ROW)

    def take(self) -> int:
        """Return a row that no other process has."""
        with self._taken.get_lock():
            self._taken.value += 1
            return self._taken.value - 1

    def set(self, row: int, number: int, done: int, made: int) -> None:
        """Record how far a process has got with a call; -1: it is idle."""
        self._rows[row * self._ROW : (row + 1) * self._ROW] = [number + 1, done, made]

    def busy(self) -> list[tuple[int, int, int]]:
        """Return (number, bytes done, tokens made) of each call that a worker is at, or was when its process died."""
        values: list[int] = self._rows[:]
        rows = (values[start : start + self._ROW] for start in range(0, len(values), self._ROW))
        return [(number - 1, done, made) for number, done, made in rows if number]


def _run_in_worker(number: int, call: Call) -> tuple[int, int]:
    slots, row = _joined[0]
    slots.set(row, number, 0, 0)
    try:
        return run_call(call, lambda done, made: slots.set(row, number, done, made), slots.turns)
    finally:
        slots.set(row, -1, 0, 0)


_joined: list[tuple[_Slots, int]] = []
"""In a worker process: the slots, and its own row."""


def _take_row(slots: _Slots) -> None:
    _joined.append((slots, slots.take()))
