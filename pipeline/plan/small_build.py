"""The small build of a plan: the stages of a build, on a sample of every source, in a temporary folder.

A sample is a few megabytes: row groups, files, and beginnings of spans of text, which the recipe's seed chooses. A
source with no more text than that is taken whole. All that the samples have is mixed into one shard. What would stop
the build is collected, not raised.
"""

import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.builder.running_build import RunningBuild
from pipeline.builder.stages.assemble import run_assemble
from pipeline.builder.stages.encode import run_encode
from pipeline.builder.stages.evaluations import run_evaluations
from pipeline.builder.stages.fetch import run_fetch
from pipeline.builder.stages.mix import run_mix
from pipeline.builder.stages.near_duplicates import run_near_duplicates
from pipeline.builder.stages.tokenizer import run_tokenizer
from pipeline.clean.drops import SourceDrops
from pipeline.clean.reasons import DUPLICATE, NEAR_DUPLICATE, step_of
from pipeline.encode.encode import EncodeResult
from pipeline.engine.driver import Driver
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.receipts import TaskOutput
from pipeline.engine.stage_progress import Progress
from pipeline.recipe.schema import MixRecipe, Recipe, SplitRecipe
from pipeline.recipe.shares import Demand
from pipeline.sources.base import BATCH_BYTES, Span, Unit, make_units
from pipeline.sources.files import list_spans
from pipeline.sources.selection import Selection, seeded_place
from pipeline.tokenizer.given_tokenizer import TokenizerError
from shards.errors import InputError
from shards.stores.store import FolderStore
from shards.terminal.amounts import format_size
from shards.terminal.display import say

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
WITHIN = 0.1
"""How far the tokens of a sample, scaled up, are from those of the source at most, but for copies."""
_FEW_ENTRIES = 2048
_ONE_SHARD = 1 << 62
_NOT_BY_BYTES = ("start_s", "check_s")
"""Steps of an encode task whose time does not grow with the text: the check reads a few documents of each task."""


@dataclass(frozen=True, slots=True)
class SourceSample:
    """What the sample of one source became."""

    selection: Selection
    """The parts of the source that the build would read."""
    is_all: bool
    """Whether the sample is the whole source, so that all duplicates were found."""
    stated_bytes: float
    """Its text, as the files' footers or sizes state it."""
    text_bytes: int
    """Text of the documents that were encoded."""
    drops: SourceDrops
    """What is dropped, before `take`, and what is left."""
    longest_tokens: int
    """Tokens of the longest document."""
    run_bytes: int
    """The size of its runs."""
    encode_s: float
    """Seconds of one core to read, clean and encode it."""
    link_bytes_per_s: float
    """Speed of reading; 0 for local files."""
    fetched_files: int
    """Files of Software Heritage's archive."""
    fetch_s: float
    """Seconds of one core to fetch them."""

    @property
    def scale(self) -> float:
        """How many times the sample's text the planned build reads of the source."""
        return self.selection.text_bytes / self.stated_bytes

    @property
    def tokens(self) -> int:
        """The tokens that the source is expected to offer to the mix."""
        return int(self.drops.left.tokens * self.selection.source.take * self.scale)

    @property
    def tokens_range(self) -> tuple[float, float]:
        """The fewest and the most tokens that the source offers to the mix.

        A sample that is a part f of the source has both of two copies with the probability f. So if d is the share of
        copies in it, a document has 1 + 2 d / f copies on average; d is taken as high as chance would still allow.
        """
        if self.is_all:
            return self.tokens, self.tokens
        copies = sum(n for reason, n in self.drops.dropped().items() if step_of(reason) in (DUPLICATE, NEAR_DUPLICATE))
        most_copies = copies + 3 + 2 * copies**0.5
        repeated = 1 + 2 * self.scale * most_copies / max(1, self.drops.left.documents + copies)
        return self.tokens * (1 - WITHIN) / repeated, self.tokens * (1 + WITHIN)


@dataclass
class SmallBuild(RunningBuild):
    """A build of a sample: nothing that it shows stops it."""

    chosen: list[Selection] = field(kw_only=True)
    """The parts of the sources that the build would read."""
    sources: list[SourceSample] = field(init=False)
    stopped: list[str] = field(init=False, default_factory=list[str])
    """Why the build would stop, judged by the sample."""
    said: list[str] = field(init=False, default_factory=list[str])
    """What the build would say."""
    wall_s: float = field(init=False)
    """How long all of it took."""

    @contextmanager
    def stops(self) -> Generator[None]:
        """Collect why the build would stop, as its small build shows."""
        try:
            yield
        except InputError as error:
            # Not the lines that send the reader to this work folder, which goes with the plan.
            self.stopped += [str(problem) for problem in error.problems if str(self.work) not in str(problem)]

    def say(self, message: str) -> None:
        """Collect what the build would say."""
        if message not in self.said:
            self.said.append(message)

    def check_disk(self, pending: list[Unit]) -> None:
        """Check no disk: the plan says later whether it is too small for all of it."""

    @property
    def is_all(self) -> bool:
        """Whether the samples are all that the build would read."""
        return [sample.units for sample in self.selections] == [own.units for own in self.chosen]

    @property
    def set_tokens(self) -> int:
        """Tokens of its shard, of which there is none without a document of each source."""
        return sum(shard.tokens for shard in self.shards)

    def seconds_of(self, *stages: str) -> float:
        """Return the seconds of one core that stages took; none if they did not run."""
        return sum(self.stages[name].seconds for name in stages if name in self.stages)


def sample_source(selection: Selection, text_bytes: int) -> Selection:
    """Choose the parts of a source for the small build: all that the build would read, if that is little.

    Args:
        selection: the parts of the source that the build would read.
        text_bytes: about how much text of it is enough.
    """
    sample = copy(selection)
    if selection.has_more or selection.text_bytes > text_bytes or selection.source.content != "column":
        units = make_units(selection.index, _choose(selection, text_bytes), PART_BYTES)
        sample.units = [replace(unit, most_bytes=PART_BYTES) for unit in units]
        # A BPE that is trained on all of a small sample takes 0.4 to 5% too few tokens for it, one that has not seen it
        # 1 to 7% too many, measured. Half and half is within 6% of the build's own tokenizer.
        sample.sampled = [span for unit in sample.units[::2] for span in unit.spans]
    sample.whole = True  # the small build has no more of it
    return sample


def _choose(selection: Selection, text_bytes: int) -> list[Span]:
    """Return the parts of a source that the small build samples, in seeded order: row groups, other spans whole."""
    enough, least = (text_bytes // 4, REMOTE_PARTS) if selection.is_remote else (text_bytes, PARTS)
    files = {file.name: file for file in selection.files}
    places = [
        (span, index)
        for span in selection.listed
        for index in (range(span.start, span.stop) if span.kind == "rg" else (0,))
    ]
    places.sort(key=lambda place: seeded_place(selection.seed, f"{place[0].name}\0{place[0].part}\0{place[1]}"))
    chosen: list[Span] = []
    size = 0
    for span, index in places:
        if size >= MOST_BYTES or (size >= enough and len(chosen) >= least):
            break
        if span.kind == "rg":  # its footer says how much text one row group has
            groups = list_spans(selection.source, [files[span.name]], 1)[span.name]
            span = next(group for group in groups if group.start <= index < group.stop)
        chosen.append(span)
        size += min(span.text_bytes, BATCH_BYTES)
    return chosen


@contextmanager
def build_sample(recipe: Recipe, selections: list[Selection], *, quiet: bool = True) -> Generator[SmallBuild]:
    """Build a sample of every source, the small build of a plan, which is gone at the end of `with`.

    Args:
        recipe: the recipe.
        selections: the parts of the sources that the build would read.
        quiet: show no progress.

    Raises:
        InputError: the data cannot be read as the recipe says, or nothing of it is left.
    """
    started = time.perf_counter()
    size = sum(selection.text_bytes for selection in selections)
    shares = Demand(recipe, [selection.text_bytes for selection in selections]).shares.fractions
    wanted = [max(LEAST_SOURCE_BYTES, int(SAMPLE_BYTES * share)) for share in shares]
    if not quiet:
        part = "all" if size <= sum(wanted) else f"{format_size(sum(wanted))} of"
        say(f"plan: a trial build on {part} {format_size(size)} of text")
    samples = list(map(sample_source, selections, wanted))
    with tempfile.TemporaryDirectory(prefix="tokenmill-plan-") as name, closing(LocalExecutor(1)) as executor:
        work = FolderStore(Path(name) / "work")
        driver = Driver(work, executor, Progress(quiet=quiet, lines=False))
        out = FolderStore(Path(name) / "set")
        build = SmallBuild(work, recipe, out, driver, selections=samples, chosen=selections)
        build.recipe = _change(recipe, is_all=build.is_all)
        run_evaluations(build)
        run_fetch(build)
        _run_tokenizer(build)
        build.said.clear()  # it is not the tokenizer of the set
        run_encode(build)
        if not any(run.num_documents for run in build.runs):
            raise InputError(build.stopped)
        run_near_duplicates(build)
        build.shards = []
        with build.stops():
            if run_mix(build):
                run_assemble(build)
        if "mix" not in build.stages:
            raise InputError(build.stopped)
        build.sources = [_measure_source(build, number) for number in range(len(samples))]
        build.wall_s = time.perf_counter() - started
        yield build


def _run_tokenizer(build: SmallBuild) -> None:
    """Run the tokenizer stage; if a part of the text has too few entries, train a smaller tokenizer."""
    fault = None
    while True:
        try:
            return run_tokenizer(build)
        except TokenizerError as error:
            fault = fault or error  # it names the recipe's number of entries
            section = build.recipe.tokenizer
            if build.is_all or section.vocab_size is None or section.vocab_size < _FEW_ENTRIES:
                raise fault from None
            smaller = section.with_values(vocab_size=section.vocab_size // 2)
            build.recipe = build.recipe.with_values(tokenizer=smaller)


def _change(recipe: Recipe, *, is_all: bool) -> Recipe:
    """Return the recipe of the small build: one shard of all that there is."""
    weights = [source.weight for source in recipe.sources]
    if recipe.has_weights:
        shares = map(float, Demand(recipe).shares.fractions)
        weights = [(weight or share) if share else 0.0 for weight, share in zip(weights, shares, strict=True)]
    # Without `take`, whose share is known: what it leaves of the sample would tell less of the other steps; and
    # without phases, so that a source of some alone has its share of the set.
    sources = [
        source.with_values(take=1.0, weight=weight) for source, weight in zip(recipe.sources, weights, strict=True)
    ]
    tokenizer, shards = recipe.tokenizer, recipe.shards.with_values(tokens=_ONE_SHARD)
    # As much text for the tokenizer as the sample has in these proportions.
    if not is_all:
        tokenizer = tokenizer.with_values(sample_bytes=min(tokenizer.sample_bytes, SAMPLE_BYTES))
    return recipe.with_values(sources=sources, mix=MixRecipe(), split=SplitRecipe(), shards=shards, tokenizer=tokenizer)


def _measure_source(build: SmallBuild, number: int) -> SourceSample:
    sample, results, fetched = build.selections[number], build.encoded(number), []
    stated = sum(result.stated_bytes for result in results)
    # The text of files that rows only name: their tasks know how many of the rows they took.
    if sample.source.content != "column":
        from pipeline.sources.software_heritage.fetched_documents import FetchResult

        folders = [FolderStore(Path(unit.spans[0].url).parent) for unit in build.units[number]]
        fetched = [TaskOutput(folder, FetchResult).result for folder in folders]
        stated = sum(unit.text_bytes * result.part for unit, result in zip(sample.units, fetched, strict=True))
    # The tokenizer has read every second unit before, so the others show how fast the link is.
    read = list(zip(sample.units, results, strict=True))
    read = read[1::2] or read
    runs = [run for run in build.runs if run.source == number and run.num_documents]
    return SourceSample(
        build.chosen[number],
        is_all=sample.units is build.chosen[number].units,
        stated_bytes=max(1.0, stated),
        text_bytes=sum(result.text_bytes for result in results),
        drops=build.drops[number],
        longest_tokens=max((int(run.read_documents(0, run.num_documents)["length"].max()) for run in runs), default=0),
        run_bytes=sum(file.bytes for result in results for file in result.files.values()),
        encode_s=sum(s for one in results for step, s in one.core_seconds.items() if step not in _NOT_BY_BYTES),
        link_bytes_per_s=sum(_read_bytes(*one) for one in read)
        / max(1e-6, sum(result.seconds.get("read_s", 0.0) for _, result in read))
        if sample.is_remote
        else 0.0,
        fetched_files=sum(result.rows for result in fetched),
        fetch_s=sum(result.seconds["fetch_s"] for result in fetched),
    )


def _read_bytes(unit: Unit, result: EncodeResult) -> float:
    """Return the stored bytes that the small build read of a unit: a text's beginning, a row group's columns whole."""
    stored = sum(span.stored_bytes for span in unit.spans)
    return stored * result.stated_bytes / max(1, unit.text_bytes) if unit.spans[0].kind == "b" else stored
