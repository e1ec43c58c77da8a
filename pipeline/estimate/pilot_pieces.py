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
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import as_large_binary, wrap_texts
from pipeline.clean.documents import DocumentStream
from pipeline.clean.steps import clean_batch
from pipeline.clean.tally import Documents, Tally
from pipeline.sources.base import Columns, SourceError, Span, TextBatch
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
class Piece:
    """The result of reading one part of a source."""

    stated_bytes: float = 0.0
    """Bytes of its text, as its span states them."""
    stored_bytes: int = 0
    rows: int = 0
    documents: float = 0
    """Documents kept; for files in the archive, extrapolated from those fetched."""
    text_bytes: float = 0.0
    """Text of the documents kept."""
    texts: list[bytes] = field(default_factory=list[bytes])
    """Some of the documents kept."""
    tally: Tally = field(default_factory=Tally)
    """What the steps of cleaning did."""
    keys: list[bytes] = field(default_factory=list[bytes])
    """SHA-1 of the archive's files that the kept rows name."""
    length: float | None = None
    """Mean bytes of such a file; None if the rows do not state it."""
    carried: list[pa.Table] = field(default_factory=list[pa.Table])
    """The carried values of the documents read."""


@dataclass(frozen=True, slots=True)
class ContentSpeed:
    """How fast some files of the archive were fetched."""

    files: int
    stored_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Extract:
    """The pieces of one source, and the time that reading took: `wall_s` without slow filters, `cpu_s` with them."""

    pieces: list[Piece]
    wall_s: float
    cpu_s: float
    content: ContentSpeed | None

    @property
    def texts(self) -> list[bytes]:
        """Documents of all pieces."""
        return [text for piece in self.pieces for text in piece.texts]


def read_pilot_pieces(selection: Selection, text_bytes: int) -> Extract:
    """Read pieces of a source for the pilot until they give `text_bytes` of text; of a remote one, a quarter suffices.

    Raises:
        SourceError: a part cannot be read as the recipe says.
    """
    # A few parts at a time, until there is enough text: local parts are many, remote ones cost a download.
    parts = _choose(selection)
    enough = text_bytes // 4 if selection.is_remote else text_bytes
    least = 0 if selection.is_remote else LOCAL_PIECES
    pieces: list[Piece] = []
    content: ContentSpeed | None = None
    wall_s = cpu_s = 0.0
    with ThreadPoolExecutor(PIECES) as pool:
        while len(pieces) < MOST_PIECES:
            held = sum(len(text) for piece in pieces for text in piece.texts)
            if held >= enough and (len(pieces) >= least or held >= MOST_TEXT_BYTES):
                break
            spans = list(pool.map(partial(_find_part, selection), itertools.islice(parts, PIECES)))
            if not spans:
                break
            wall, cpu = time.perf_counter(), time.process_time()
            pieces += pool.map(partial(_read_piece, selection.source, selection.carried), spans)
            wall_s, cpu_s = wall_s + time.perf_counter() - wall, cpu_s + time.process_time() - cpu
            if selection.source.content != "column":
                content = _fetch_content(selection.source, pieces)
                break
    # Python runs such filters one after the other: what is left is the time of reading.
    wall_s = max(wall_s / 100, wall_s - sum(piece.tally.slow_s for piece in pieces))
    _thin(pieces, text_bytes)
    return Extract(pieces, wall_s, cpu_s, content)


def _thin(pieces: list[Piece], text_bytes: int) -> None:
    """Keep about `text_bytes` of text: the same share of each piece, evenly spread over its documents."""
    # The same share of each piece: a piece of long documents must not push out the others.
    share = text_bytes / max(1, sum(len(text) for piece in pieces for text in piece.texts))
    if share >= 1:
        return
    seen = kept = 0
    for piece in pieces:
        chosen: list[bytes] = []
        for text in piece.texts:
            if kept <= share * seen:
                chosen.append(text)
                kept += len(text)
            seen += len(text)
        piece.texts = chosen


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


def _read_piece(source: SourceRecipe, carried: Columns, span: Span) -> Piece:
    if source.content != "column":
        return _read_content(source, span)
    if span.kind == "b":
        return _read_block(source, carried, span)
    stored_bytes = span.stored_bytes + span.carried_bytes
    piece = Piece(stored_bytes=stored_bytes, stated_bytes=float(span.text_bytes))
    stream = DocumentStream(source, [span], carried)
    for _, documents in stream:
        _add(piece, stream, documents)
        if piece.text_bytes > MOST_PIECE_BYTES:
            # Assume that the rest is similar. A stream's length is not known, so its stated text is used.
            seen = piece.rows / span.rows if span.rows else piece.text_bytes / max(1, span.text_bytes)
            piece.stored_bytes = int(stored_bytes * min(1.0, seen))
            piece.stated_bytes = span.text_bytes * min(1.0, seen)
            break
    return piece


def _read_block(source: SourceRecipe, carried: Columns, span: Span) -> Piece:
    """Read the first block of a span of bytes; its share of the stored bytes gives its share of the span."""
    piece = Piece()
    stream = DocumentStream(source, [span], carried)
    for _, documents in itertools.islice(stream, 1):
        _add(piece, stream, documents)
    piece.stored_bytes = stream.read_bytes
    # As much of its stated text as was read of its bytes.
    piece.stated_bytes = span.text_bytes * min(1.0, stream.read_bytes / max(1, span.stop - span.start))
    return piece


def _read_content(source: SourceRecipe, span: Span) -> Piece:
    """Read the rows of a part that names files of the archive; `_fetch_content` fetches some of them."""
    from pipeline.sources.software_heritage.archive import parse_key

    piece = Piece(stated_bytes=float(span.text_bytes), stored_bytes=span.stored_bytes)
    for batch in read_span(source, span):
        piece.rows += len(batch.text) + sum(batch.rejected.values())
        piece.tally.drops.count_rows(batch.rejected)
        found = (parse_key(value) for value in as_large_binary(batch.text).to_pylist())
        piece.keys += [key for key in found if key is not None]
    piece.length = _content_length(source, span)
    return piece


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


def _fetch_content(source: SourceRecipe, pieces: list[Piece]) -> ContentSpeed:
    """Fetch some of the files that the parts name, and extrapolate to all of them."""
    from pipeline.sources.software_heritage.archive import decode_archived, fetch_archive_objects

    # Spread the choice over each part: neighbours are often files of one repository.
    each = -(-CONTENT_FILES // len(pieces))
    chosen = [list(dict.fromkeys(piece.keys[:: -(-len(piece.keys) // each) or 1])) for piece in pieces]
    started = time.perf_counter()
    outcomes = dict(fetch_archive_objects(dict.fromkeys(key for keys in chosen for key in keys)))
    seconds = time.perf_counter() - started
    fetched_bytes = sum(len(outcome) for outcome in outcomes.values() if isinstance(outcome, bytes))
    for piece, keys in zip(pieces, chosen, strict=True):
        fetched = [outcome for outcome in map(outcomes.__getitem__, keys) if isinstance(outcome, bytes)]
        decoded = [decode_archived(gzip.decompress(outcome), source.fallback_encoding) for outcome in fetched]
        texts = wrap_texts(pa.large_binary(), [text for text in decoded if text is not None])
        tally = Tally()
        documents = clean_batch(source, TextBatch(texts, np.arange(len(texts), dtype=np.uint32)), tally)
        piece.texts = [bytes(text) for text in documents]
        # Those fetched stand for all that the part names.
        piece.tally.drops.update(tally.drops, len(piece.keys) / max(1, len(keys)))
        mean = piece.length or sum(map(len, piece.texts)) / max(1, len(piece.texts))
        piece.documents = len(piece.keys) * len(piece.texts) / max(1, len(keys))
        piece.text_bytes = piece.documents * mean
    return ContentSpeed(len(outcomes), fetched_bytes, seconds)


def _add(piece: Piece, stream: DocumentStream, documents: Documents) -> None:
    """Add a batch to the piece of the stream's only span."""
    piece.documents += len(documents)
    piece.text_bytes += documents.num_bytes
    piece.texts += map(bytes, documents)
    piece.carried += [documents.carried] if documents.carried is not None else []
    piece.tally = stream.tally
    piece.rows = int(piece.documents) + stream.tally.dropped.total()
