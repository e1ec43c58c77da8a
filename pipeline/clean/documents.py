"""Documents: the texts of a source that can be encoded. Each dropped row is counted with its reason.

`DocumentStream` turns spans into documents for encoding, for the tokenizer's sample and for a plan.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import as_large_binary, unwrap_mask, wrap_mask, wrap_numbers
from pipeline.clean.datatrove_filters import FilterError
from pipeline.clean.filters import Filtered, apply_filters, apply_personal_data_filter
from pipeline.clean.limits import Fallen, FallenDocument, find_kept
from pipeline.clean.malformed import (
    NULL,
    Examples,
    count_malformed,
    describe_examples,
    invalid_reason,
    malformed_remedy,
)
from pipeline.clean.patterns import Match, find_pattern_matches, pattern_matches_to_json
from pipeline.sources.base import NOT_PLAIN, SHOWN_MALFORMED, Columns, SourceError, TextBatch
from pipeline.sources.kinds import read_span
from pipeline.sources.undivided import Undivided
from shards.errors import plural

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.recipe.schema import SourceRecipe
    from pipeline.sources.base import Span

EMPTY = "text is empty"
SHORT = "shorter than min_bytes"
LONG = "longer than max_bytes"
JOIN_BYTES = 1 << 20
"""Batches are joined up to this much text before they are cleaned: 100,000 files of one document are few batches."""


@dataclass(slots=True)
class Documents:
    """Documents ready to encode."""

    text: pa.LargeStringArray
    """`(num_documents,)`, no nulls, valid UTF-8."""
    rows: npt.NDArray[np.uint32]
    """Row of each document in its span, `(num_documents,)`."""
    carried: pa.Table | None = None
    """The columns that were asked for, `(num_documents, columns)`; None if none were."""

    def __len__(self) -> int:
        return len(self.text)

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the UTF-8 bytes of each document; they point into `data`."""
        data = self.data
        return (data[start:stop] for start, stop in itertools.pairwise(self.offsets.tolist()))

    @property
    def num_bytes(self) -> int:
        """Bytes of text of all documents."""
        offsets = self.offsets
        return int(offsets[-1] - offsets[0])

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Byte offsets of the documents in `data`, `(num_documents + 1,)`."""
        buffer: Any = self.text.buffers()[1]
        if not len(self.text):
            return np.zeros(1, np.int64)
        return np.frombuffer(buffer, np.int64)[self.text.offset : self.text.offset + len(self.text) + 1]

    @property
    def data(self) -> memoryview:
        """The UTF-8 bytes that `offsets` point into."""
        return memoryview(self.text.buffers()[2] or b"")


class DocumentStream:
    """The documents of some spans of a source, batch by batch, with the counts of dropped rows."""

    def __init__(self, source: SourceRecipe, spans: Iterable[Span], carried: Columns = ()):
        self._source, self._spans, self._carried = source, spans, carried
        self._shown: list[Match] = []
        self.documents = 0
        """Documents so far."""
        self.dropped: Counter[str] = Counter()
        """Rows dropped so far, by reason."""
        self.matches: list[dict[str, Any]] = []
        """Some of the documents that `drop_if_matches` dropped, as JSON values."""
        self.malformed = Examples()
        """Some of the malformed records."""
        self.undivided = Undivided()
        """Text files in which the separator never occurs."""
        self._undecoded: list[tuple[int, bytes]] = []
        self.read_bytes = 0
        """For a span of bytes: the stored bytes of the last span that were read so far."""
        self.fallen: list[dict[str, Any]] = []
        """Some of the documents that presets with `when = "encode"` dropped, as JSON values."""
        self._fallen = Fallen()
        self._filtered = Filtered()
        self._shown_filtered: list[dict[str, Any]] = []

    @property
    def slow_s(self) -> float:
        """CPU seconds that slow filters have taken."""
        return self._filtered.seconds

    @property
    def filtered(self) -> dict[str, Any]:
        """The effect of filters, as JSON values."""
        return self._filtered.to_json(self._shown_filtered)

    @property
    def dropped_by_preset(self) -> dict[str, int]:
        """How many documents each preset with `when = "encode"` would have dropped on its own."""
        return dict(self._fallen.presets)

    def __iter__(self) -> Iterator[tuple[npt.NDArray[np.uint32], Documents]]:
        """Yield documents, possibly none, with the index of each one's span. Small batches are joined, also over spans.

        Raises:
            SourceError: a span cannot be read as the recipe says.
            FilterError: a filter failed.
        """
        pending: list[TextBatch] = []
        spans: dict[int, Span] = {}
        size = 0
        for index, span in enumerate(self._spans):
            spans[index] = span
            for batch in read_span(self._source, span, self._carried):
                if batch.rejected:  # of small files there are many batches
                    self.dropped.update(batch.rejected)
                self.read_bytes = batch.read_bytes
                if batch.undivided is not None:
                    self.undivided.add(batch.undivided, span.name)
                if batch.malformed:
                    self.malformed.update(Examples(batch.malformed))
                # A place is the span's index and the row in one number.
                places = batch.rows.astype(np.uint64) | np.uint64(index << 32)
                pending.append(TextBatch(as_large_binary(batch.text), cast("Any", places), carried=batch.carried))
                size += pending[-1].text.nbytes
                if size >= JOIN_BYTES:
                    yield self._clean(pending, spans)
                    pending, spans, size = [], {index: span}, 0
        if pending:
            yield self._clean(pending, spans)

    def refuse_malformed(self) -> None:
        """Stop at the first text that does not decode, if the source allows no malformed record.

        Raises:
            SourceError: with some of the records, the encoding that they probably have, and the remedy.
        """
        if self._source.max_malformed or not (malformed := int(count_malformed(self._source, self.dropped))):
            return
        records = self.documents + self.dropped.total()
        share = malformed / records
        raise SourceError(
            f"source {self._source.name!r}: {malformed:,} of the {plural(records, 'record')} read so far "
            f"{'is' if malformed == 1 else 'are'} malformed, and max_malformed = 0.0 allows "
            f"none{describe_examples(self.malformed)}\n"
            f"{malformed_remedy(self._source, share, self.malformed)}."
        )

    def _clean(self, pending: list[TextBatch], spans: dict[int, Span]) -> tuple[npt.NDArray[np.uint32], Documents]:
        batch, carried = pending[0], [part.carried for part in pending if part.carried is not None]
        if len(pending) > 1:
            text = pa.concat_arrays([part.text for part in pending])
            batch = TextBatch(text, np.concatenate([part.rows for part in pending]))
        try:
            documents = clean_batch(
                self._source, batch, self.dropped, self._shown, self._fallen, self._filtered, self._undecoded
            )
        except FilterError as error:
            raise error.at(spans[error.row >> 32].name, error.row & 0xFFFFFFFF) from error.__cause__
        for place, text in self._undecoded:
            self.malformed.add(self._source, spans[place >> 32], place & 0xFFFFFFFF, text)
        self._undecoded.clear()
        self.documents += len(documents)
        for place, limit, value, text in self._fallen.shown[len(self.fallen) :]:
            document = FallenDocument(
                spans[place >> 32].name, place & 0xFFFFFFFF, limit.reason, limit.measure, value, limit.value, text
            )
            self.fallen.append({"preset": limit.preset, "document": asdict(document)})
        for document in self._filtered.shown[len(self._shown_filtered) :]:
            placed = replace(document, row=document.row & 0xFFFFFFFF, place=spans[document.row >> 32].name)
            self._shown_filtered.append(asdict(placed))
        for match in self._shown[len(self.matches) :]:
            row = match.row & 0xFFFFFFFF
            self.matches += pattern_matches_to_json([replace(match, row=row)], spans[match.row >> 32].name)
        indices = (documents.rows >> np.uint64(32)).astype(np.uint32)
        values = None
        if self._carried and carried:
            # Places ascend, so that those which are left tell which values are left.
            left = wrap_numbers(pa.int64(), np.searchsorted(batch.rows, documents.rows).astype(np.int64))
            values = pa.concat_tables(carried).take(left)
        return indices, Documents(documents.text, documents.rows.astype(np.uint32), values)


def drop_remedy(reasons: Collection[str]) -> str:
    """Return what to do about sources whose records are all dropped for some reasons, without a full stop."""
    of_warc = all(reason.endswith((" record", NOT_PLAIN)) for reason in reasons)
    if of_warc and any(reason.endswith(NOT_PLAIN) for reason in reasons):
        return "Use the WET files of the crawl, or extract the text of the pages first"
    return "Correct `keep`, `text`, `drop_if_matches`, `clean` or the length bounds"


def describe_drops(dropped: Mapping[str, int], records: int) -> str:
    """Return how many of some records are dropped, and why, the most frequent reason first; empty if none is."""
    if not (count := sum(dropped.values())):
        return ""
    listed = ", ".join(f"{reason}: {number:,}" for reason, number in Counter(dropped).most_common())
    return f"{count:,} of {plural(records, 'record')} {'is' if count == 1 else 'are'} dropped ({listed})"


def clean_batch(
    source: SourceRecipe,
    batch: TextBatch,
    dropped: Counter[str],
    shown: list[Match] | None = None,
    fallen: Fallen | None = None,
    filtered: Filtered | None = None,
    undecoded: list[tuple[int, bytes]] | None = None,
) -> Documents:
    """Turn rows into documents: drop those that cannot be encoded or that the recipe drops; mask what it masks.

    Args:
        source: the source.
        batch: rows of it.
        dropped: the counts by reason are added to it.
        shown: some of the documents that the source's `drop_if_matches` drops are added to it.
        fallen: what the source's presets with `when = "encode"` drop is added to it.
        filtered: what the source's filters do is added to it.
        undecoded: some of the documents that do not decode are added to it, each with its row.
    """
    dropped.update(batch.rejected)
    text, rows = as_large_binary(batch.text), batch.rows
    if text.null_count:
        valid = unwrap_mask(text.is_valid())
        dropped[NULL] += len(text) - int(valid.sum())
        text, rows = text.filter(wrap_mask(valid)), rows[valid]
    text, rows = _drop_invalid(source, text, rows, dropped, [] if undecoded is None else undecoded)
    lengths = np.diff(Documents(text, rows).offsets)
    least, most = source.min_bytes, source.max_bytes if source.max_bytes is not None else np.iinfo(np.int64).max
    kept = (lengths >= least) & (lengths <= most)
    if not kept.all():
        empty = int((lengths == 0).sum())
        counts = {EMPTY: empty, SHORT: int((lengths < least).sum()) - empty, LONG: int((lengths > most).sum())}
        dropped.update({reason: count for reason, count in counts.items() if count})
        text, rows = text.filter(wrap_mask(kept)), rows[kept]
    if source.drop_if_matches and len(text):
        kept = ~find_pattern_matches(text, rows, source.drop_if_matches, dropped, shown)
        if not kept.all():
            text, rows = text.filter(wrap_mask(kept)), rows[kept]
    if source.clean:
        filtered = Filtered() if filtered is None else filtered
        text, rows = apply_personal_data_filter(text, rows, source, dropped, filtered)
        kept = find_kept(text, rows, source, dropped, fallen)
        if not kept.all():
            text, rows = text.filter(wrap_mask(kept)), rows[kept]
        text, rows = apply_filters(text, rows, source, dropped, filtered)
    return Documents(text, rows)


def _drop_invalid(
    source: SourceRecipe,
    text: pa.LargeBinaryArray,
    rows: npt.NDArray[np.uint32],
    dropped: Counter[str],
    undecoded: list[tuple[int, bytes]],
) -> tuple[pa.LargeStringArray, npt.NDArray[np.uint32]]:
    strings = cast("pa.LargeStringArray", text.view(pa.large_string()))
    try:
        strings.validate(full=True)  # one pass over the whole buffer: 0.1 ms per MB
    except pa.ArrowInvalid:
        valid = np.array([_is_utf8(value.as_buffer()) for value in text], bool)
        dropped[invalid_reason(source)] += len(text) - int(valid.sum())
        for place in np.flatnonzero(~valid)[:SHOWN_MALFORMED].tolist():
            undecoded.append((int(rows[place]), cast("Any", text)[place].as_buffer().to_pybytes()))
        return strings.filter(wrap_mask(valid)), rows[valid]
    return strings, rows


def _is_utf8(data: pa.Buffer) -> bool:
    try:
        str(memoryview(data), "utf-8")
    except UnicodeDecodeError:
        return False
    return True
