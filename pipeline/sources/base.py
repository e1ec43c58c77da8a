"""The data types of sources: files, spans, units of work, batches of text, and files that no separator divided.

A span is a contiguous part of one version of a file (row groups, bytes, or the whole file). A unit is a sequence
of spans of one source with at most about `UNIT_BYTES` of text; it is what a task processes and what a resumed build
skips.
A batch is a few megabytes of text in Arrow buffers; documents never become separate Python objects.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from json.encoder import encode_basestring as _quote
from typing import TYPE_CHECKING, Any, Literal
from unicodedata import unidata_version

import xxhash

from pipeline.engine.tasks import JsonText
from shards.errors import InputError, check_extra, plural

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.recipe.schema import SourceRecipe
    from shards.format.arrays import UInt32s
UNIT_BYTES = 256 << 20
"""Most text in a unit (one row group may be larger): a crash costs each worker no more than this."""
PACK_BYTES = 16 << 20
"""Small spans are joined into units up to this size, so that ten thousand small files are not ten thousand tasks."""
GROUP_FILES = 2048
"""On average, one in this many small files is the last of its unit, chosen by its name. So a file that is added,
removed or changed changes the units of its group alone, about 2,048 files or 0.5 s of encoding, not all units after
it."""
BATCH_BYTES = 8 << 20
"""Text in a batch, about. It bounds a worker's memory and keeps the text near the CPU's caches."""

MALFORMED = "malformed record"
"""The drop reason of records that cannot be parsed as the recipe says."""

NO_CHAT = "messages: "
"""The beginning of every reason for which conversations are dropped while they are read."""

ALLOW = "; or allow some such records by `max_malformed`"
"""The end of a remedy, for those who read records under other names and have no such key."""

SHOWN_MALFORMED = 3
"""Number of malformed records kept per unit, and shown when the build stops."""

_LIBRARIES = ("trafilatura", "lxml", "lxml_html_clean", "jusText")
"""The libraries whose versions decide the text of HTML pages; Python's decides what is a printable letter."""

SpanKind = Literal["rg", "b", "file"]


class SourceError(InputError):
    """Data that cannot be read as the recipe says. The message names the file, the fault and the remedy."""


@functools.cache
def _versions() -> str:
    """Return the part of the JSON of a span of HTML about the libraries that read it."""
    check_extra("trafilatura")
    found = {library: version(library) for library in _LIBRARIES} | {"unicode": unidata_version}
    return f'"libraries":{json.dumps(found)},'


@dataclass(frozen=True, slots=True)
class File:
    """A file of a source as a listing describes it, before it is opened."""

    url: str
    """The address to open."""
    name: str
    """Its name in provenance."""
    stored_bytes: int
    """Its size; 0 if the listing does not give it."""
    version: str = ""
    """Its `Span.version`; empty if the listing does not give it."""
    revision: str | None = None
    """The commit that it is pinned to; None for a file without one."""


@dataclass(frozen=True, slots=True)
class Span:
    """A contiguous part of one file: row groups `rg` or bytes `b`, both half-open, or all of it (`file`)."""

    url: str
    """The address to open."""
    name: str
    """The file's name in provenance: relative to the source's common folder."""
    version: str
    """Shows whether the file has changed: size and modification time, or an entity tag."""
    format: str
    kind: SpanKind
    start: int
    stop: int
    text_bytes: int
    """Bytes of text, from the footer if there is one, else an estimate."""
    rows: int | None
    """Number of rows; None if no footer states it."""
    stored_bytes: int
    """Bytes that reading takes from disk or network."""
    revision: str | None = None
    """The commit that the file is pinned to. For a file without one, the digest of its documents is the revision."""

    @property
    def file_bytes(self) -> int:
        """The size of the span's file, which its version begins with."""
        return int(self.version.partition(" ")[0])

    @property
    def part(self) -> str:
        """The part of the file that a span is: `rg0-12`, `b0-4096` or `file`."""
        return "file" if self.kind == "file" else f"{self.kind}{self.start}-{self.stop}"

    def to_json(self) -> str:
        """Return the fields that determine the span's content, for `JsonText`; not the path of fetched documents.

        It is what `json.dumps` gives for a dict of them, in a fifth of the time.
        """
        url = "" if self.format == "documents" else self.url
        rows = "null" if self.rows is None else self.rows
        revision = "null" if self.revision is None else _quote(self.revision)
        libraries = _versions() if self.format == "html" else ""
        return (
            f'{{"format":{_quote(self.format)},"kind":"{self.kind}",{libraries}"name":{_quote(self.name)},'
            f'"revision":{revision},'
            f'"rows":{rows},"start":{self.start},"stop":{self.stop},"stored_bytes":{self.stored_bytes},'
            f'"text_bytes":{self.text_bytes},"url":{_quote(url)},"version":{_quote(self.version)}}}'
        )

    def label(self, documents: str) -> str:
        """Return the span's provenance, `file@revision#rg0-12`; `documents` is the digest of the span's documents."""
        return f"{self.name}@{self.revision or documents}#{self.part}"


def spans_to_json(spans: Iterable[Span]) -> JsonText:
    """Return what determines the spans' content."""
    return JsonText(f"[{','.join([span.to_json() for span in spans])}]")


@dataclass(frozen=True, slots=True)
class Unit:
    """The work of one encode task."""

    source: int
    """Index of the source in the recipe."""
    spans: tuple[Span, ...]
    most_bytes: int | None = None
    """For a plan: after this much text, nothing more is read."""

    @property
    def text_bytes(self) -> int:
        """Bytes of text of a unit, about."""
        return sum(span.text_bytes for span in self.spans)


def content_of_unit(unit: Unit) -> JsonText:
    """Return what determines the content of a unit, for digests: its spans, and not the index of its source."""
    return spans_to_json(unit.spans)


@dataclass(slots=True)
class TextBatch:
    """Rows of a span that its predicates kept."""

    text: pa.Array[Any]
    """string or binary, `(num_rows,)`; may hold nulls and invalid UTF-8."""
    rows: UInt32s
    """Row numbers in the span, `(num_rows,)`."""
    rejected: Counter[str] = field(default_factory=Counter[str])
    """Counts of rows without text by reason: a predicate rejected them, they are malformed, or no conversations."""
    dropped: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """For each reason of conversations its first row, and the beginning of the message that has it."""
    malformed: list[str] = field(default_factory=list[str])
    """Some of the malformed records, each with its file, record and fault."""
    undivided: str | None = None
    """For a text file in which the separator never occurs: what it has instead, the separator with other line ends;
    empty if that does not occur, and the file is of some size. None for all others."""
    odd_quotes: int = 0
    """Fields of CSV in quotes that go on after them or, if the source does not say what quotes are, hold line ends."""
    read_bytes: int = 0
    """For a span of bytes: its stored bytes up to the end of this batch, of a compressed file about."""


def batch_without_rows(rejected: dict[str, int]) -> TextBatch:
    """Return the batch of text of rows of which none is kept, by the reasons of their rejection."""
    import numpy as np
    import pyarrow as pa

    return TextBatch(pa.nulls(0, pa.large_string()), np.zeros(0, np.uint32), Counter(rejected))


def describe_place(span: Span, row: int) -> str:
    """Return where a row of a span is, for messages: `a.jsonl: record 7 after byte 4096`."""
    after = f" after byte {span.start}" if span.kind == "b" and span.start else ""
    return f"{span.name}: record {row}{after}"


Group = tuple[int | None, int, int]
"""A row group as the file's footer describes it: its rows, None if they are not stated; bytes of text; bytes that
reading the text and the predicates' columns takes from disk or network."""


def join_groups(whole: Span, groups: Iterable[Group], unit_bytes: int) -> list[Span]:
    """Join a file's row groups into spans of up to `unit_bytes` of text each.

    Raises:
        SourceError: a row group has 2^32 rows or more.
    """
    spans: list[Span] = []
    start = stop = text_bytes = stored = 0
    rows: int | None = 0

    def close() -> None:
        spans.append(
            replace(whole, kind="rg", start=start, stop=stop, text_bytes=text_bytes, rows=rows, stored_bytes=stored)
        )

    for index, (own_rows, own_text, own_stored) in enumerate(groups):
        # Row numbers are uint32.
        if own_rows is not None and own_rows >= 1 << 32:
            raise SourceError(
                f"{whole.name}: row group {index} has {plural(own_rows, 'row')}; expected fewer than 2^32"
            )
        # A group that does not fit begins the next span; groups are never cut.
        if rows != 0 and text_bytes + own_text > unit_bytes:
            close()
            start, rows, text_bytes, stored = index, 0, 0, 0
        stop = index + 1
        rows = None if rows is None or own_rows is None else rows + own_rows
        text_bytes += own_text
        stored += own_stored
    if rows != 0:
        close()
    return spans


def make_units(source: int, spans: list[Span], most_bytes: int = PACK_BYTES) -> list[Unit]:
    """Join spans into units of so much text, in order; it depends on the spans alone, not on the number of workers."""
    units: list[list[Span]] = []
    size, is_last = 0, True
    for span in spans:
        # A full unit ends before a span, and by chance after one: a file's change then moves few borders.
        if is_last or size + span.text_bytes > most_bytes:
            units.append([])
            size = 0
        units[-1].append(span)
        size += span.text_bytes
        is_last = xxhash.xxh3_64_intdigest(f"{span.name}\0{span.start}".encode()) % GROUP_FILES == 0
    return [Unit(source, tuple(own)) for own in units]


LEAST_UNDIVIDED_BYTES = 1 << 16
"""A text file of this size in which the separator never occurs is reported: few documents are as long."""
SHOWN_UNDIVIDED = 3


def describe_undivided(source: SourceRecipe, undivided: list[str]) -> Iterator[str]:
    """Yield what is wrong with the text files of a source that its separator does not divide, if there are any.

    Args:
        source: the source.
        undivided: some of them, each with what it has instead.
    """
    if undivided:
        yield (
            f"source {source.name!r}: the separator {json.dumps(source.separator)} never occurs in text files that are "
            f"read as one document each, such as {', '.join(undivided)}. Correct `separator`, give files with other "
            'line ends a source of their own, or set format = "file".'
        )
