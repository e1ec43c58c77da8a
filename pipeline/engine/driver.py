"""The driver: run the tasks of each stage that are not done.

A re-run does exactly the tasks whose receipt or files are missing or damaged. Of a stage it reads one listing, and the
receipt of each task that is done. The driver knows tasks, stores and receipts, but no stage.

A disk may damage a file after its task is done. Whoever reads it raises `WorkFileDamagedError`, which ends the stage:
the build then calls `forget` and begins again from its receipts.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from pipeline.engine.attempts import delete_abandoned_attempts
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
from pipeline.engine.tasks import Call, Task, TaskFunction, kind_of_result
from shards.errors import RunError
from shards.stores.open import open_writable_store
from shards.stores.store import WritableStore, reads_at_once
from shards.terminal.workers import map_in_threads


@dataclass(frozen=True, slots=True)
class StageResult(Generic[ResultT]):
    """The result of a stage. `results` are by the tasks' digests, in their order, including tasks that ran earlier."""

    results: dict[str, ResultT]
    ran: int
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Return the stage's entry in build.json, with the processor seconds of its tasks' steps over all runs."""
        core_seconds = Counter[str]()
        for result in self.results.values():
            core_seconds.update(result.core_seconds)
        return {"seconds": self.seconds, "tasks": len(self.results), "ran": self.ran, "core_seconds": core_seconds}


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
            check: called often; raises if the build may not go on.
        """
        self.work = work
        self.executor = executor
        self.progress = progress
        self.scratch = scratch
        self.check = check or (lambda: None)
        self._damaged: set[tuple[str, str]] = set()
        """The files that were found damaged: the address of the task's folder, and the name."""

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
        """Run the tasks of a stage that are not yet done.

        Args:
            name: the stage's name and folder.
            function: what runs a task.
            tasks: the tasks, with distinct digests; their order affects only the order of the results.
            outputs: where the files of the results go; the task's own folder when None.
            unit: what the progress counts: "bytes" or "files".
            before: called once with the tasks that will run, perhaps none; it may raise.

        Raises:
            WorkFileDamagedError: a task found a damaged file of an earlier one.
            Whatever a task raises. Finished tasks stay finished.
        """
        self.check()
        started = time.perf_counter()
        store, kind = self.work.child(name), kind_of_result(function)
        # Find what is left to do, and take away what could be mistaken for its result.
        results, pending, unusable = self.look_up(name, function, tasks, outputs)
        pending.sort(key=lambda task: -task.size)
        folders = [place.folder for place in (store, outputs) if place is not None and place.folder]
        for folder in folders:
            delete_abandoned_attempts(folder)
        for digest in unusable:
            store.delete(f"{digest}/{RECEIPT_FILE}")
        if before:
            before(pending)
        if pending:
            named = f"{function.__module__}:{function.__qualname__}"
            calls = [Call(named, task, store, outputs, self.scratch) for task in pending]
            self._execute(name, calls, unit)
            for folder in folders:
                delete_abandoned_attempts(folder)  # of workers that died
            # Receipts are opened: on a network's file system a listing may be a minute old.
            for task, result in zip(pending, _load_receipts(store, kind, pending), strict=True):
                if result is None:
                    raise RuntimeError(f"stage {name}: the task {task} left no receipt in {store}")
                if isinstance(result, WorkFileDamagedError):
                    raise result
                results[task.digest] = result
        found = {task.digest: results[task.digest] for task in tasks}
        return StageResult(found, len(pending), time.perf_counter() - started)

    def forget(self, damage: WorkFileDamagedError) -> None:
        """Delete the receipt of a task whose file is damaged, so that the task runs again.

        Raises:
            RunError: the file was damaged before, and made anew.
            WorkFileDamagedError: the file is not in the work folder.
        """
        if not damage.place.startswith(f"{self.work}/"):
            raise damage
        self._note(damage)
        open_writable_store(damage.place).delete(RECEIPT_FILE)

    def look_up(
        self, name: str, function: TaskFunction[ResultT], tasks: list[Task], outputs: WritableStore | None
    ) -> tuple[dict[str, Any], list[Task], set[str]]:
        """Find the tasks of a stage that are not yet done, as `run_stage` does; run and write nothing.

        Returns:
            The results of the others, by digest; the missing tasks; and the digests of receipts that cannot be used.
        """
        store, kind = self.work.child(name), kind_of_result(function)
        found = {file.name: file for file in store.list()}
        listing = {file.name: file for file in outputs.list()} if outputs else found
        with_receipt = [task for task in tasks if f"{task.digest}/{RECEIPT_FILE}" in found]
        results: dict[str, Result] = {}
        damages: list[WorkFileDamagedError] = []
        for task, result in zip(with_receipt, _load_receipts(store, kind, with_receipt), strict=True):
            try:
                if isinstance(result, WorkFileDamagedError):
                    raise result
                # A receipt may have gone since the listing.
                if result and check_task_files(result, store.child(task.digest), outputs, listing):
                    results[task.digest] = result
            except WorkFileDamagedError as damage:
                damages.append(damage)
        # A build of another recipe replaces files of the set: it damages none.
        replaced = set[tuple[str, str]]()
        if outputs and damages:
            digests = {name.partition("/")[0] for name in found} - {task.digest for task in tasks}
            others = _load_receipts(store, kind, [Task(digest, None, 0) for digest in digests])
            files = [file for other in others if isinstance(other, Result) for file in other.files.items()]
            replaced = {(written, file.version) for written, file in files}
        for damage in damages:
            file = listing.get(damage.name)
            if file is None or (file.name, file.version) not in replaced:
                self._note(damage)
        missing = [task for task in tasks if task.digest not in results]
        return results, missing, {task.digest for task in with_receipt} - results.keys()

    def _execute(self, name: str, calls: list[Call], unit: str) -> None:
        total = sum(call.task.size for call in calls)
        with self.progress.stage(name, total=total, tasks=len(calls), unit=unit) as show:

            def advance(number: int, done: int, made: int) -> None:
                self.check()
                show(number, done, made)

            self.executor.run(calls, advance)

    def _note(self, damage: WorkFileDamagedError) -> None:
        """Print that a file is made again; stop the build if that did not help before."""
        file = (damage.place, damage.name)
        if file in self._damaged:
            raise RunError(
                f"{damage.where}: damaged again after it was rebuilt. The disk or the memory of this machine "
                "is failing: check them, or choose another disk with --work."
            ) from damage
        self._damaged.add(file)
        self.progress.note(f"{damage.where}: damaged ({damage.reason}); rebuilding it")


def _load_receipts(
    store: WritableStore, kind: type[Result], tasks: list[Task]
) -> list[Result | WorkFileDamagedError | None]:
    def load(task: Task) -> Result | WorkFileDamagedError | None:
        try:
            return load_receipt(store.child(task.digest), kind)
        except WorkFileDamagedError as damage:
            return damage

    return map_in_threads(load, tasks, reads_at_once(store))
