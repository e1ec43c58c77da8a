"""Find the place of tokens or windows in a set: their document with its source, unit and row, and text around them.

Costs one pass over the document table of each shard involved, up to the last row needed.
"""

# pyright: reportUnknownMemberType=false
import codecs
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shards.errors import set_error
from shards.format.arrays import Tokens
from shards.format.shard import Shard, iter_documents
from shards.format.vocabulary import Vocabulary
from shards.format.windows.order import Window, WindowOrder
from shards.terminal.display import printable


@dataclass(frozen=True, slots=True)
class Place:
    """One document of a set: its number in its shard, its tokens [start, start + tokens) there, where it came from."""

    shard: str
    document: int
    start: int
    tokens: int
    source: str
    unit: str
    row: int
    hash: str
    phase: str | None = None
    """The phase that its shard belongs to; None for validation, and in a set without phases."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the place of tokens, with its phase if it has one."""
        data = asdict(self)
        if self.phase is None:
            del data["phase"]
        return data


def find_places(shard: Shard, numbers: Sequence[int]) -> list[Place]:
    """Return the places of documents of a shard, in ascending order of their numbers.

    Raises:
        ShardSetError: the document table is not what the manifest says.
    """
    wanted = np.unique(np.asarray(numbers, np.int64))
    found: list[Place] = []
    if not len(wanted):
        return found
    first = 0
    for batch in iter_documents(shard):
        here = wanted[(wanted >= first) & (wanted < first + batch.num_rows)]
        # Not with `take`, which needs an Arrow array: pa.array loads pandas, which takes half a second.
        rows: list[dict[str, Any]] = [batch.slice(at, 1).to_pylist()[0] for at in (here - first).tolist()]
        for number, row in zip(here.tolist(), rows, strict=True):
            start, length = row["start"], row["length"]
            if not 0 < length <= shard.num_tokens - start:
                message = f"tokens [{start}, {start + length}) of {shard.num_tokens}; expected a range inside the shard"
                raise set_error("document_table", f"{shard.name} document {number}", message)
            found.append(
                Place(
                    shard.name,
                    number,
                    start,
                    length,
                    row["source"],
                    row["unit"],
                    row["row"],
                    bytes(row["hash"]).hex(),
                    shard.entry.phase,
                )
            )
        first += batch.num_rows
        if first > int(wanted[-1]):
            break
    return found


def find_holders(shard: Shard, ranges: Sequence[tuple[int, int]]) -> list[list[Place]]:
    """Locate tokens: return the documents that hold [start, stop) of a shard, in order, for each of some ranges.

    Args:
        shard: the shard.
        ranges: each not empty, and inside the shard.

    Raises:
        ShardSetError: the document table is not what the manifest says.
    """
    batches = iter_documents(shard, ["start"])
    # Only the column of starts is read for all rows.
    begins = np.concatenate(
        [np.empty(0, np.int64), *(np.from_dlpack(b.column("start")).astype(np.int64) for b in batches)]
    )
    bounds = np.asarray(ranges, np.int64).reshape(-1, 2)
    firsts = np.maximum(np.searchsorted(begins, bounds[:, 0], "right") - 1, 0)
    lasts = np.searchsorted(begins, bounds[:, 1], "left")
    # The documents of all ranges are looked up at once.
    numbers = [number for pair in zip(firsts, lasts, strict=True) for number in range(*pair)]
    places = {place.document: place for place in find_places(shard, numbers)}
    found: list[list[Place]] = []
    for (start, stop), first, last in zip(ranges, firsts.tolist(), lasts.tolist(), strict=True):
        held = [places[number] for number in range(first, last)]
        ends = [place.start + place.tokens for place in held]
        # A table with a gap or an overlap would give a wrong document without a word.
        follow = all(place.start == end for place, end in zip(held[1:], ends, strict=False))
        if not held or held[0].start > start or ends[-1] < stop or not follow:
            message = f"not every token of [{start}, {stop}) is in one document; expected them to follow one another"
            raise set_error("document_table", shard.name, f"{message}. Validate the set.")
        found.append(held)
    return found


def find_window_documents(
    shards: Sequence[Shard], order: WindowOrder, first: int, count: int
) -> Iterator[tuple[int, Window, list[Place]]]:
    """Yield the windows, or the pieces of the packed rows, [first, first + count): the row among them, the window, and
    the documents of its tokens, in order.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    for visit, rows, at in order.group_by_visit(np.arange(first, first + count)):
        found = order.list_windows(visit, at)
        # The token before a piece's first target may be the EOS of another document.
        skipped = order.unit == "row"
        holders = find_holders(shards[visit.shard], [(window.start + skipped, window.stop) for _, window in found])
        for (index, window), places in zip(found, holders, strict=True):
            yield int(rows[index]), window, places


CONTEXT_BYTES = 120
"""Bytes of text shown on each side of a hit."""
_CONTINUING = bytes(range(0x80, 0xC0))
"""The bytes of UTF-8 that continue a character."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A hit and the text on either side of it; bytes that are not UTF-8 are lone surrogates.

    For a long hit, `hit` is its beginning, `left_out` counts the rest in bytes, and `after` is empty.
    """

    before: str
    hit: str
    after: str
    left_out: int = 0


def show_place(place: Place, where: str, excerpt: Excerpt) -> Iterator[str]:
    """Yield what a command prints of a place: a line that says where a document is from, and a line of its text."""
    origin = f"source {place.source}, unit {place.unit}, row {place.row}, hash {place.hash}"
    if place.phase is not None:
        origin = f"phase {place.phase}, {origin}"
    yield f"# {place.shard} document {place.document}, {where}: {origin}"
    left_out = f" ({excerpt.left_out:,} bytes more)" if excerpt.left_out else ""
    yield f"  {printable(excerpt.before)}>>>{printable(excerpt.hit)}<<<{left_out}{printable(excerpt.after)}"


def cut_tokens(tokens: Tokens, first: int, last: int, vocabulary: Vocabulary) -> tuple[int, Excerpt]:
    """Return the excerpt around the tokens [first, last) of a document's, and the byte of its text that they begin at.

    Raises:
        IndexError: an id is outside the vocabulary.
    """
    before, hit, after = (vocabulary.decode(part) for part in (tokens[:first], tokens[first:last], tokens[last:-1]))
    begin, skipped = vocabulary.split_document(tokens[:-1])
    # BOS and the tokenizer's prefix do not count as text, unless the hit is BOS itself.
    hidden = len(vocabulary.decode(tokens[:begin])) + skipped if last > begin else 0
    start, stop = (max(0, at - hidden) for at in (len(before), len(before) + len(hit)))
    return start, cut_excerpt((before + hit + after)[hidden:], start, stop)


def cut_excerpt(text: bytes, start: int, end: int, *, around: int = CONTEXT_BYTES) -> Excerpt:
    """Return the excerpt around the bytes [start, end) of a text: `around` bytes on each side, cut between characters.

    For a hit of more than `2 * around` bytes, only its beginning is returned, without the text after it; `left_out`
    counts the rest.
    """
    stop, low = min(end, start + 2 * around), max(0, start - around)
    # Bytes that continue a character are skipped at the beginning, and one that is not whole at an end is left out.
    before = text[low:start].lstrip(_CONTINUING) if low else text[:start]
    hit = decode_beginning(text[start:stop], final=stop == end)
    after = "" if stop < end else decode_beginning(text[end : end + around], final=end + around >= len(text))
    left_out = end - start - len(hit.encode("utf-8", "surrogateescape"))
    return Excerpt(before.decode("utf-8", "surrogateescape"), hit, after, left_out)


def decode_beginning(text: bytes, *, final: bool) -> str:
    """Return the beginning of a text as an excerpt has it: without a character at its end that is cut, unless final."""
    return codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(text, final)
