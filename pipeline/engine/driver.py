"""The driver: run the tasks of each stage that are not done, and repair files that a failing disk has damaged.

A re-run does exactly the tasks whose receipt or files are missing or damaged. If a task finds a damaged file of an
earlier stage, the driver prints a note, runs the task that wrote the file, and then the task that read it. The driver
knows tasks, stores and receipts, but no stage.

Of a stage with many tasks it reads one listing and one file, `results.json`, with the results of the tasks when the
stage was last complete. It opens the receipts of those tasks alone whose files are not listed as they were then.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pipeline.engine.attempts import attempt_contents, delete_abandoned_attempts
from pipeline.engine.checksums import seal, unseal
from pipeline.engine.executors import Executor
from pipeline.engine.receipts import (
    RECEIPT_FILE,
    Result,
    ResultT,
    WorkFileDamagedError,
    check_task_files,
    load_receipt,
)
from pipeline.engine.stage_progress import Progress
from pipeline.engine.tasks import Call, Task, TaskFunction, kind_of_result, name_function
from shards.errors import RunError, plural
from shards.stores.store import ListedFile, WritableStore, reads_at_once
from shards.terminal.workers import map_in_threads

RESULTS_FILE = "results.json"
"""By digest, the size and the version of each task's receipt, and its result."""
MAX_REPAIRS = 2
"""How often a task is repaired before the build stops."""

ReadT = TypeVar("ReadT")


@dataclass(frozen=True, slots=True)
class StageResult(Generic[ResultT]):
    """The result of a stage. `results` are in task order, including tasks that ran earlier."""

    results: list[ResultT]
    ran: int
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Return the stage's entry in build.json.

        `detail` adds up the seconds of its tasks' steps over all runs, and `core_seconds` the processor seconds.
        """
        sums: dict[str, Counter[str]] = {"seconds": Counter(), "core_seconds": Counter()}
        for result in self.results:
            for kind, steps in sums.items():
                steps.update(getattr(result, kind))
        entry: dict[str, Any] = {"seconds": self.seconds, "tasks": len(self.results), "ran": self.ran}
        return entry | {"detail": dict(sums["seconds"]), "core_seconds": dict(sums["core_seconds"])}


@dataclass(frozen=True, slots=True)
class _Stage:
    """How the tasks of a stage are run."""

    name: str
    function: TaskFunction[Any]
    store: WritableStore
    outputs: WritableStore | None
    unit: str

    @property
    def kind(self) -> type[Result]:
        """The class of the tasks' results."""
        return kind_of_result(self.function)

    def place(self, task: Task) -> str:
        """Return the address of a task's folder."""
        return str(self.store.child(task.digest))


class Driver:
    """Runs the stages of one build in its work folder."""

    def __init__(
        self,
        work: WritableStore,
        executor: Executor,
        progress: Progress,
        *,
        scratch: str | None = None,
        check: Callable[[], None] | None = None,
    ):
        """Set where stages are kept and run.

        Args:
            work: the work folder.
            executor: where the tasks run.
            progress: shows the stages.
            scratch: the folder where tasks write, on the machine that runs them; see `open_attempt`.
            check: called often; raises if this driver may not go on.
        """
        self.work = work
        self.executor = executor
        self.progress = progress
        self.scratch = scratch
        self._check_right = check or (lambda: None)
        self._tasks: dict[str, tuple[_Stage, Task]] = {}
        self._results: dict[str, Result] = {}
        self._damages: Counter[str] = Counter()

    def run_stage(
        self,
        name: str,
        function: TaskFunction[ResultT],
        tasks: list[Task],
        outputs: WritableStore | None = None,
        *,
        unit: str = "bytes",
        before: Callable[[list[Task]], None] | None = None,
    ) -> StageResult[ResultT]:
        """Run the tasks that are not yet done.

        Args:
            name: the stage's name and folder.
            function: what runs a task.
            tasks: the tasks, with distinct digests; their order affects only the order of the results.
            outputs: where the files of the results go; the task's own folder when None.
            unit: what the progress counts: "bytes", "files" or "tokens".
            before: called once with the tasks that will run, perhaps none; it may raise.

        Raises:
            RunError: a file was damaged again after `MAX_REPAIRS` repairs.
            RunError: a damaged file could not be made again as it was.
            Whatever a task raises. Finished tasks stay finished.
        """
        self._check_right()
        started = time.perf_counter()
        stage = _Stage(name, function, self.work.child(name), outputs, unit)
        places = [stage.place(task) for task in tasks]
        self._tasks |= {place: (stage, task) for place, task in zip(places, tasks, strict=True)}
        # Find what is left to do, and take away what could be mistaken for its result.
        pending = self._find_pending(stage, tasks)
        for task in pending:  # so that any receipt found later can be relied on
            stage.store.delete(f"{task.digest}/{RECEIPT_FILE}")
        if before:
            before(pending)
        # A damaged file of an earlier stage is made again, and then the tasks that found it run again.
        ran = 0
        while pending:
            known = self._damages.total()
            damages = self._execute(stage, pending)
            for damage in damages:
                self.repair(damage)
            left = self._find_unfinished(stage, pending)
            ran += len(pending) - len(left)
            if left and not damages and self._damages.total() == known:
                raise RuntimeError(f"stage {name}: {plural(len(left), 'task')} left no receipt in {stage.store}")
            pending = left
        if ran and len(tasks) > 1:
            self._write_results(stage, tasks)
        results = cast("list[ResultT]", [self._results[place] for place in places])
        return StageResult(results, ran, time.perf_counter() - started)

    def look_up(
        self, name: str, function: TaskFunction[ResultT], tasks: list[Task], outputs: WritableStore | None
    ) -> tuple[StageResult[ResultT], list[Task], str]:
        """Find the tasks of a stage that are not yet done, as `run_stage` does; run and write nothing.

        Returns:
            The results of the others, the missing tasks, and the job that the executor would submit for them.
        """
        stage = _Stage(name, function, self.work.child(name), outputs, "bytes")
        self._tasks |= {stage.place(task): (stage, task) for task in tasks}
        pending = self._find_pending(stage, tasks)
        found = [self._results[place] for task in tasks if (place := stage.place(task)) in self._results]
        shown = self.executor.show(self._calls(stage, pending)) if pending else ""
        return StageResult(cast("list[ResultT]", found), 0, 0.0), pending, shown

    def read(self, read: Callable[[], ReadT]) -> ReadT:
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
        if damage.place not in self._tasks:
            raise damage
        self._say(damage)
        stage, task = self._tasks[damage.place]
        before = self._results.pop(damage.place, None)
        stage.store.delete(f"{task.digest}/{RECEIPT_FILE}")  # the task may use the intact files again
        result = self.run_stage(stage.name, stage.function, [task], stage.outputs, unit=stage.unit).results[0]
        if before is not None and attempt_contents(result) != attempt_contents(before):
            raise RunError(
                f"{damage.place}: was damaged, and made again it differs from what it was, because its source has "
                "changed since. Run the same command again: what depends on it is made again too."
            )

    def _find_pending(self, stage: _Stage, tasks: list[Task]) -> list[Task]:
        """Keep the results of the tasks that are done; return the others, the large ones first."""
        # One listing for all tasks; of a single task, of its folder alone.
        only = f"{tasks[0].digest}/" if len(tasks) == 1 else ""
        listed = (stage.store.child(tasks[0].digest) if only else stage.store).list()
        found = {only + file.name: file for file in listed}
        outputs = {file.name: file for file in stage.outputs.list()} if stage.outputs else None
        known = self._read_results(stage) if RESULTS_FILE in found else {}
        pending: list[Task] = []
        for task in tasks:
            receipt = found.get(f"{task.digest}/{RECEIPT_FILE}")
            if receipt is None:
                pending.append(task)
                continue

            def find(name: str, task: Task = task) -> ListedFile | None:
                return found.get(f"{task.digest}/{name}") if outputs is None else outputs.get(name)

            if (result := self._check(stage, task, receipt, known, find)) is None:
                pending.append(task)
            else:
                self._results[stage.place(task)] = result
        return sorted(pending, key=lambda task: -task.size)

    def _check(
        self,
        stage: _Stage,
        task: Task,
        receipt: ListedFile,
        known: dict[str, tuple[int, str, Result]],
        find: Callable[[str], ListedFile | None],
    ) -> Result | None:
        """Return a task's result, or None if the task must run again."""
        folder = stage.store.child(task.digest)
        # A receipt that is listed as it was when the stage was complete need not be opened.
        size, version, result = known.get(task.digest, (0, "", None))
        try:
            unchanged = (size, version) == (receipt.bytes, receipt.version)
            if result and unchanged and check_task_files(result, folder, stage.outputs, find):
                return result
            result = load_receipt(folder, stage.kind)
            return result if result and check_task_files(result, folder, stage.outputs, find) else None
        except WorkFileDamagedError as damage:
            self._say(damage)
            return None

    def _find_unfinished(self, stage: _Stage, tasks: list[Task]) -> list[Task]:
        """Keep the results of the tasks that have ended; return those without a receipt.

        Receipts are opened: on a network's file system a listing may be a minute old.
        """

        def load(task: Task) -> Result | WorkFileDamagedError | None:
            try:
                return load_receipt(stage.store.child(task.digest), stage.kind)
            except WorkFileDamagedError as damage:
                return damage

        left: list[Task] = []
        for task, result in zip(tasks, map_in_threads(load, tasks, reads_at_once(stage.store)), strict=True):
            if isinstance(result, WorkFileDamagedError):
                self._say(result)
                stage.store.delete(f"{task.digest}/{RECEIPT_FILE}")
                left.append(task)
            elif result is None:
                left.append(task)
            else:
                self._results[stage.place(task)] = result
        return left

    def _execute(self, stage: _Stage, tasks: list[Task]) -> list[WorkFileDamagedError]:
        """Run tasks with the executor; return the damaged files of other tasks that they found."""
        for store in (stage.store, stage.outputs):
            if store and store.folder:
                delete_abandoned_attempts(store.folder)
        calls = self._calls(stage, tasks)
        total = sum(task.size for task in tasks)
        with self.progress.stage(stage.name, total=total, tasks=len(tasks), unit=stage.unit) as show:

            def advance(number: int, done: int, made: int) -> None:
                self._check_right()
                show(number, done, made)

            return self.executor.run(calls, advance)

    def _calls(self, stage: _Stage, tasks: list[Task]) -> list[Call]:
        return [Call(name_function(stage.function), task, stage.store, stage.outputs, self.scratch) for task in tasks]

    def _read_results(self, stage: _Stage) -> dict[str, tuple[int, str, Result]]:
        """Return the results that the stage had when it was last complete; none if the file is damaged."""
        try:
            return unseal(stage.store.read(RESULTS_FILE), dict[str, tuple[int, str, stage.kind]])
        except (OSError, ValueError):
            return {}  # each receipt is read then

    def _write_results(self, stage: _Stage, tasks: list[Task]) -> None:
        found = {file.name: file for file in stage.store.list()}
        entries = {
            task.digest: (receipt.bytes, receipt.version, self._results[stage.place(task)])
            for task in tasks
            if (receipt := found.get(f"{task.digest}/{RECEIPT_FILE}"))
        }
        stage.store.put(RESULTS_FILE, seal(entries, dict[str, tuple[int, str, stage.kind]]))

    def _say(self, damage: WorkFileDamagedError) -> None:
        """Print that a task runs again; stop the build if repairs do not help."""
        self._damages[damage.place] += 1
        if self._damages[damage.place] > MAX_REPAIRS:
            raise RunError(
                f"{damage.where}: damaged again, after its task ran {MAX_REPAIRS} times more. The disk "
                "or the memory of this machine is failing: check them, or choose another disk with --work."
            ) from damage
        stage, _, digest = damage.place.rpartition("/")
        task = f"{stage.rpartition('/')[2]} task {digest}"
        self.progress.note(f"{damage.where}: damaged ({damage.reason}); the {task} runs again")
