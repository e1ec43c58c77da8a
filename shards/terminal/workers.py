"""Run one function over the shards of a set, in processes or in threads. Results come in the order of the shards.

`map_tasks` runs processes and keeps few results in memory: counting and splitting documents holds the interpreter's
lock for about half of the time (measured: two threads 1.1 times as fast as one, two processes 1.9 times).
`map_in_threads` is for work that releases the lock, such as decompression. With one worker, neither starts anything.

Processes end at once, in the middle of a task, when their results are no longer needed: after an error, an interrupt,
or a reader that stops early. Ctrl-C reaches every process; only this one reports it.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import pickle
import signal
import sys
import types
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from threading import Event
from typing import Any, TypeVar

from shards.terminal.display import say
from shards.terminal.waiting import has_reporter, report_to

SharedT = TypeVar("SharedT")
TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


def map_tasks(
    function: Callable[[SharedT, TaskT], ResultT], shared: SharedT, tasks: Sequence[TaskT], workers: int
) -> Iterator[tuple[TaskT, ResultT]]:
    """Yield each task with `function(shared, task)`, by worker processes, in order; at most `2 * workers` results wait.

    Args:
        function: a function at the top level of a module, so that it can be pickled by name.
        shared: the first argument of every call; sent to each process once. A set belongs here: its manifest lists
            every shard, so that a task that read it again would make the whole work quadratic in the shards.
        tasks: the second arguments of the calls; small, since each is sent to a process.
        workers: number of processes; with 1, the function is called in this process.

    Raises:
        ChildProcessError: a process died, for example because the machine ran out of memory.
        Exception: the error that the function raised for a task.
    """
    # One worker is this process: nothing is started or pickled.
    workers = min(workers, len(tasks))
    if workers <= 1:
        for task in tasks:
            yield task, function(shared, task)
        return
    # Spawned, not forked: Arrow and the progress bar have started threads by now.
    context = multiprocessing.get_context("spawn")
    begins = (pickle.dumps(shared), has_reporter())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=begins)
    waiting: deque[tuple[TaskT, Future[ResultT]]] = deque()
    try:
        for task in tasks:
            waiting.append((task, _submit(pool, function, task)))
            # Enough to keep all busy, few enough to hold in memory.
            if len(waiting) == 2 * workers:
                first, result = waiting.popleft()
                yield first, result.result()
        while waiting:
            first, result = waiting.popleft()
            yield first, result.result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process died in the middle of a task; out of memory? Run again with fewer --workers."
        ) from error
    except BaseException:
        for process in list(pool._processes.values()):  # public, as `terminate_workers`, from Python 3.14 on
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def map_in_threads(function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], threads: int) -> list[ResultT]:
    """Return `function(task)` for each task, in order, computed by `threads` worker threads of this process.

    Raises:
        Exception: whatever the function raised for a task.
    """
    threads = min(threads, len(tasks))
    if threads <= 1:
        return [function(task) for task in tasks]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, tasks))


def call_until_failure(
    function: Callable[[TaskT], ResultT],
    tasks: Iterable[TaskT],
    take: Callable[[ResultT], None],
    *,
    threads: int,
    stop: Event,
) -> None:
    """Call `take(function(task))` for each task: the function in threads, `take` here, as the results come.

    After a failure, `stop` is set, for the functions at work to see; those that wait are not called.

    Raises:
        Exception: whatever one of the two raised.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="fetch") as pool:
        futures = [pool.submit(function, task) for task in tasks]
        try:
            for future in as_completed(futures):
                take(future.result())
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextlib.contextmanager
def hide_main_module() -> Generator[None]:
    """Prevent worker processes that are started in this block from importing the program's main module again.

    Our tasks are functions of our own modules, so they do not need the main module. A user's script then needs no
    `if __name__ == "__main__"`, its top-level code does not run in each process, and a process starts sooner.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")  # has no file and no spec: nothing to import
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_pickled = b""
"""In a worker process, what all its tasks share."""


def _begin_worker(pickled: bytes, reports: bool) -> None:
    global _pickled
    _pickled = pickled
    report_to(say if reports else None)


@functools.cache
def _shared() -> Any:
    """Return what all tasks share. A set is opened again here, in a task, whose errors reach the caller."""
    return pickle.loads(_pickled)


def _call(function: Callable[[Any, TaskT], ResultT], task: TaskT) -> ResultT:
    return function(_shared(), task)


def _submit(pool: ProcessPoolExecutor, function: Callable[[Any, TaskT], ResultT], task: TaskT) -> Future[ResultT]:
    """Submit a task. A process that starts for it inherits a blocked SIGINT, so it never handles Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with hide_main_module():
            return pool.submit(_call, function, task)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
