"""Documents in cleaning, as a batch of text, and the tally of what the steps did with them: dropped, masked, shown."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, cast

import numpy as np
import pyarrow as pa
from pydantic import Field

from pipeline.arrow_arrays import text_bytes, text_offsets, wrap_mask, wrap_slices, wrap_texts
from pipeline.clean.drops import SourceDrops
from pipeline.clean.reasons import MEASURED, TEXT_CHARACTERS, step_of
from pipeline.sources.base import SHOWN_MALFORMED, SHOWN_UNDIVIDED, Span, describe_place
from shards.audit.not_text import MOST_CHARACTERS, NotText, add_not_text, look_for_not_text
from shards.format.arrays import Bools, Int64s, UInt32s
from shards.format.chat import ROLE_MARKS
from shards.terminal.display import printable

MARK = re.compile(f"({'|'.join(ROLE_MARKS.values())})".encode())
"""The mark of a message in the text of a conversation, which is known by its source: other text may hold it."""
SHOWN = 10
"""Documents that a build shows when it stops, and that an encode task keeps of each step."""
LOOKED_AT, MOST_LOOKED_AT = 8, 32
"""Documents of a batch, and of a task, in which is looked for what is not text: 3 ms a task, measured."""


@dataclass(slots=True)
class Documents:
    """Documents of a source: ready to encode, when all steps have passed."""

    text: pa.LargeStringArray
    """`(num_documents,)`, no nulls, valid UTF-8."""
    rows: UInt32s
    """Row of each document in its span, `(num_documents,)`."""
    has_marks: bool = False
    """Whether they are conversations, with a mark before each message."""

    def __len__(self) -> int:
        return len(self.text)

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the UTF-8 bytes of each document; they point into `data`."""
        data = self.data
        return (data[start:stop] for start, stop in itertools.pairwise(self.offsets.tolist()))

    @property
    def num_bytes(self) -> int:
        """Bytes of text."""
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def offsets(self) -> Int64s:
        """Byte offsets of the documents in `data`, `(num_documents + 1,)`."""
        return text_offsets(self.text)

    @property
    def data(self) -> memoryview:
        """The UTF-8 bytes that `offsets` point into."""
        return memoryview(self.text.buffers()[2] or b"")

    def only(self, kept: Bools) -> Documents:
        """Return the documents that a mask keeps, `(num_documents,)`."""
        return self if kept.all() else replace(self, text=self.text.filter(wrap_mask(kept)), rows=self.rows[kept])

    def with_texts(self, changed: Mapping[int, bytes]) -> Documents:
        """Return the documents with other texts for some of them, by their indices, in order."""
        if not changed:
            return self
        import pyarrow.compute as pc  # late: it takes 0.06 s

        # A new column from what stays and what is new: text that is not changed is copied once.
        mask = np.zeros(len(self), bool)
        mask[list(changed)] = True
        texts = wrap_texts(pa.large_string(), list(changed.values()))
        return replace(self, text=cast("Any", pc).replace_with_mask(self.text, wrap_mask(mask), texts))

    @property
    def seen(self) -> Documents:
        """The documents as whatever measures or searches sees them: each mark is three line ends, so places stay."""
        if not self.has_marks:
            return self
        data = bytes(text_bytes(self.text))
        for mark in ROLE_MARKS.values():  # in a tenth of a pattern's time
            data = data.replace(mark.encode(), b"\n\n\n")
        return Documents(wrap_slices(pa.large_string(), self.offsets - self.offsets[0], data), self.rows)

    def start_of(self, index: int, characters: int = TEXT_CHARACTERS) -> str:
        """Return the first characters of a document."""
        data = self.data[self.offsets[index] : self.offsets[index + 1]][: 4 * characters]
        return str(MARK.sub(b"\n\n\n", data) if self.has_marks else data, "utf-8", "ignore")[:characters]


@dataclass(frozen=True, slots=True)
class DroppedDocument:
    """A document that a step of cleaning dropped, as errors and reports show it."""

    place: str
    """The label of its span."""
    row: int
    reason: str
    text: str = ""
    """Its first characters, or those around a match; empty if it was dropped for something that must not be shown."""
    measure: str = ""
    value: float | None = None
    limit: float | None = None

    @property
    def step(self) -> str:
        """The step that dropped a shown document, as the table of drops has it."""
        return step_of(self.reason)

    @property
    def why(self) -> str:
        """The reason, with what was measured."""
        return MEASURED.format(**asdict(self)) if self.measure else self.reason


@dataclass(slots=True)
class Tally:
    """What the steps of cleaning did with some documents of a source. Encode tasks return it."""

    locate: Annotated[Callable[[int], tuple[Span, int]] | None, Field(exclude=True)] = None
    """Returns the span and the row in it of what `Documents.rows` has; None if those are rows of no span."""
    drops: SourceDrops = field(default_factory=SourceDrops)
    """Rows and documents that each step drops, without tokens."""
    edited: Counter[str] = field(default_factory=Counter[str])
    """Documents whose text a filter changed, by its label. What datatrove's change is encoded unchanged."""
    masked: Counter[str] = field(default_factory=Counter[str])
    """Masked personal data, by their kind."""
    shown: list[DroppedDocument] = field(default_factory=list[DroppedDocument])
    """Some documents of each step."""
    malformed: list[str] = field(default_factory=list[str])
    """Some malformed records, each with its file, place and fault."""
    undivided: list[str] = field(default_factory=list[str])
    """Some text files in which the separator never occurs, one more than are shown."""
    odd_quotes: int = 0
    """As in `TextBatch`."""
    not_text: NotText = field(default_factory=dict[str, tuple[int, str]])
    """What is not text in some documents that no step drops."""

    @classmethod
    def sum(cls, parts: Iterable[Tally]) -> Tally:
        """Return the tally of several parts of a source."""
        total = cls()
        for part in parts:
            for name in ("drops", "edited", "masked"):
                getattr(total, name).update(getattr(part, name))
            total.shown += part.shown
            total.malformed += part.malformed[: SHOWN_MALFORMED - len(total.malformed)]
            total.note_undivided(part.undivided)
            total.odd_quotes += part.odd_quotes
            add_not_text(total.not_text, part.not_text)
        return total

    @property
    def dropped(self) -> Counter[str]:
        """Rows by the first reason for which they are dropped."""
        return self.drops.dropped()

    def note_undivided(self, files: list[str]) -> None:
        """Keep some names of text files that the separator does not divide."""
        self.undivided += files[: SHOWN_UNDIVIDED - len(self.undivided)]

    def describe_row(self, row: int) -> str:
        """Return where a document is, for a message."""
        if self.locate is None:
            return f"row {row}"
        return printable(describe_place(*self.locate(row)))

    def look_at(self, documents: Documents) -> None:
        """Look for what is not text in some documents of a batch that no step drops, spread over it."""
        looked = self.not_text.get("", (0, ""))[0]
        for index in range(0, len(documents) if looked < MOST_LOOKED_AT else 0, -(-len(documents) // LOOKED_AT) or 1):
            where = self.describe_row(int(documents.rows[index]))
            look_for_not_text(self.not_text, documents.start_of(index, MOST_CHARACTERS), where)

    def room(self, step: str, most: int = SHOWN) -> int:
        """Return how many more documents of a step may be kept to show: more would only grow the receipt."""
        return max(0, most - sum(document.step == step for document in self.shown))

    def show(self, row: int, reason: str, text: str = "", **measured: Any) -> None:
        """Keep a dropped document to show; `measured` is its measure, value and limit, if one decided."""
        name = ""
        if self.locate:
            span, row = self.locate(row)
            name = span.name
        self.shown.append(DroppedDocument(name, row, reason, text, **measured))

    def drop(self, step: str, documents: Documents, found: dict[int, str], *, show_text: bool = True) -> Documents:
        """Count what a filter drops, keep some of it to show, and return the other documents.

        Args:
            step: the filter's step in the table of drops.
            documents: the documents.
            found: the reason of each document that is dropped, by its index, in order.
            show_text: whether the beginning of their text may be shown.
        """
        self.drops.step(step).decided.documents += len(documents)
        self.drops.count_rows(Counter(found.values()))
        for index in list(found)[: self.room(step)]:
            text = documents.start_of(index) if show_text else ""
            self.show(int(documents.rows[index]), found[index], text)
        kept = np.ones(len(documents), bool)
        kept[list(found)] = False
        return documents.only(kept)
