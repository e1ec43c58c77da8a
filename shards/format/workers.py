"""One function over the shards of a set, in processes: results in the order of the shards, few of them in memory.

Processes, not threads: counting and cutting up documents holds the interpreter for about half of its time (measured:
two threads 1.1 times as fast as one, two processes 1.9 times). With one worker nothing is started.

No process goes on when the results are no longer wanted: an error, an interrupt, a reader that stops early end them at
once, in the middle of a task. Interrupts of the terminal, which reach every process, are this process's to report.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


def map_tasks(
    function: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], workers: int
) -> Iterator[tuple[TaskT, ResultT]]:
    """Yield each task with `function(task)`, in order; at most `2 * workers` results wait.

    Args:
        function: a function of a module, so that a process can be told its name.
        tasks: what it is called with; small, since it is sent to a process.
        workers: processes; 1 calls the function here.

    Raises:
        ChildProcessError: a process died, as one that is killed for want of memory does.
        Exception: whatever the function raised for a task.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        for task in tasks:
            yield task, function(task)
        return
    # Spawned, not forked: Arrow and the progress bar have threads of their own by now.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    waiting: deque[tuple[TaskT, Future[ResultT]]] = deque()
    try:
        for task in tasks:
            waiting.append((task, _submit(pool, function, task)))
            if len(waiting) == 2 * workers:
                first, result = waiting.popleft()
                yield first, result.result()
        while waiting:
            first, result = waiting.popleft()
            yield first, result.result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process died in the middle of a task; killed for want of memory? Run again with fewer --workers."
        ) from error
    except BaseException:
        for process in list(pool._processes.values()):  # public, as `terminate_workers`, from Python 3.14 on
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def hide_main_module() -> Generator[None]:
    """Keep processes that are started meanwhile from importing the main module of the program again.

    Our tasks are functions of our own modules. So a person's script needs no `if __name__ == "__main__"`, whatever it
    does outside of functions is not done once more in each process, and a process starts sooner.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")  # has no file and no spec: nothing to import
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _submit(pool: ProcessPoolExecutor, function: Callable[[TaskT], ResultT], task: TaskT) -> Future[ResultT]:
    """Submit a task; a process that is started for it has SIGINT blocked from its first moment, as it inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with hide_main_module():
            return pool.submit(function, task)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
