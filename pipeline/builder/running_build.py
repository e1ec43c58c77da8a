"""The state of a running build: its folders, the results of its stages, and the disk space they still need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.builder.forecast import StageForecast, describe_forecast, forecast_following, forecast_stage
from pipeline.builder.records import Records, write_records
from pipeline.engine.attempts import default_scratch
from pipeline.engine.driver import RESULTS_FILE, Driver, StageResult
from pipeline.engine.tasks import Task
from pipeline.estimate import disk
from pipeline.recipe.schema import Recipe
from pipeline.sources.base import Unit
from pipeline.sources.selection import Selection
from shards.errors import plural
from shards.stores.files import check_room
from shards.stores.store import WritableStore


class DryRunEnd(Exception):  # noqa: N818  not an error
    """A dry run has found what a build would do: `stages`, and the job that a cluster would get for the first."""

    def __init__(self, stages: list[StageForecast], job: str = ""):
        super().__init__(stages, job)
        self.stages = stages
        self.job = job


@dataclass
class RunningBuild:
    """The state of a running build: its folders, and the results of its stages."""

    units: list[list[Unit]]
    """The units of each source."""
    out: WritableStore
    driver: Driver
    selections: list[Selection]
    """The sources' files, from which `units` are taken."""
    stages: dict[str, StageResult] = field(default_factory=dict[str, StageResult])
    used: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """Digests of each stage's tasks, whose folders pruning must keep."""
    notes: list[str] = field(default_factory=list[str])
    records: Records = field(default_factory=Records)
    """What earlier builds were asked for in this work folder."""
    dry_run: bool = False
    """Whether the build runs and writes nothing: the first stage with missing tasks raises `DryRunEnd`."""
    keep_bytes: int = 0
    """The most disk that the results of the set before may take when this one is published."""
    _explains: bool = field(init=False)
    """Whether an earlier build has left records, so that tasks run again."""
    _forecast_said: bool = False

    def __post_init__(self) -> None:
        """Look whether there are records, before this build adds its own."""
        self._explains = bool(self.records.stages)

    @property
    def work(self) -> WritableStore:
        """The work folder."""
        return self.driver.work

    def run_stage(
        self,
        name: str,
        function: str,
        tasks: list[Task],
        outputs: WritableStore | None = None,
        *,
        unit: str = "bytes",
        before: Callable[[list[Task]], None] | None = None,
    ) -> StageResult:
        """Run a stage's missing tasks and keep its result in the running build; repeated stages add up."""
        self.used.setdefault(name, {RESULTS_FILE}).update(task.digest for task in tasks)
        if self.dry_run:
            result, pending, job = self.driver.look_up(name, function, tasks, outputs)
            if pending:
                raise DryRunEnd(self._forecast(name, tasks, pending), job)
            self.stages[name] = result
            return result

        def prepare(pending: list[Task]) -> None:
            if pending and self._explains:
                # The first stage tells of all that follow it; each of these then says its own causes.
                stages = self._forecast(name, tasks, pending)
                for line in describe_forecast(stages if not self._forecast_said else stages[:1]):
                    self.say(line)
                self._forecast_said = True
            if before:
                before(pending)

        result = self.driver.run_stage(name, function, tasks, outputs, unit=unit, before=prepare)
        if self.records.note(name, tasks, result.results):
            write_records(self.work, self.records)
        if result.ran and (retries := sum(done.get("retries", 0) for done in result.results)):
            self.note(
                f"{name}: {plural(retries, 'request')} failed and {'was' if retries == 1 else 'were'} tried again"
            )
        earlier = self.stages.get(name, StageResult([], 0, 0.0))
        self.stages[name] = StageResult(result.results, earlier.ran + result.ran, earlier.seconds + result.seconds)
        return self.stages[name]

    def _forecast(self, name: str, tasks: list[Task], pending: list[Task]) -> list[StageForecast]:
        workers = self.driver.executor.workers
        first = forecast_stage(self.records, name, tasks, pending, workers)
        return [first, *forecast_following(self.records, name, sum(map(len, self.units)), workers)]

    def say(self, message: str) -> None:
        """Print a message of the running build now."""
        self.driver.progress.note(message)

    def note(self, message: str) -> None:
        """Print a message of the running build now, and add it to its report."""
        self.notes.append(message)
        self.say(message)

    def check_disk(self, recipe: Recipe, pending: list[Unit]) -> None:
        """Refuse a disk too small for what the running build has still to write; check nothing if all is encoded."""
        if not pending:
            return
        output_bytes = disk.most_output_bytes(recipe, [sum(unit.text_bytes for unit in own) for own in self.units])
        scratch_bytes = [disk.scratch_bytes(recipe, unit) for unit in pending]
        needs: list[tuple[str, Path, int]] = []
        if self.work.folder is not None:
            needs.append(("scratch", self.work.folder, sum(scratch_bytes)))
        if self.out.folder is not None:
            written = sum(file.bytes for file in self.out.list())
            needs.append(("the set", self.out.folder, max(0, output_bytes - written)))
        if self.work.folder is None or self.driver.scratch is not None:
            # Files that are uploaded when they are whole need room for the largest tasks at a time.
            largest = sorted(scratch_bytes)[-self.driver.executor.workers :]
            needs.append(("tasks at work", Path(self.driver.scratch or default_scratch()), sum(largest)))
        check_room(needs, disk.REMEDY)
