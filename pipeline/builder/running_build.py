"""A build at work: each stage reads its attributes, runs its tasks through it, and adds what the tasks made."""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from pipeline.builder.records import ORDER, StageForecast, StageRecords
from pipeline.builder.stored_build import Build
from pipeline.clean.drops import SourceDrops
from pipeline.clean.functions.process import close_functions, start_functions
from pipeline.clean.tally import Tally
from pipeline.encode.encode import EncodeResult
from pipeline.encode.run import DOCUMENT_DTYPE, MEASURES_DTYPE, RunList, token_dtype
from pipeline.engine.attempts import default_scratch
from pipeline.engine.driver import Driver, StageResult
from pipeline.engine.receipts import ResultT
from pipeline.engine.tasks import Task, TaskFunction
from pipeline.mix.mix_plan import MixPlan
from pipeline.mix.near_duplicates.bands import BANDS_BYTES
from pipeline.mix.near_duplicates.drop import SimilarPairs
from pipeline.mix.partitions import CHUNK_BYTES
from pipeline.recipe.shares import Demand
from pipeline.sources.base import Unit
from pipeline.sources.selection import FIRST_BYTES_PER_TOKEN as LEAST_BYTES_PER_TOKEN
from pipeline.sources.selection import Selection, SpanCache, open_sources
from shards.errors import plural
from shards.format.manifest import ShardEntry
from shards.stores.files import check_room, delete_path
from shards.stores.store import WritableStore

COMPRESSED_SHARE = 0.72  # zstd level 3 on uint16 tokens of a 32 K vocabulary: 0.65 to 0.70
ROW_BYTES = 30  # one row of a document table: mostly a hash
FETCH_SCRATCH_SHARE = 0.6
"""Scratch bytes per byte of fetched text: journal and documents, compressed; 0.25 each on Python files, measured."""
DISK_REMEDY = "Or lower mix.tokens, use --work on another disk, or delete the work folder's results of earlier recipes."
GUESSED_DOCUMENT_BYTES = 1000  # if no footer states the number of rows


_BEFORE_RUNS = ORDER[: ORDER.index("encode") + 1]
"""The stages that run functions of the recipe, or earlier than those that do. The later ones read the list of runs."""


class DryRunEnd(Exception):  # noqa: N818  not an error
    """A dry run has found what a build would do: `stages`."""

    def __init__(self, stages: list[StageForecast]):
        super().__init__(stages)
        self.stages = stages


@dataclass
class RunningBuild(Build):
    """A build at work: what its stages have made, and how they run their tasks."""

    out: WritableStore
    driver: Driver
    dry_run: bool = False
    """Whether the build runs and writes nothing: the first stage with missing tasks raises `DryRunEnd`."""

    selections: list[Selection] = field(default_factory=list[Selection])
    """The chosen files of each source; the sources are opened if none are given."""
    spans: SpanCache = field(init=False)
    units: list[list[Unit]] = field(init=False)
    """The units of each source: of its selection, or of the documents that the fetch stage wrote."""
    run_list: RunList = field(init=False)
    tallies: list[Tally] = field(init=False)
    """What cleaning did before encoding, of each source."""
    similar: SimilarPairs | None = field(init=False, default=None)
    """The pairs of similar documents; None if the recipe does not search for them."""
    drops: list[SourceDrops] = field(init=False)
    """What cleaning drops of each source, before encoding and in the mix."""
    plan: MixPlan = field(init=False)
    shards: list[ShardEntry] = field(init=False)
    trained_tokens: Counter[str] = field(init=False, default_factory=Counter[str])
    """The targets of the training documents, of each source of conversations."""
    stages: dict[str, StageResult[Any]] = field(init=False, default_factory=dict[str, StageResult[Any]])
    used: defaultdict[str, set[str]] = field(init=False, default_factory=lambda: defaultdict(set[str]))
    """By stage, the names in its folder that this build uses."""
    records: StageRecords = field(init=False)
    notes: list[str] = field(init=False, default_factory=list[str])

    def __post_init__(self) -> None:
        """Open the sources, and read what earlier builds recorded, before this one adds its own."""
        self.spans = SpanCache(self.work)
        if not self.selections:
            self.selections = open_sources(self.recipe, self.spans)
            for line in dict.fromkeys(line for selection in self.selections for line in selection.left_out):
                self.say(line)
        self.units = [selection.units for selection in self.selections]
        self.records = StageRecords(self.work)
        self._repeats = bool(self.records.stages)

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
        """Run a stage's missing tasks and keep its result; repeated stages add up.

        Args:
            name: the stage's name and folder.
            function: what runs a task.
            tasks: the tasks. Two sources may read the same files in the same way, and then share a task.
            outputs: where their files go; the tasks' own folders when None.
            unit: what the progress counts.
            before: called with the missing tasks before they run, but not in a dry run.
        """
        tasks = list({task.digest: task for task in tasks}.values())
        # A dry run only looks, and ends at the first stage that would run.
        if self.dry_run:
            results, pending, _ = self.driver.look_up(name, function, tasks, outputs)
            if pending:
                raise DryRunEnd(self._forecast(name, tasks, pending))
            return StageResult({task.digest: results[task.digest] for task in tasks}, 0, 0.0)

        def prepare(pending: list[Task]) -> None:
            if pending and name in _BEFORE_RUNS:
                start_functions(self.recipe.sources)
                if self.driver.executor.workers > 1:
                    close_functions()
            elif pending:
                self.run_list.write()
            if pending and self._repeats:
                # The first stage tells of all that follow it; each of these then says its own causes.
                is_told = any(earlier.ran for earlier in self.stages.values())
                for stage in self._forecast(name, tasks, pending)[: 1 if is_told else None]:
                    self.say(str(stage))
            if before:
                before(pending)

        # Run them, and record what they were made from, before anything else can fail.
        result = self.driver.run_stage(name, function, tasks, outputs, unit=unit, before=prepare)
        self.spans.save()
        self.records.note(name, tasks)
        self.used[name].update(task.digest for task in tasks)
        if result.ran and (retries := sum(done.retries for done in result.results.values())):
            self.note(f"{name}: {plural(retries, 'request')} failed and had to be retried")
        # A source that was too short is encoded in several turns.
        if earlier := self.stages.get(name):
            seconds = earlier.seconds + result.seconds
            result = StageResult(result.results, earlier.ran + result.ran, seconds)
        self.stages[name] = result
        return result

    def encoded(self, source: int) -> list[EncodeResult]:
        """Return the results of encoding the units of a source."""
        return [cast("EncodeResult", run.result) for run in self.runs if run.source == source]

    def folder_of(self, stage: str, task: Task) -> WritableStore:
        """Return the folder of a task."""
        return self.work.child(stage).child(task.digest)

    def _forecast(self, name: str, tasks: list[Task], pending: list[Task]) -> list[StageForecast]:
        return self.records.forecast(name, tasks, pending, recipe=self.recipe, units=sum(map(len, self.units)))

    @contextmanager
    def stops(self) -> Generator[None]:
        """Check what was made, in the body of `with`: what is raised stops the build; a plan collects it."""
        yield

    def prune(self) -> None:
        """Delete from the work folder what this build did not use."""
        self.used["rows"] = {*self.recipe.source_names}
        for stage in (*ORDER, "rows"):
            store, used = self.work.child(stage), self.used[stage]
            for file in list(store.list()):
                if file.name.partition("/")[0] not in used:
                    store.delete(file.name)
            # A folder's tasks go as a whole, with files that its listing leaves out.
            for path in store.folder.iterdir() if store.folder is not None and store.folder.is_dir() else ():
                if path.name not in used:
                    delete_path(path)

    def say(self, message: str) -> None:
        """Print a message now, unless it has been printed before."""
        self.driver.progress.note_once(message)

    def note(self, message: str) -> None:
        """Print a message now, and add it to the report."""
        self.notes.append(message)
        self.say(message)

    def check_disk(self, pending: list[Unit]) -> None:
        """Refuse a disk too small for what is still to be written; check nothing if all is encoded."""
        if not pending:
            return
        # Too much rather than too little: a build that runs out of disk has worked in vain.
        recipe = self.recipe
        token_bytes = np.dtype(token_dtype(recipe.tokenizer.vocab_size or self.tokenizer.vocab_size)).itemsize
        bands = BANDS_BYTES if recipe.clean.near_duplicates is not None else 0

        def most_run_bytes(unit: Unit) -> int:
            # Beside its tokens a document has a row, measures and bands, and those of the mix.
            documents = sum(
                span.text_bytes // GUESSED_DOCUMENT_BYTES + 1 if span.rows is None else span.rows for span in unit.spans
            )
            measures = MEASURES_DTYPE.itemsize * len(recipe.sources[unit.source].clean.mix_measures())
            row_bytes = DOCUMENT_DTYPE.itemsize + measures + bands + CHUNK_BYTES + 1
            return int(unit.text_bytes / LEAST_BYTES_PER_TOKEN * token_bytes + documents * row_bytes)

        # What is still to be written: the runs, and the set less what the output folder has of it.
        scratch = sorted(map(most_run_bytes, pending))
        needs: list[tuple[str, Path, int]] = []
        if self.work.folder is not None:
            needs.append(("scratch", self.work.folder, sum(scratch)))
        if self.out.folder is not None:
            sizes = [sum(unit.text_bytes for unit in own) for own in self.units]
            pairs = zip(sizes, recipe.sources, strict=True)
            most = [size * source.take / LEAST_BYTES_PER_TOKEN for size, source in pairs]
            # Validation has no document twice. If it asks for more than there is, the mix says so.
            val_tokens = min(recipe.split.val_tokens, sum(sizes))
            tokens = Demand(recipe, most).grant(most).train_tokens + val_tokens
            documents = tokens * LEAST_BYTES_PER_TOKEN / GUESSED_DOCUMENT_BYTES
            output = int(tokens * token_bytes * COMPRESSED_SHARE + documents * ROW_BYTES)
            written = sum(file.bytes for file in self.out.list())
            needs.append(("the set", self.out.folder, max(0, output - written)))
        if self.work.folder is None or self.driver.scratch is not None:
            # Files that are uploaded when they are whole need room for the largest tasks at a time.
            largest = scratch[-self.driver.executor.workers :]
            needs.append(("tasks at work", Path(self.driver.scratch or default_scratch()), sum(largest)))
        check_room(needs, DISK_REMEDY)
