"""The pilot's pieces: a few parts of a source, read to measure content, the share that is kept, and speed.

A part is a row group, a file, or the first block of a span of text. The recipe's seed decides which parts are read. If
a source's rows name files of Software Heritage's archive, some of these files are fetched.
"""

from __future__ import annotations

import gzip
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import as_large_binary, wrap_texts
from pipeline.clean.documents import DocumentStream
from pipeline.clean.steps import clean_batch
from pipeline.clean.tally import Tally
from pipeline.sources.base import SourceError, Span, TextBatch
from pipeline.sources.kinds import list_spans, read_span
from pipeline.sources.selection import Selection, seeded_place

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

PIECES = 8
"""Parts of a source that are read at once. They usually suffice for a remote source: each costs a download."""
LOCAL_PIECES = 24
"""Parts of a local source: text differs more between parts than within one."""
MOST_PIECES = 1024
"""The largest number of parts of a source with small files."""
MOST_TEXT_BYTES = 64 << 20
"""No further small file is read after this much text."""
MOST_PIECE_BYTES = 32 << 20
"""The most text that is read of one part."""
CONTENT_FILES = 512
"""Files of the archive that are fetched for all parts together."""


@dataclass(slots=True)
class Sample:
    """What was read of a source, or of one part of it."""

    stated_bytes: float = 0.0
    """Bytes of its text, as its spans state them."""
    stored_bytes: int = 0
    rows: int = 0
    documents: float = 0
    """Documents kept; for files in the archive, extrapolated from those fetched."""
    text_bytes: float = 0.0
    """Text of the documents kept."""
    texts: list[bytes] = field(default_factory=list[bytes])
    """Some of the documents kept."""
    wall_s: float = 0.0
    """The time that reading took, without slow filters."""
    cpu_s: float = 0.0
    """The same with them."""
    keys: list[bytes] = field(default_factory=list[bytes])
    """SHA-1 of the archive's files that the kept rows name."""
    fetched_files: int = 0
    """Files of the archive that were fetched."""
    fetched_bytes: int = 0
    fetch_s: float = 0.0
    tally: Tally = field(default_factory=Tally)
    """What the steps of cleaning did."""

    def add(self, part: Sample) -> None:
        """Add another part of the source."""
        for one in fields(self)[:-1]:
            setattr(self, one.name, getattr(self, one.name) + getattr(part, one.name))
        self.tally = Tally.sum([self.tally, part.tally])


def read_pilot_pieces(selection: Selection, text_bytes: int) -> Sample:
    """Read pieces of a source for the pilot until they give `text_bytes` of text; of a remote one, a quarter suffices.

    Raises:
        SourceError: a part cannot be read as the recipe says.
    """
    # A few parts at a time, until there is enough text: local parts are many, remote ones cost a download.
    places = _choose(selection)
    enough = text_bytes // 4 if selection.is_remote else text_bytes
    least = 0 if selection.is_remote else LOCAL_PIECES
    sample, number = Sample(), 0
    with ThreadPoolExecutor(PIECES) as pool:
        while number < MOST_PIECES:
            held = sum(map(len, sample.texts))
            if held >= enough and (number >= least or held >= MOST_TEXT_BYTES):
                break
            spans = list(pool.map(partial(_find_part, selection), itertools.islice(places, PIECES)))
            if not spans:
                break
            wall, cpu = time.perf_counter(), time.process_time()
            parts = list(pool.map(partial(_read_piece, selection.source), spans))
            sample.wall_s += time.perf_counter() - wall
            sample.cpu_s += time.process_time() - cpu
            if selection.source.content != "column":
                _fetch_content(selection.source, parts, sample)
                number = MOST_PIECES  # no more than these
            number += len(parts)
            for part in parts:
                sample.add(part)
    # Python runs slow filters one after the other: what is left is the time of reading.
    sample.wall_s = max(sample.wall_s / 100, sample.wall_s - sample.tally.slow_s)
    sample.texts = _thin(sample.texts, text_bytes)
    return sample


def _thin(texts: list[bytes], text_bytes: int) -> list[bytes]:
    """Return about `text_bytes` of text, evenly spread: a part of long documents must not push out the others."""
    share = text_bytes / max(1, sum(map(len, texts)))
    if share >= 1:
        return texts
    chosen: list[bytes] = []
    seen = kept = 0
    for text in texts:
        if kept <= share * seen:
            chosen.append(text)
            kept += len(text)
        seen += len(text)
    return chosen


def _choose(selection: Selection) -> Iterator[tuple[Span, int]]:
    """Yield parts of the listed files in seeded order: a span, or a span and one of its row groups."""
    parts = (
        (span, index)
        for span in selection.listed
        for index in (range(span.start, span.stop) if span.kind == "rg" else (0,))
    )
    yield from sorted(
        parts, key=lambda part: seeded_place(selection.seed, f"{part[0].name}\0{part[0].part}\0{part[1]}")
    )


def _find_part(selection: Selection, part: tuple[Span, int]) -> Span:
    """Return the span of a part; for a row group, a span that holds only this row group."""
    span, index = part
    if span.kind != "rg":
        return span
    groups = list_spans(selection.source, [selection.file(span.name)], 1)
    return next(group for group in groups if group.start <= index < group.stop)


def _read_piece(source: SourceRecipe, span: Span) -> Sample:
    """Read a part: the first block of a span of bytes, all of a small one, the beginning of a long one."""
    part = Sample(float(span.text_bytes), span.stored_bytes)
    if source.content != "column":
        _read_keys(source, span, part)
        return part
    stream = DocumentStream(source, [span])
    for _, documents in stream:
        part.documents += len(documents)
        part.text_bytes += documents.num_bytes
        part.texts += map(bytes, documents)
        # Assume that the rest is similar. A stream's length is not known, so its stated text is used.
        if span.kind == "b":
            seen = stream.read_bytes / max(1, span.stop - span.start)
        elif part.text_bytes > MOST_PIECE_BYTES and span.rows:
            seen = (part.documents + stream.tally.dropped.total()) / span.rows
        elif part.text_bytes > MOST_PIECE_BYTES:
            seen = part.text_bytes / max(1, span.text_bytes)
        else:
            continue
        part.stored_bytes = int(part.stored_bytes * min(1.0, seen))
        part.stated_bytes *= min(1.0, seen)
        break
    part.tally = stream.tally
    part.rows = int(part.documents) + stream.tally.dropped.total()
    return part


def _read_keys(source: SourceRecipe, span: Span, part: Sample) -> None:
    """Read the rows of a part that names files of the archive; `_fetch_content` fetches some of them."""
    from pipeline.sources.software_heritage.archive import parse_key

    for batch in read_span(source, span):
        part.rows += len(batch.text) + sum(batch.rejected.values())
        part.tally.drops.count_rows(batch.rejected)
        found = (parse_key(value) for value in as_large_binary(batch.text).to_pylist())
        part.keys += [key for key in found if key is not None]
    part.text_bytes = len(part.keys) * (_content_length(source, span) or 0.0)


def _content_length(source: SourceRecipe, span: Span) -> float | None:
    """Return the mean of the column `length_bytes` over a part's rows that the predicates keep; None without it."""
    # The rows may state how long the text is that they name: better than those few that are fetched.
    lengths = source.model_copy(update={"content": "column", "text": "length_bytes"})
    try:
        values = [np.asarray(batch.text.drop_null()) for batch in read_span(lengths, span)]
    except (KeyError, SourceError, pa.ArrowInvalid):
        return None
    found = np.concatenate([*values, np.zeros(0)])
    return float(found.mean()) if len(found) else None


def _fetch_content(source: SourceRecipe, parts: list[Sample], sample: Sample) -> None:
    """Fetch some of the files that the parts name, and extrapolate to all of them."""
    from pipeline.sources.software_heritage.archive import decode_archived, fetch_archive_objects

    # Spread the choice over each part: neighbours are often files of one repository.
    each = -(-CONTENT_FILES // len(parts))
    chosen = [list(dict.fromkeys(part.keys[:: -(-len(part.keys) // each) or 1])) for part in parts]
    started = time.perf_counter()
    outcomes = dict(fetch_archive_objects(dict.fromkeys(key for keys in chosen for key in keys)))
    sample.fetch_s = time.perf_counter() - started
    sample.fetched_files = len(outcomes)
    sample.fetched_bytes = sum(len(outcome) for outcome in outcomes.values() if isinstance(outcome, bytes))
    for part, keys in zip(parts, chosen, strict=True):
        fetched = [outcome for outcome in map(outcomes.__getitem__, keys) if isinstance(outcome, bytes)]
        decoded = [decode_archived(gzip.decompress(outcome), source.fallback_encoding) for outcome in fetched]
        texts = wrap_texts(pa.large_binary(), [text for text in decoded if text is not None])
        tally = Tally()
        documents = clean_batch(source, TextBatch(texts, np.arange(len(texts), dtype=np.uint32)), tally)
        part.texts = [bytes(text) for text in documents]

        # Those fetched stand for all that the part names; their length only if the rows do not state it.
        times = len(part.keys) / max(1, len(keys))
        part.tally.drops.update(tally.drops, times)
        part.documents = len(part.texts) * times
        stated = part.text_bytes / max(1, len(part.keys))
        part.text_bytes = part.documents * (stated or sum(map(len, part.texts)) / max(1, len(part.texts)))
