"""The pipeline step that datatrove's executors run: rank k is a stage's k-th pending task.

Datatrove's completion marks are not used, because they record ranks and not tasks. The engine passes exactly the tasks
without an intact receipt.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import multiprocess
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from loguru import logger

from pipeline.engine.tasks import run_pending


class RunTask(PipelineStep):
    """Runs one task and writes its receipt. It is small, because datatrove sends it with every rank."""

    name = "task"
    type = "tokenmill"

    def __init__(self, control: str, build: int):
        super().__init__()
        self.control = control
        self.build = build

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Any:
        """Run the task of this rank."""
        if os.getpid() != self.build:
            from pipeline.engine.worker import end_with  # late: the fork server has loaded it, the build has not

            end_with(self.build)
        run_pending(Path(self.control), rank)


def run_all_pending(control: Path, num_tasks: int, workers: int) -> None:
    """Run a stage's tasks on datatrove's local executor.

    Raises:
        Whatever a task raises.
    """
    logger.disable("datatrove")
    multiprocess.set_forkserver_preload(["pipeline.engine.worker"])  # pyright: ignore[reportAttributeAccessIssue]
    LocalPipelineExecutor(
        pipeline=[RunTask(str(control), os.getpid())],
        tasks=num_tasks,
        workers=min(workers, num_tasks),
        logging_dir=str(control / "datatrove"),
        skip_completed=False,
        start_method="forkserver",
    ).run()
