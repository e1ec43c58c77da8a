"""Running a stage's tasks in several processes, on datatrove's local executor.

Its ranks are our tasks. Its logs, statistics and completion marks are left out: marks know only ranks, not what a rank
meant, and receipts say the rest. What it lacks is added: a worker that dies ends the build instead of hanging it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.stats import PipelineStats
from loguru import logger

from pipeline.engine import read_counts, run_rank

_WATCH_SECONDS = 0.5


class WorkerLostError(RuntimeError):
    """A worker process died in the middle of a task, most often because the machine ran out of memory."""


class RunTask(PipelineStep):
    """The pipeline step: rank k runs the k-th pending task. Small, because datatrove sends it with every rank."""

    name = "task"
    type = "tokenmill"

    def __init__(self, control: str):
        super().__init__()
        self.control = control

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Any:
        """Run one task and leave its receipt."""
        run_rank(Path(self.control), rank)


class TaskExecutor(LocalPipelineExecutor):
    """datatrove's local executor without its bookkeeping of each rank: 20 ms a task, measured."""

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> PipelineStats:
        for step in self.pipeline:
            step(None, rank, self.world_size)
        return PipelineStats()


def run_pool(control: Path, num_tasks: int, workers: int) -> None:
    """Run a stage's tasks in `workers` processes.

    Raises:
        WorkerLostError: a process died in the middle of a task.
        Whatever a task raises.
    """
    logger.disable("datatrove")
    executor = TaskExecutor(
        pipeline=[RunTask(str(control))],
        tasks=num_tasks,
        workers=min(workers, num_tasks),
        logging_dir=str(control / "datatrove"),
        skip_completed=False,
        start_method="forkserver",
    )
    with _watch_workers(control):
        executor.run()


@contextmanager
def _watch_workers(control: Path) -> Generator[None]:
    """Interrupt the body when a worker dies in its task: a process pool would wait for it for ever.

    Raises:
        WorkerLostError: saying so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    stop = threading.Event()
    lost: list[int] = []

    def watch() -> None:
        while not stop.wait(_WATCH_SECONDS):
            lost[:] = [process for _, _, process in read_counts(control) if process and not _is_alive(process)]
            if lost:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                return

    def interrupt(number: int, frame: Any) -> None:
        raise WorkerLostError(
            f"worker process {lost} died in the middle of a task; killed for want of memory? What is finished is kept. "
            "Run again with fewer --workers."
        )

    previous = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGUSR1, previous)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
