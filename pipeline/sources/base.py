"""The nouns of sources: files, spans of them to read, units of work, and batches of text.

A span is a contiguous part of one file at one state of it (row groups, bytes, or the whole file). A unit is a row of
spans of one source, about `UNIT_BYTES` of text: the grain of parallelism and of resume. A batch is a few megabytes of
text in Arrow buffers; text never becomes a Python object per document.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from shards.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

UNIT_BYTES = 256 << 20
"""Text in a unit, at most (one row group may be larger): a crash costs no more than this."""
PACK_BYTES = 16 << 20
"""Small spans are put together into units up to this size: ten thousand small files are not ten thousand tasks."""
BATCH_BYTES = 8 << 20
"""Text in a batch, about: bounds a worker's memory and stays near the caches."""

MALFORMED = "malformed record"
"""Reason under which records that cannot be parsed as the recipe means are counted."""

SpanKind = Literal["rg", "b", "file"]


class SourceError(InputError):
    """Data that cannot be read as the recipe says. Names the file, what was found, what was expected, the remedy."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a source, as a listing tells it: nothing of it has been read."""

    url: str
    """How to open the file."""
    name: str
    """Its name in provenance."""
    stored_bytes: int
    """Its size; 0 where the listing does not tell."""
    version: str = ""
    """As a span's, where the listing tells."""
    revision: str | None = None
    """The commit that it is pinned to."""


@dataclass(frozen=True, slots=True)
class Span:
    """A contiguous part of one file: row groups `rg`, bytes `b`, both half-open, or all of it (`file`)."""

    url: str
    """How to open the file."""
    name: str
    """The file's name in provenance: relative to the source's common folder."""
    version: str
    """What tells that the file has changed: size and modification time, or an entity tag."""
    format: str
    kind: SpanKind
    start: int
    stop: int
    text_bytes: int
    """Bytes of text, from the footer where there is one, else an estimate."""
    rows: int | None
    """Rows, where a footer tells."""
    stored_bytes: int
    """Bytes that reading takes from disk or network."""
    revision: str | None = None
    """The commit that the file is pinned to; None for files without one, whose documents are the revision."""

    @property
    def part(self) -> str:
        """Which part of the file it is: `rg0-12`, `b0-4096` or `file`."""
        return "file" if self.kind == "file" else f"{self.kind}{self.start}-{self.stop}"

    def identity(self) -> dict[str, Any]:
        """Return what decides the span's content, for digests; where fetched documents lie does not."""
        return asdict(self) | ({"url": ""} if self.format == "documents" else {})

    def label(self, documents: str) -> str:
        """Return the span's provenance, `file@revision#rg0-12`; `documents` is the digest of those read from it."""
        return f"{self.name}@{self.revision or documents}#{self.part}"


@dataclass(frozen=True, slots=True)
class Unit:
    """The work of one encode task."""

    source: int
    """Index of the source in the recipe."""
    spans: tuple[Span, ...]

    @property
    def text_bytes(self) -> int:
        """Bytes of text, about."""
        return sum(span.text_bytes for span in self.spans)

    def identity(self) -> list[dict[str, Any]]:
        """Return what decides the unit's content, for digests."""
        return [span.identity() for span in self.spans]


@dataclass(slots=True)
class TextBatch:
    """Rows of a span that its predicates kept."""

    text: pa.Array[Any]
    """string or binary, `(num_rows,)`; nulls and invalid UTF-8 are still in it."""
    rows: npt.NDArray[np.uint32]
    """Row numbers in the span, `(num_rows,)`."""
    rejected: dict[str, int] = field(default_factory=dict[str, int])
    """Rows that yield no text, by reason: predicates reject them, or they are malformed."""
    malformed: list[str] = field(default_factory=list[str])
    """Some of the malformed records among them, each with its file, record and fault."""


def span_of_part(spans: list[Span], part: str) -> Span | None:
    """Return the span that `Span.part` names, however its file is cut into spans now; None when it lies outside."""
    kind = spans[0].kind if spans else "file"
    match = re.fullmatch(r"(rg|b)(\d+)-(\d+)", part)
    if part == kind == "file":
        return spans[0]
    if not match or match[1] != kind:
        return None
    start, stop = int(match[2]), int(match[3])
    return replace(spans[0], start=start, stop=stop) if start < stop <= spans[-1].stop else None


def make_units(source: int, spans: list[Span]) -> list[Unit]:
    """Put spans together into units, in order. Depends on the spans alone, not on who will run them."""
    units: list[Unit] = []
    pending: list[Span] = []
    pending_bytes = 0
    for span in spans:
        if pending and pending_bytes + span.text_bytes > PACK_BYTES:
            units.append(Unit(source, tuple(pending)))
            pending, pending_bytes = [], 0
        pending.append(span)
        pending_bytes += span.text_bytes
    if pending:
        units.append(Unit(source, tuple(pending)))
    return units
