"""The driver: run the tasks of each stage that are not done, and repair files that a failing disk has damaged.

A re-run does exactly the tasks whose receipt or files are missing or damaged. If a task finds a damaged file of an
earlier stage, the driver prints a note, runs the task that wrote the file, and then the task that read it. The driver
knows tasks, folders and receipts, but no stage.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pipeline.engine.executors import Executor
from pipeline.engine.progress import Progress
from pipeline.engine.receipts import RECEIPT_FILE, ReceiptOutdatedError, WorkFileDamagedError, check_task
from pipeline.engine.tasks import Task, read_counters, read_damage, write_control
from shards.errors import RunError

MAX_REPAIRS = 2
"""How often a task is repaired before the build stops with `DiskFailingError`."""
OUTDATED = "work folder of version 0.1.0: its files carry no checksums, so they are made again"

ResultT = TypeVar("ResultT")


class DiskFailingError(RunError):
    """A task's files are damaged every time that they are written."""


class OutputChangedError(RunError):
    """A task that ran again wrote other files than before, because its source has changed."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of a stage. `results` are in task order, including tasks that ran earlier."""

    results: list[dict[str, Any]]
    ran: int
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Return the stage's entry in build.json; `detail` adds up the seconds of its tasks' steps, over all runs."""
        detail: Counter[str] = Counter()
        for result in self.results:
            detail.update(result.get("seconds", {}))
        return {"seconds": self.seconds, "tasks": len(self.results), "ran": self.ran, "detail": dict(detail)}


@dataclass(frozen=True, slots=True)
class _Stage:
    """How the tasks of a stage are run."""

    name: str
    function: str
    outputs: Path | None
    unit: str


class Driver:
    """Runs the stages of one build in its work folder."""

    def __init__(self, work: Path, executor: Executor, progress: Progress):
        self.work = work
        self.executor = executor
        self.progress = progress
        self._tasks: dict[Path, tuple[_Stage, Task]] = {}
        self._results: dict[Path, dict[str, Any]] = {}
        self._damages: Counter[Path] = Counter()

    def run_stage(
        self, name: str, function: str, tasks: list[Task], outputs: Path | None = None, *, unit: str = "bytes"
    ) -> StageResult:
        """Run the tasks that are not yet done.

        Args:
            name: the stage's name and folder.
            function: `module:function` of a `TaskFunction`.
            tasks: the tasks; their order affects only the order of the results.
            outputs: where the files of `result["files"]` are; the task's own folder when None.
            unit: what the progress counts: "bytes" or "files".

        Raises:
            DiskFailingError: a file was damaged again after `MAX_REPAIRS` repairs.
            OutputChangedError: a damaged file could not be made again as it was.
            Whatever a task raises. Finished tasks stay finished.
        """
        started = time.perf_counter()
        folder = self.work / name
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".*.tmp"):
            shutil.rmtree(leftover)
        stage = _Stage(name, function, outputs, unit)
        self._tasks |= {folder / task.digest: (stage, task) for task in tasks}
        ran = 0
        pending = self._find_pending(stage, tasks)
        while pending:
            known = self._damages.total()
            damages = self._execute(stage, pending)
            for damage in damages:
                self.repair(damage)
            left = self._find_pending(stage, pending)
            ran += len(pending) - len(left)
            if left and not damages and self._damages.total() == known:
                raise RuntimeError(f"stage {name}: {len(left)} tasks left no receipt in {folder}")
            pending = left
        return StageResult([self._results[folder / task.digest] for task in tasks], ran, time.perf_counter() - started)

    def read(self, read: Callable[[], ResultT]) -> ResultT:
        """Return the result of `read`, which reads files of finished tasks; repair the damaged files that it finds.

        Raises:
            As `run_stage`, and whatever `read` raises.
        """
        while True:
            try:
                return read()
            except WorkFileDamagedError as damage:
                self.repair(damage)

    def repair(self, damage: WorkFileDamagedError) -> None:
        """Run the task that wrote a damaged file again.

        Raises:
            As `run_stage`.
            WorkFileDamagedError: no task of this build writes the file.
        """
        if damage.folder not in self._tasks:
            raise damage
        self._say(damage)
        stage, task = self._tasks[damage.folder]
        before = _contents(self._results.pop(damage.folder, None))
        (damage.folder / RECEIPT_FILE).unlink(missing_ok=True)  # the task may use the intact files again
        result = self.run_stage(stage.name, stage.function, [task], stage.outputs, unit=stage.unit).results[0]
        if before is not None and _contents(result) != before:
            raise OutputChangedError(
                f"{damage.folder}: was damaged, and made again it differs from what it was, because its source has "
                "changed since. Run the same command again: what depends on it is made again too."
            )

    def _find_pending(self, stage: _Stage, tasks: list[Task]) -> list[Task]:
        """Keep the results of the tasks that are done; return the others, the large ones first."""
        pending: list[Task] = []
        for task in tasks:
            folder = self.work / stage.name / task.digest
            try:
                result = check_task(folder, stage.outputs)
            except WorkFileDamagedError as damage:
                self._say(damage)
                result = None
            if result is None:
                pending.append(task)
            else:
                self._results[folder] = result
        return sorted(pending, key=lambda task: -task.size)

    def _execute(self, stage: _Stage, tasks: list[Task]) -> list[WorkFileDamagedError]:
        """Run tasks with the executor; return the damaged files of other tasks that they found."""
        folder = self.work / stage.name
        control = folder / "control"
        shutil.rmtree(control, ignore_errors=True)
        write_control(control, stage.function, tasks, folder, stage.outputs)
        total = sum(task.size for task in tasks)
        try:
            read = partial(read_counters, control)
            with self.progress.stage(stage.name, total=total, tasks=len(tasks), read=read, unit=stage.unit):
                self.executor.run(control, len(tasks))
            return read_damage(control)
        finally:
            shutil.rmtree(control, ignore_errors=True)

    def _say(self, damage: WorkFileDamagedError) -> None:
        """Print that a task runs again; stop the build if repairs do not help."""
        if isinstance(damage, ReceiptOutdatedError):
            self.progress.note_once(OUTDATED)
            return
        self._damages[damage.folder] += 1
        if self._damages[damage.folder] > MAX_REPAIRS:
            raise DiskFailingError(
                f"{damage.folder / damage.name}: damaged again, after its task ran {MAX_REPAIRS} times more. The disk "
                "or the memory of this machine is failing: check them, or choose another disk with --work."
            ) from damage
        task = f"{damage.folder.parent.name} task {damage.folder.name}"
        self.progress.note(f"{damage.folder / damage.name}: damaged ({damage.reason}); the {task} runs again")


def _contents(result: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the checksums by which the files of two results are compared."""
    if result is None:
        return None
    files = result["files"].items()
    return {name: (facts["bytes"], facts.get("xxh3_128", facts.get("sha256"))) for name, facts in files}
