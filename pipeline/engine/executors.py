"""Executors: run a stage's tasks in worker processes of this machine, or as ranks of a datatrove executor.

Both call `pipeline.engine.tasks.run_pending`; the shard set's bytes do not depend on the choice. The local executor is
the standard library's process pool on a fork server that has loaded the libraries (`pipeline.engine.worker`). It lives
as long as the build. A build of 150 MB takes 0.4 s less with it than with datatrove's local executor, which spends
0.17 s on imports in each process and makes a pool for each stage. If a worker dies, the build stops at once;
datatrove's pool would wait forever. Datatrove's executors are the way to a cluster: its Slurm and Ray executors run
`pipeline.engine.datatrove_step` like its local one.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from pathlib import Path
from typing import Protocol

from pipeline.engine.tasks import run_pending
from shards.errors import RunError, import_extra
from shards.format.workers import hide_main_module

# For the worker processes, unless the person has set them. A worker encodes on one thread: OpenBLAS's would
# only spin. Batches come and go by megabytes: memory that malloc keeps is not zeroed by the kernel again and again,
# 0.3 s of a build of 150 MB with two workers, measured.
_WORKER_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


class WorkerLostError(RunError):
    """A worker process died in the middle of a task, most often because the machine ran out of memory."""


class Executor(Protocol):
    """Runs the tasks of a stage."""

    workers: int
    """Processes."""

    def run(self, control: Path, num_tasks: int) -> None:
        """Call `run_pending(control, number)` for each number below `num_tasks`.

        Raises:
            Whatever a task raises.
        """

    def close(self) -> None:
        """End the processes."""


class LocalExecutor:
    """Worker processes of this machine. They are started when a stage has more than one task."""

    def __init__(self, workers: int):
        """Start to load the workers' libraries on another core, while this process reads recipe and footers."""
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        if workers > 1:
            multiprocessing.set_forkserver_preload(["pipeline.engine.worker"])
            with hide_main_module(), _environment_of_workers():
                forkserver.ensure_running()

    def run(self, control: Path, num_tasks: int) -> None:
        """Run the tasks; if there is only one worker or one task, run them in this process, one after the other.

        Raises:
            WorkerLostError: a process died in the middle of a task.
            Whatever a task raises.
        """
        if self.workers == 1 or num_tasks == 1:
            for number in range(num_tasks):
                run_pending(control, number)
            return
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            build = (os.getpid(), dict(os.environ))
            self._pool = ProcessPoolExecutor(self.workers, context, initializer=_join_build, initargs=build)
        try:
            with hide_main_module():
                futures = [self._pool.submit(run_pending, control, number) for number in range(num_tasks)]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BrokenProcessPool as error:
            raise WorkerLostError(
                "a worker process died in the middle of a task, most often because memory ran out. What is finished is "
                "kept. Run again with fewer --workers."
            ) from error
        except BaseException:
            for process in self._pool._processes.values():  # public, as `terminate_workers`, from Python 3.14 on
                process.terminate()
            raise

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None  # with it go its semaphores, which a process that ends by os._exit would leave behind
            gc.collect()


@contextlib.contextmanager
def _environment_of_workers() -> Generator[None]:
    """Change this process's environment while the fork server starts; the workers inherit it."""
    wanted = dict(_WORKER_ENVIRONMENT)
    if not {"", os.getcwd()} & set(sys.path):
        wanted["PYTHONSAFEPATH"] = "1"  # else Python puts the working directory first on the server's path
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _join_build(build: int, environment: dict[str, str]) -> None:
    """Prepare a worker: set the build's current environment, and end the worker when the build's process ends.

    If the user's own program started the fork server, it may be older than the build, and may not have loaded the
    libraries of the tasks.
    """
    from pipeline.engine.worker import end_with

    os.environ.clear()
    os.environ.update(environment)
    end_with(build)


class DatatroveExecutor:
    """Ranks of datatrove's local executor. If a worker is killed, it waits forever: interrupt the build then."""

    def __init__(self, workers: int):
        self.workers = workers
        import_extra("datatrove")

    def run(self, control: Path, num_tasks: int) -> None:
        """Run the tasks.

        Raises:
            Whatever a task raises.
        """
        from pipeline.engine.datatrove_step import run_all_pending

        run_all_pending(control, num_tasks, self.workers)

    def close(self) -> None:
        """Do nothing: each stage's processes have ended."""


EXECUTORS: dict[str, Callable[[int], Executor]] = {"local": LocalExecutor, "datatrove": DatatroveExecutor}
"""The executor of each `--engine`; called with the number of workers."""
