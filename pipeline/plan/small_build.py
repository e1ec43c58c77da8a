"""The small build of a plan: the stages of a build, on a sample of every source, in a temporary folder.

A sample is a few megabytes: row groups, files, and beginnings of spans of text, which the recipe's seed chooses. A
source with no more text than that is taken whole. All that the samples have is mixed into one shard. What would stop
the build is collected, not raised.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.builder.records import NEAR_STAGES
from pipeline.builder.running_build import RunningBuild
from pipeline.builder.stages.assemble import run_assemble
from pipeline.builder.stages.encode import run_encode
from pipeline.builder.stages.evaluations import run_evaluations
from pipeline.builder.stages.fetch import run_fetch
from pipeline.builder.stages.mix import run_mix
from pipeline.builder.stages.near_duplicates import run_near_duplicates
from pipeline.builder.stages.tokenizer import run_tokenizer
from pipeline.clean.drops import Counts
from pipeline.encode.encode import EncodeResult
from pipeline.engine.driver import Driver
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.receipts import TaskOutput
from pipeline.engine.stage_progress import Progress
from pipeline.recipe.schema import MixRecipe, Recipe, SplitRecipe
from pipeline.recipe.shares import Demand
from pipeline.sources.base import BATCH_BYTES, Span, Unit
from pipeline.sources.files import list_spans
from pipeline.sources.selection import Selection, SpanCache, seeded_place
from pipeline.tokenizer.given_tokenizer import TokenizerError
from shards.errors import InputError
from shards.stores.store import FolderStore
from shards.terminal.amounts import format_size
from shards.terminal.display import say

if TYPE_CHECKING:
    from pipeline.sources.software_heritage.fetched_documents import FetchResult

PARTS = 24
"""The fewest parts of a local source: text differs more between parts than within one."""
REMOTE_PARTS = 8
"""The same of a remote source, where each part is a download. A quarter of the text is enough there."""
MOST_BYTES = 32 << 20
"""No further part is taken after this much text."""
PART_BYTES = 1 << 20
"""Of a longer part, reading stops after this much text, at the end of a batch. Shorter ones share an encode task."""
SAMPLE_BYTES = 24 << 20
"""Text of all sources, divided by their shares."""
LEAST_SOURCE_BYTES = 4 << 20
_FEW_ENTRIES = 2048
_ONE_SHARD = 1 << 62
_NOT_BY_BYTES = ("start_s", "check_s")
"""Steps of an encode task whose time does not grow with the text: the check reads a few documents of each task."""


@dataclass(frozen=True, slots=True)
class SourceSample:
    """What the sample of one source became."""

    selection: Selection
    """The parts of the source that the build would read."""
    stated_bytes: float
    """Its text, as the files' footers or sizes state it."""
    text_bytes: int
    """Text of the documents that were encoded."""
    encoded: Counts
    left: Counts
    """Documents left for the mix, before `take`."""
    longest_tokens: int
    """Tokens of the longest document."""
    dropped: Counter[str]
    """The other records, by reason."""
    run_bytes: int
    """The size of its runs."""
    encode_s: float
    """Seconds of one core to read, clean and encode it."""
    link_bytes_per_s: float
    """Speed of reading; 0 for local files."""
    fetched_files: int
    """Files of Software Heritage's archive."""
    is_all: bool
    """Whether it is the whole source, so that all duplicates were found."""

    @property
    def records(self) -> int:
        """All records that the small build read of a source."""
        return self.left.documents + self.dropped.total()

    @property
    def scale(self) -> float:
        """How many times the sample's text the planned build reads of a source."""
        return self.selection.text_bytes / self.stated_bytes

    @property
    def tokens(self) -> int:
        """The tokens that a source offers to the mix, as the small build leads one to expect."""
        return int(self.left.tokens * self.selection.source.take * self.scale)


@dataclass(frozen=True, slots=True)
class SmallBuild:
    """What the small build has shown."""

    sources: tuple[SourceSample, ...]
    scratch_bytes: int
    """The size of its work folder without the runs and the tokenizer."""
    shard_bytes: int
    shard_tokens: int
    near_s: float
    """Seconds of one core to find near-duplicates; 0 if the recipe does not ask for it."""
    assemble_s: float
    """Seconds of one core to write the shard."""
    fetch_s: float
    stops: tuple[str, ...]
    """Why the build would stop, judged by the sample."""
    notes: tuple[str, ...]
    """What the build would say."""
    wall_s: float
    """How long all of it took."""

    @property
    def documents(self) -> int:
        """Documents that the small build encoded."""
        return sum(sample.encoded.documents for sample in self.sources)


@dataclass
class _SampleBuild(RunningBuild):
    """A build of a sample: nothing that it shows stops it."""

    stopped: list[str] = field(init=False, default_factory=list[str])
    said: list[str] = field(init=False, default_factory=list[str])

    @contextmanager
    def stops(self) -> Generator[None]:
        """Collect why the build would stop, as its small build shows."""
        try:
            yield
        except InputError as error:
            # Not the lines that send the reader to this work folder, which goes with the plan.
            self.stopped += [str(problem) for problem in error.problems if str(self.work) not in str(problem)]

    def say(self, message: str) -> None:
        """Collect what the small build says."""
        if message not in self.said:
            self.said.append(message)

    def check_disk(self, pending: list[Unit]) -> None:
        """Check no disk for the small build: let the plan say later that it is too small for all of it."""


class SampledSelection(Selection):
    """Some parts of the files that a selection has listed."""

    def __init__(self, selection: Selection, text_bytes: int):
        """Choose the sampled parts of a source for the small build.

        Args:
            selection: the parts of the source that the build would read.
            text_bytes: about how much text of it is enough.
        """
        vars(self).update(vars(selection))
        size = selection.text_bytes
        self.is_all = not selection.has_more and size <= text_bytes and self.source.content == "column"
        """Whether these parts are the whole source."""
        self.whole = True  # this build has no more of it
        if not self.is_all:
            self.units = _make_units(self.index, _choose(selection, text_bytes))

    def sample_spans(self, text_bytes: int) -> list[Span]:
        """Return the spans for the small build's tokenizer: those of every second unit.

        A BPE that is trained on all of a small sample takes 0.4 to 5% too few tokens for it, one that has not seen it
        1 to 7% too many, measured. Half and half is within 6% of the build's own tokenizer.
        """
        if self.is_all:
            return super().sample_spans(text_bytes)
        return [span for unit in self.units[::2] for span in unit.spans]


def _choose(selection: Selection, text_bytes: int) -> list[Span]:
    """Return the parts of a source that the small build samples, in seeded order."""
    enough, least = (text_bytes // 4, REMOTE_PARTS) if selection.is_remote else (text_bytes, PARTS)
    chosen: list[Span] = []
    size = 0
    for part in _iter_parts(selection):
        if size >= MOST_BYTES or (size >= enough and len(chosen) >= least):
            break
        chosen.append(part)
        size += min(part.text_bytes, BATCH_BYTES)
    return chosen


def _iter_parts(selection: Selection) -> Iterator[Span]:
    """Yield the parts that the small build may sample, in seeded order: single row groups, other spans as they are."""
    parts = [
        (span, index)
        for span in selection.listed
        for index in (range(span.start, span.stop) if span.kind == "rg" else (0,))
    ]
    parts.sort(key=lambda part: seeded_place(selection.seed, f"{part[0].name}\0{part[0].part}\0{part[1]}"))
    for span, index in parts:
        if span.kind != "rg":
            yield span
        else:  # its footer says how much text one row group has
            files = [file for file in selection.files if file.name == span.name]
            groups = list_spans(selection.source, files, 1)
            yield next(group for group in groups if group.start <= index < group.stop)


def _make_units(source: int, parts: list[Span]) -> list[Unit]:
    units: list[list[Span]] = []
    size = 0
    for part in parts:
        if not units or size + part.text_bytes > PART_BYTES:
            units.append([])
            size = 0
        units[-1].append(part)
        size += part.text_bytes
    return [Unit(source, tuple(own), most_bytes=PART_BYTES) for own in units]


def build_sample(recipe: Recipe, selections: list[Selection], *, quiet: bool = True) -> SmallBuild:
    """Build a sample of every source, the small build of a plan.

    Args:
        recipe: the recipe.
        selections: the parts of the sources that the build would read.
        quiet: show no progress.

    Raises:
        InputError: the data cannot be read as the recipe says, or nothing of it is left.
    """
    started = time.perf_counter()
    size = sum(selection.text_bytes for selection in selections)
    wanted = [max(LEAST_SOURCE_BYTES, int(SAMPLE_BYTES * share)) for share in Demand(recipe).shares.fractions]
    if not quiet:
        part = "all" if size <= sum(wanted) else f"{format_size(sum(wanted))} of"
        say(f"plan: a trial build on {part} {format_size(size)} of text")
    parts = [SampledSelection(*each) for each in zip(selections, wanted, strict=True)]
    with tempfile.TemporaryDirectory(prefix="tokenmill-plan-") as name, closing(LocalExecutor(1)) as executor:
        work = FolderStore(Path(name) / "work")
        driver = Driver(work, executor, Progress(quiet=quiet, lines=False))
        out, kept = FolderStore(Path(name) / "set"), SpanCache(work)
        build = _SampleBuild(work, _change(recipe, parts), out, driver, [*parts], kept)
        run_evaluations(build)
        run_fetch(build)
        _run_tokenizer(build, is_all=all(part.is_all for part in parts))
        build.said.clear()  # it is not the tokenizer of the set
        run_encode(build)
        if not any(run.num_documents for run in build.runs):
            raise InputError(build.stopped)
        run_near_duplicates(build)
        # Without a document of each source there is no shard.
        with build.stops():
            if run_mix(build):
                run_assemble(build)
        if "mix" not in build.stages:
            raise InputError(build.stopped)
        return _measure(build, selections, parts, time.perf_counter() - started)


def _run_tokenizer(build: _SampleBuild, *, is_all: bool) -> None:
    """Run the small build's tokenizer stage; if a part of the text has too few entries, train a smaller one."""
    fault = None
    while True:
        try:
            return run_tokenizer(build)
        except TokenizerError as error:
            fault = fault or error  # it names the recipe's number of entries
            section = build.recipe.tokenizer
            if is_all or section.vocab_size is None or section.vocab_size < _FEW_ENTRIES:
                raise fault from None
            smaller = section.model_copy(update={"vocab_size": section.vocab_size // 2})
            build.recipe = build.recipe.model_copy(update={"tokenizer": smaller})


def _change(recipe: Recipe, parts: list[SampledSelection]) -> Recipe:
    """Return the recipe of the small build: one shard of all that there is."""
    # Without `take`, whose share is known: what it leaves of the sample would tell less of the other steps.
    changes: dict[str, Any] = {
        "sources": [source.model_copy(update={"take": 1.0}) for source in recipe.sources],
        "mix": MixRecipe(),
        "split": SplitRecipe(),
        "shards": recipe.shards.model_copy(update={"tokens": _ONE_SHARD}),
    }
    # As much text for the tokenizer as the sample has in these proportions.
    if not all(part.is_all for part in parts):
        size = min(recipe.tokenizer.sample_bytes, SAMPLE_BYTES)
        changes["tokenizer"] = recipe.tokenizer.model_copy(update={"sample_bytes": size})
    return recipe.model_copy(update=changes)


def _measure(
    build: _SampleBuild, selections: list[Selection], parts: list[SampledSelection], wall_s: float
) -> SmallBuild:
    fetched = build.stages["fetch"].results if "fetch" in build.stages else []
    assembled = build.stages["assemble"].results if "assemble" in build.stages else []
    shards = [entry for result in assembled for entry in result.entries]
    between = [build.work.child(stage) for stage in (*NEAR_STAGES, "mix")]
    return SmallBuild(
        sources=tuple(_measure_source(build, *each) for each in zip(selections, parts, strict=True)),
        scratch_bytes=sum(file.bytes for folder in between for file in folder.list()),
        shard_bytes=sum(file.bytes for shard in shards for file in shard.files.entries),
        shard_tokens=sum(shard.tokens for shard in shards),
        near_s=sum(stage.seconds for name, stage in build.stages.items() if name in NEAR_STAGES),
        assemble_s=build.stages["assemble"].seconds if assembled else 0.0,
        fetch_s=sum(result.seconds["fetch_s"] for result in fetched),
        stops=tuple(build.stopped),
        notes=tuple(note for note in build.said if not note.startswith("mix: ")),
        wall_s=wall_s,
    )


def _measure_source(build: _SampleBuild, selection: Selection, part: SampledSelection) -> SourceSample:
    number = part.index
    results, drops, fetched = build.encoded(number), build.drops[number], []
    stated = sum(result.stated_bytes for result in results)
    # The text of files that rows only name: their tasks know how many of the rows they took.
    if part.source.content != "column":
        fetched = [_read_fetched(unit) for unit in build.units[number]]
        stated = sum(unit.text_bytes * result.part for unit, result in zip(part.units, fetched, strict=True))
    # The tokenizer has read every second unit before, so the others show how fast the link is.
    read = list(zip(part.units, results, strict=True))
    stored = sum(_read_bytes(unit, result) for unit, result in read[1::2] or read)
    read_s = sum(result.seconds.get("read_s", 0.0) for _, result in read[1::2] or read)
    return SourceSample(
        selection,
        stated_bytes=max(1.0, stated),
        text_bytes=sum(result.text_bytes for result in results),
        encoded=drops.read,
        left=drops.left,
        longest_tokens=max(
            (
                int(run.read_documents(0, run.num_documents)["length"].max())
                for run in build.runs
                if run.source == number and run.num_documents
            ),
            default=0,
        ),
        dropped=drops.dropped(),
        run_bytes=sum(file.bytes for result in results for file in result.files.values()),
        encode_s=sum(s for one in results for step, s in one.core_seconds.items() if step not in _NOT_BY_BYTES),
        link_bytes_per_s=stored / max(1e-6, read_s) if part.is_remote else 0.0,
        fetched_files=sum(result.rows for result in fetched),
        is_all=part.is_all,
    )


def _read_bytes(unit: Unit, result: EncodeResult) -> float:
    """Return the stored bytes that the small build read of a unit: a text's beginning, a row group's columns whole."""
    stored = sum(span.stored_bytes for span in unit.spans)
    return stored * result.stated_bytes / max(1, unit.text_bytes) if unit.spans[0].kind == "b" else stored


def _read_fetched(unit: Unit) -> FetchResult:
    """Return the result of the small build's task that fetched a unit's documents."""
    from pipeline.sources.software_heritage.fetched_documents import FetchResult

    return TaskOutput(FolderStore(Path(unit.spans[0].url).parent), FetchResult).result
