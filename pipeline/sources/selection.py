"""Selection: which parts of its sources a build reads, so that a small set does not read all of a large source.

A source is read whole if `mix.tokens` is "max" or its files are small (`WHOLE_BYTES` together). Of a larger source, a
build takes parts in a seeded order: first what would be enough if the text had very few bytes per token
(`FIRST_BYTES_PER_TOKEN`). If the mix lacks tokens of the source, it takes more parts, by the bytes per token measured
so far. With `take = 0.25`, four times as much text is needed.

Files are ordered by a hash of the seed and their names, and divided into groups of 16, 32, 64 and so on. In a group,
parts are ordered by a hash of the seed, the file's name and the place in it. The order depends only on the recipe and
the files. A build opens the files of a group only when it has used the groups before. Adding a file does not change the
order of the others. Of 2,400 files, it reads the footers of 16 if a few hold enough.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import xxhash

from pipeline.engine.checksums import seal, unseal
from pipeline.engine.tasks import digest_of
from pipeline.recipe.schema import Recipe, SourceRecipe
from pipeline.recipe.shares import Demand
from pipeline.sources.base import UNIT_BYTES, File, SourceError, Span, Unit, make_units
from pipeline.sources.files import list_files, list_spans
from pipeline.sources.formats.byte_io import compression_of
from shards.errors import plural
from shards.stores.store import WritableStore
from shards.terminal.amounts import format_amount

WHOLE_BYTES = 256 << 20
"""A source with at most this many stored bytes is always read whole, which takes seconds."""
FIRST_BYTES_PER_TOKEN = 2.8
"""A lower bound of the bytes of text per token: source code and LaTeX have 2.9 to 3.3, prose 4.2 to 4.5 with 32 K
entries. So the first parts are never more than needed, and the mix then knows how much is missing."""
MARGIN = 1.03
"""Factor on the text that the measured yield requires, because parts differ."""
LEAST_GROWTH = 1.05
PARTS = 64
"""Number of parts that a source's share is cut into, if row groups and `LEAST_PART_BYTES` allow it."""
LEAST_PART_BYTES = 4 << 20
FIRST_GROUP_FILES = 16
SAMPLE_SPREAD = 4
"""The tokenizer's sample is drawn from files with this many times its bytes: predicates may reject many of them."""

SPANS_FILE = "spans.json"
CODE_VERSION = 4
"""Increase when the same file would be cut in another way, or refused."""

_Kept = dict[str, dict[str, tuple[str, str, list[Span]]]]
"""By the digest of the keys and by the file's name: its address, its version, and its spans."""


class SpanCache:
    """Lists spans, and caches them in a work folder, so that a re-run opens only the files that have changed.

    A file's spans are a function of its content, the recipe's keys of the source and our code. The kept ones are used
    for a file of the same address, name and version, which is what decides whether its unit is encoded again, too.
    Memory: about 0.5 KB a file.
    """

    def __init__(self, work: WritableStore):
        """Use the cached spans that an earlier build kept in `work`."""
        self._work = work
        self._kept: _Kept = {}
        with contextlib.suppress(OSError, ValueError):  # absent or damaged: each file is opened
            self._kept = unseal(work.read(SPANS_FILE), _Kept)
        self._used: _Kept = {}
        self._changed = False

    def list_spans(self, source: SourceRecipe, files: list[File], unit_bytes: int | None) -> dict[str, list[Span]]:
        """List the spans of several files, by the files' names; only files that the cache lacks are opened.

        Raises:
            SourceError: with one line for each file that cannot be read, or does not fit the recipe.
        """
        # Which files are as they were? Only the others are opened.
        reading = source.model_dump(mode="json", exclude={"weight", "take", "license", *source.place_keys})
        key = digest_of([CODE_VERSION, version("pyarrow"), reading, unit_bytes])
        kept, used = self._kept.get(key, {}), self._used.setdefault(key, {})
        new = [file for file in files if kept.get(file.name, ())[:2] != (file.url, file.version)]
        listed = list_spans(source, new, unit_bytes)
        # The next build may use all of them, if the listing tells when a file has changed.
        entries = kept | {file.name: (file.url, file.version, listed[file.name]) for file in new}
        used |= {file.name: entries[file.name] for file in files if file.version}
        self._changed |= any(file.version for file in new)
        return {file.name: entries[file.name][2] for file in files}

    def save(self) -> None:
        """Write the spans that were listed since this was made, and no others, if some of them are new.

        Raises:
            OSError: the work folder cannot be written.
        """
        if self._changed:
            self._work.put(SPANS_FILE, seal(self._used, _Kept))
            self._changed = False


@dataclass(frozen=True, slots=True)
class Unread:
    """The parts of a source that a build did not read because the mix was complete without them."""

    files: int
    """Files from which nothing was read."""
    all_files: int
    parts: int
    """Parts left out of the files that were read in part."""
    bytes: int
    """Stored bytes of these files, and of the text of these parts."""

    def __str__(self) -> str:
        files = f"{self.files:,} of {plural(self.all_files, 'file')}"
        return f"{files} and {plural(self.parts, 'part')} of others, {format_amount(self.bytes, 'bytes')} stored"


class Selection:
    """The parts of one source that are read: `units`. Grows by `take`."""

    def __init__(
        self,
        index: int,
        source: SourceRecipe,
        *,
        seed: int,
        tokens: int | None,
        kept: SpanCache | None = None,
        is_left_out: bool = False,
    ):
        """List the files to select from, and only the spans that are needed.

        Args:
            index: the source's index in the recipe.
            source: the source.
            seed: the recipe's seed.
            tokens: tokens that the source must give to all splits together; None for all it has.
            kept: lists the spans of files.
            is_left_out: whether the set takes nothing of the source; the tokenizer's sample may.

        Raises:
            SourceError: a file cannot be read, or does not fit the recipe.
        """
        self.index, self.source, self.is_left_out = index, source, is_left_out
        self._list_spans = kept.list_spans if kept else list_spans
        self.left_out: list[str] = []
        """What the source's globs leave out, for a person."""
        self.files: list[File] = []
        try:
            self.files = list_files(source, self.left_out.append)
        except SourceError:
            if not is_left_out:
                raise
        # Small sources are read whole: cutting them costs more than it saves, and their order stays that of the files.
        small = source.content == "column" and sum(file.stored_bytes for file in self.files) <= WHOLE_BYTES
        # A small file may name millions of others.
        self.whole = tokens is None or small or is_left_out
        self.units: list[Unit] = []
        self.sampled: list[Span] | None = None
        """What the tokenizer's sample is drawn from; None: as `sample_spans` says."""
        self.seed = seed
        self._listed: dict[str, list[Span]] = {}  # by file name
        self._taken = 0  # parts in the seeded order
        self._unit_bytes = None
        if tokens is None or self.whole:
            if not is_left_out:
                self.units = make_units(index, self._list(self.files))
        else:
            # The text must be as dense as text gets for these parts to suffice; the mix asks for more if it is not.
            first_bytes = int(tokens * FIRST_BYTES_PER_TOKEN)
            # A power of two, so that similar requests share parts.
            fitting = 1 << max(0, (first_bytes // PARTS).bit_length() - 1)
            self._unit_bytes = min(UNIT_BYTES, max(LEAST_PART_BYTES, fitting))
            self.take(first_bytes)
            # For a share of the documents, as much more: parts of the same size, those above first, encoded already.
            if source.take < 1:
                self.take(int(first_bytes / source.take))

    @cached_property
    def _groups(self) -> list[list[File]]:
        """Groups of files to select in the seeded order; inside a group, they are in the source's order."""
        order = sorted(range(len(self.files)), key=lambda index: seeded_place(self.seed, self.files[index].name))
        groups: list[list[File]] = []
        size = FIRST_GROUP_FILES
        while order:
            groups.append([self.files[index] for index in sorted(order[:size])])
            order, size = order[size:], 2 * size
        return groups

    @property
    def text_bytes(self) -> int:
        """Bytes of text in the selected units, about."""
        return sum(unit.text_bytes for unit in self.units)

    def ways(self) -> Counter[str]:
        """Return how many files the selected units read in each way, such as `jsonl (gzip)`."""
        formats = {span.name: span.format for unit in self.units for span in unit.spans}
        found = Counter[str]()
        for name, format_ in sorted(formats.items()):
            compression = compression_of(name)
            way = "one document each" if format_ == "file" else format_
            found[f"{way} ({compression})" if compression else way] += 1
        return found

    @property
    def listed(self) -> list[Span]:
        """The spans of the files so far, in the source's order: first the spans in units, then the rest."""
        return [span for file in self.files for span in self._listed.get(file.name, ())]

    @property
    def empty(self) -> list[str]:
        """The files so far that hold no record."""
        return [file.name for file in self.files if self._listed.get(file.name) == []]

    @property
    def is_remote(self) -> bool:
        """Whether the files are read over a network."""
        return any("://" in file.url and not file.url.startswith("file://") for file in self.files[:1])

    @property
    def has_more(self) -> bool:
        """Whether parts of the source are not selected."""
        listed = sum(map(len, self._listed.values()))
        return not self.whole and (self._taken < listed or len(self._listed) < len(self.files))

    def take(self, text_bytes: int) -> None:
        """Select further parts until the units hold this much text; existing units do not change."""
        parts: list[Span] = []
        missing = max(1, text_bytes - self.text_bytes)
        rest = itertools.islice(self._iter_parts(), self._taken, None)
        while missing > 0 and (part := next(rest, None)):
            parts.append(part)
            self._taken += 1
            missing -= part.text_bytes
        self.units = [*self.units, *make_units(self.index, parts)]

    def take_for(self, needed: int, found: int) -> None:
        """Select further parts to reach `needed` tokens, judging by the `found` tokens in the units so far."""
        # The yield so far says how much text is needed; if nothing was found, twice as much is tried.
        growth = max(LEAST_GROWTH, MARGIN * needed / found) if found else 2.0
        self.take(int(self.text_bytes * growth))

    def sample_spans(self, text_bytes: int) -> list[Span]:
        """Return the selection's first groups of files with `SAMPLE_SPREAD` times this much text, or all, in order.

        The result does not depend on the number of tokens requested, except for where text and jsonl files are cut.

        Raises:
            SourceError: a file cannot be read, or does not fit the recipe.
        """
        if self.sampled is not None:
            return self.sampled
        names: set[str] = set()
        held = 0
        for group in self._groups:
            if held >= SAMPLE_SPREAD * text_bytes:
                break
            names |= {file.name for file in group}
            held += sum(span.text_bytes for span in self._list(group))
        return self._list([file for file in self.files if file.name in names])

    def unread(self) -> Unread:
        """Return the parts that are not selected."""
        if self.whole:
            return Unread(0, len(self.files), 0, 0)
        # A file is unread, read in part (its other parts count), or has no rows.
        read = {(span.name, span.part) for unit in self.units for span in unit.spans}
        touched = {name for name, _ in read}
        files = [file for file in self.files if file.name not in touched and self._listed.get(file.name, True)]
        spans = (span for name in touched for span in self._listed[name])
        left = [span for span in spans if (span.name, span.part) not in read]
        stored = sum(file.stored_bytes for file in files) + sum(span.stored_bytes for span in left)
        return Unread(len(files), len(self.files), len(left), stored)

    def _iter_parts(self) -> Iterator[Span]:
        """Yield all parts to select from, in seeded order. A group is listed only when those before are used up."""
        for group in self._groups:
            yield from sorted(self._list(group), key=lambda span: seeded_place(self.seed, f"{span.name}\0{span.part}"))

    def _list(self, files: list[File]) -> list[Span]:
        """Return the spans of some files, in order; each file is listed once."""
        new = [file for file in files if file.name not in self._listed]
        self._listed |= self._list_spans(self.source, new, self._unit_bytes)
        return [span for file in files for span in self._listed[file.name]]


def seeded_place(seed: int, text: str) -> tuple[int, str]:
    """Return the sort key of a part in the seeded order in which a selection takes parts."""
    return xxhash.xxh3_64_intdigest(f"{seed}\0{text}".encode()), text


def open_sources(recipe: Recipe, kept: SpanCache | None = None) -> list[Selection]:
    """Select the parts of every source that the recipe needs, as far as is known before text is read.

    Args:
        recipe: the recipe.
        kept: lists the spans of files; None: each file is opened.

    Raises:
        SourceError: with the faults of all sources, also if they are empty or certainly too small for validation.
    """
    # All sources are opened, so that one message has the faults of all.
    demand = Demand(recipe)
    shares = demand.shares.fractions
    # Without weights, what a source gives is known when all are read; a source alone gives everything.
    wanted = recipe.mix.tokens if recipe.has_weights or max(shares) == 1 else "max"
    selections: list[Selection] = []
    faults: list[str] = []
    for index, source in enumerate(recipe.sources):
        tokens = None if wanted == "max" else demand.tokens(index, wanted)
        left_out = not shares[index]
        try:
            selections.append(
                Selection(index, source, seed=recipe.seed, tokens=tokens, kept=kept, is_left_out=left_out)
            )
        except SourceError as error:
            faults.append(str(error))
    faults = faults or _find_small(demand, selections)
    if faults:
        raise SourceError("\n".join(faults))
    return selections


def _find_small(demand: Demand, selections: list[Selection]) -> list[str]:
    """Find sources that are empty or certainly too small: each token takes a byte at least, or is a document's EOS."""
    faults: list[str] = []
    for index, selection in enumerate(selections):
        if selection.has_more or selection.is_left_out:
            continue
        # A token takes a byte at least, and each row may add the EOS of a document.
        spans = [span for unit in selection.units for span in unit.spans]
        most = sum(span.text_bytes + (span.text_bytes if span.rows is None else span.rows) for span in spans)
        if not most:
            faults.append(f"source {selection.source.name!r}: its files hold no document. Correct `paths`.")
        elif demand.recipe.has_weights and (fault := demand.validation_fault(index, most, how_sure="at most ")):
            faults.append(fault)
    # Without weights, a source may give nothing, but not all.
    return faults if demand.recipe.has_weights or not any(own.units for own in selections) else []
