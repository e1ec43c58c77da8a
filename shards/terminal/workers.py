"""The workers of a program: one pool of processes for builds and for what reads sets, and threads.

Processes are forked by a server that has loaded the libraries, without a thread or a lock of this process. `map_tasks`
runs them and keeps few results in memory: counting and splitting documents holds the interpreter's lock for about half
of the time (measured: two threads 1.1 times as fast as one, two processes 1.9 times). `map_in_threads` is for work that
releases the lock, such as decompression. With one worker, neither starts anything.

Processes end at once, in the middle of a task, when their results are no longer needed: after an error, an interrupt,
or a reader that stops early; and when the program ends, even by SIGKILL. Ctrl-C reaches every process; only this one
reports it.
"""

import contextlib
import ctypes
import functools
import gc
import itertools
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker, util
from typing import Any, TypeVar, cast

from shards.errors import InputError
from shards.terminal.display import say
from shards.terminal.reporter import has_reporter, report_to

# For the worker processes, unless the person has set them. A worker encodes on one thread: OpenBLAS's would
# only spin. Batches come and go by megabytes: memory that malloc keeps is not zeroed by the kernel again and again,
# 0.3 s of a build of 150 MB with two workers, measured. One arena keeps it for all threads: those that read and write
# a bucket would each fill their own, with 1.6 times the page faults (docs/lab/build.md).
WORKER_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}

SharedT = TypeVar("SharedT")
TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


def map_tasks(
    function: Callable[[SharedT, TaskT], ResultT],
    shared: SharedT,
    tasks: Sequence[TaskT],
    workers: int,
    *,
    here: bool = True,
) -> Iterator[tuple[TaskT, ResultT]]:
    """Yield each task with `function(shared, task)`, by worker processes, in order; at most `2 * workers` results wait.

    Args:
        function: a function at the top level of a module, so that it can be pickled by name.
        shared: the first argument of every call; sent to each process once. A set belongs here: its manifest lists
            every shard, so that a task that read it again would make the whole work quadratic in the shards.
        tasks: the second arguments of the calls; small, since each is sent to a process.
        workers: number of processes.
        here: whether the function is called in this process if that number is 1.

    Raises:
        ChildProcessError: a process died, for example because the machine ran out of memory.
        Exception: the error that the function raised for a task.
    """
    # One worker is this process: nothing is started or pickled.
    workers = min(workers, len(tasks))
    if workers <= 1 and here:
        for task in tasks:
            yield task, function(shared, task)
        return
    start_server([function.__module__])
    pool = open_pool(workers, _begin_task, pickle.dumps(shared))
    rest = iter(tasks)

    def start(task: TaskT) -> tuple[TaskT, Future[ResultT]]:
        return task, submit(pool, _call, function, task)

    try:
        # Enough to keep all busy, few enough to hold in memory.
        waiting = deque(map(start, itertools.islice(rest, 2 * workers)))
        while waiting:
            task, result = waiting.popleft()
            yield task, result.result()
            waiting.extend(map(start, itertools.islice(rest, 1)))
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process died in the middle of a task; out of memory? Run again with fewer --workers."
        ) from error
    except BaseException:
        terminate(pool)
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


def start_server(preload: Sequence[str]) -> None:
    """Start the fork server of this process's workers, unless it runs; it loads modules while this process goes on.

    Args:
        preload: the modules, by name; one that cannot be imported is left out.

    Raises:
        InputError: the folder for temporary files has too long a path for a socket.
    """
    multiprocessing.set_forkserver_preload([f"{__package__}.worker_server", *preload])
    place = util.get_temp_dir()  # of its socket, deleted when it ends
    with _hide_main_module(), _environment_of_workers(place):
        # The server is born without interrupts: it ignores them only once it has loaded its first module. The start of
        # the tracker, which it needs, ends with interrupts unblocked.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            forkserver.ensure_running()
        except OSError as error:
            if "AF_UNIX" not in str(error):
                raise
            raise InputError(
                f"{place}: too long a path for the socket of the workers, which has at most 107 bytes with its "
                "name. Set TMPDIR to a folder with a shorter path, or give --workers 1."
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def open_pool(processes: int, begin: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """Return a pool of workers, each of which calls `begin` with the arguments first. They end with this process."""
    joining = (os.getpid(), dict(os.environ), has_reporter(), begin, *arguments)
    context = multiprocessing.get_context("forkserver")
    return ProcessPoolExecutor(processes, context, initializer=_join, initargs=joining)


def submit(pool: ProcessPoolExecutor, function: Callable[..., ResultT], *arguments: Any) -> Future[ResultT]:
    """Submit a call to a pool of workers, which may start one for it.

    Raises:
        BrokenProcessPool: a worker has died, or the fork server.
    """
    # An interrupt waits until the pool knows the worker that may be starting, and can end it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        with _hide_main_module():
            return pool.submit(function, *arguments)
    except (EOFError, ConnectionError) as error:  # the fork server has ended: it starts the pool's processes
        raise BrokenProcessPool("the fork server has ended") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def terminate(pool: ProcessPoolExecutor) -> None:
    """End the workers of a pool at once."""
    for process in list(pool._processes.values()):  # public, as `terminate_workers`, from Python 3.14 on
        process.terminate()


@contextlib.contextmanager
def _hide_main_module() -> Generator[None]:
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


_SERVER_FOLDER = "TOKENMILL_FORK_SERVER_FOLDER"
"""The variable by which the fork server knows the folder to delete."""


@contextlib.contextmanager
def _environment_of_workers(place: str) -> Generator[None]:
    """Change this process's environment while the fork server starts; the workers inherit it."""
    wanted = dict(WORKER_ENVIRONMENT)
    if not {"", os.getcwd()} & set(sys.path):
        wanted["PYTHONSAFEPATH"] = "1"  # else Python puts the working directory first on the server's path
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    # The server deletes this folder, so no one else names it.
    added[_SERVER_FOLDER] = place
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _join(
    program: int, environment: dict[str, str], reports: bool, begin: Callable[..., None], *arguments: Any
) -> None:
    """Prepare a worker: set the program's current environment, and end the worker when the program ends.

    The server may be older than what the program does now, and may not have loaded the libraries of the tasks.
    """
    gc.freeze()
    gc.enable()
    os.environ.clear()
    os.environ.update(environment)
    # A thread cannot end the worker while native code holds the interpreter's lock: the system does when the server
    # ends, which then waits for this program alone.
    os.close(cast("Any", forkserver)._forkserver._forkserver_alive_fd)
    end_with_parent()
    threading.Thread(target=_end_with, args=(program,), daemon=True, name="end-with-program").start()
    report_to(say if reports else None)
    begin(*arguments)


def end_with_parent() -> None:
    """Let the kernel end this process, a worker or a training, with the one that started it; on Linux."""
    with contextlib.suppress(AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _end_with(program: int) -> None:
    """End this worker when a process has ended; on Linux, a zombie that its parent has not reaped counts as ended."""
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(program)], [], [])
    os._exit(1)


_pickled = b""
"""In a worker process, what all its tasks share."""


def _begin_task(pickled: bytes) -> None:
    global _pickled
    _pickled = pickled


@functools.cache
def _shared() -> Any:
    """Return what all tasks of workers share. A set is opened again here, in a task, whose errors reach the caller."""
    return pickle.loads(_pickled)


def _call(function: Callable[[Any, TaskT], ResultT], task: TaskT) -> ResultT:
    return function(_shared(), task)
