"""Find documents that are full of concentrated ids: template triples, hex tables, log dumps, word lists.

An id is *concentrated* when more than half of its training occurrences are in documents that hold few of the set's
tokens (`rules.is_concentrated`). One concentrated id may be the subject of an honest document, which names it now and
then. Generated documents name several all the time, so a document is listed by the *share* of concentrated ids in it:
their occurrences, by these and all its other tokens with a letter (a log has as many brackets as words).

Two passes read the tokens again. The first counts the documents of each id in training; the second lists documents of
both splits. Not found: words that the tokenizer cuts into ids that other documents have, too.

Memory: a few dozen rows for each id, and the listed documents. Documents are counted by how often they hold an id, in
the bins of `shards.audit.histogram`: exact below 64 occurrences, within 1.6 % above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from shards.audit.histogram import BINS, bin_lengths
from shards.audit.rules import LISTED_SHARE, LOOK_LISTED_SHARE, MIN_LISTED, is_concentrated, most_occurrences
from shards.audit.totals import Totals, find_firsts
from shards.errors import plural
from shards.format.arrays import Bools, Int64s, UInt8s
from shards.format.document_blocks import iter_blocks
from shards.format.reader import ShardSet
from shards.format.vocabulary import Vocabulary
from shards.terminal.display import Table
from shards.terminal.reporter import Advance
from shards.terminal.workers import map_tasks
from shards.trace.locate import Place, find_places

SearchT = TypeVar("SearchT")
ResultT = TypeVar("ResultT")

MAX_REASONS = 3
"""Ids that are named for a listed document: the most frequent in it."""

BLOCKS_TOGETHER = 64
"""Blocks whose rows wait before they are added up: 4 M tokens."""


@dataclass(frozen=True)
class ConcentratedId:
    """A concentrated id.

    Attributes:
        id: the id.
        text: its text; bytes that are not UTF-8 on their own are spelt out, such as `\\xe2`.
        count: its occurrences in training.
        documents: training documents that hold it.
        half_documents: the documents with the most occurrences, as many as hold more than half of them all.
        half_tokens: tokens of these.
        listed: its occurrences in listed documents of both splits.
    """

    id: int
    text: str
    count: int
    documents: int
    half_documents: int
    half_tokens: int
    listed: int = 0


@dataclass(frozen=True, slots=True)
class ListedDocument:
    """A document full of concentrated ids: its place, their share in it, and the most frequent of them with counts."""

    place: Place
    share: float
    reasons: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Concentrated:
    """The concentrated ids of a set, and the documents that are full of them.

    Attributes:
        ids: the concentrated ids, those with the most occurrences in listed documents first.
        documents: the listed documents of both splits, in the order of the set.
        source_tokens: tokens of each source in the set, both splits.
    """

    ids: list[ConcentratedId]
    documents: list[ListedDocument]
    source_tokens: dict[str, int]

    @property
    def hashes(self) -> UInt8s:
        """The content hashes of the listed documents, uint8 `(documents, 16)`."""
        # All hashes in one string of digits: one conversion instead of one for each document.
        digits = "".join(document.place.hash for document in self.documents)
        return np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(-1, 16)

    @property
    def tokens(self) -> int:
        """Tokens of the listed documents."""
        return sum(document.place.tokens for document in self.documents)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the result, without the documents, which the block list has."""
        return {
            "listed_share": LISTED_SHARE,
            "documents": len(self.documents),
            "tokens": self.tokens,
            "sources": self.sources(),
            "warnings": self.warnings(),
            "ids": [asdict(row) for row in self.ids],
        }

    def sources(self) -> Table:
        """Return, for each source with listed documents, their number, their tokens, and the share of its tokens."""
        listed: dict[str, list[int]] = {name: [] for name in self.source_tokens}
        for document in self.documents:
            listed[document.place.source].append(document.place.tokens)
        return [
            {
                "source": name,
                "documents": len(tokens),
                "tokens": sum(tokens),
                "share": sum(tokens) / self.source_tokens[name],
            }
            for name, tokens in listed.items()
            if tokens
        ]

    def warnings(self) -> list[str]:
        """Return a sentence for each source that loses a large share to the block list."""
        return [
            f"the block list takes {row['share']:.1%} of the tokens of {row['source']}, more than "
            f"{LOOK_LISTED_SHARE:.0%}: read some of its documents before you drop them"
            for row in self.sources()
            if row["share"] > LOOK_LISTED_SHARE
        ]

    def reasons(self) -> dict[bytes, str]:
        """Return why each document is listed: a line of text for each content hash."""
        known = {row.id: row for row in self.ids}
        lines: dict[bytes, str] = {}
        for document in self.documents:
            place = document.place
            named = [
                f'"{known[token].text}" {plural(times, "time")} ({times / known[token].count:.2%} of '
                f"{known[token].count:,} in all)"
                for token, times in document.reasons
            ]
            origin = f"{place.source}, {place.unit} row {place.row}: {plural(place.tokens, 'token')}"
            # Equal documents have one hash, and the reason of the first.
            lines.setdefault(bytes.fromhex(place.hash), f"{origin}, share {document.share:.0%}: {'; '.join(named)}")
        return lines


class _ListSearch(NamedTuple):
    """What lists documents: the set, which ids are concentrated, and which have a letter."""

    shard_set: ShardSet
    concentrated: Bools
    letters: Bools


def find_concentrated(
    shard_set: ShardSet, totals: Totals, *, below: int, workers: int, advance: Advance
) -> Concentrated:
    """Find concentrated ids, and the documents that are full of them.

    Args:
        shard_set: the set.
        totals: its counts.
        below: ids with fewer occurrences in training are not judged.
        workers: number of processes; the result does not depend on it.
        advance: called with the tokens read since the last call; training is read twice, validation once.

    Raises:
        ShardSetError: the set's files are not what the manifest says.
        ValueError: the tokenizer is not byte-level.
        OSError: a file cannot be read.
    """
    vocabulary, tokens, counts = shard_set.vocabulary, totals.train.tokens, totals.train.id_counts
    everything = range(len(shard_set.shards))
    train = [number for number in everything if shard_set.shards[number].entry.split == "train"]

    def read(function: Callable[[SearchT, int], ResultT], search: SearchT, shards: Sequence[int]) -> Iterator[ResultT]:
        """Yield the result of each shard in one pass."""
        for number, result in map_tasks(function, search, shards, workers):
            yield result
            advance(shard_set.shards[number].num_tokens)

    # The ids that may be concentrated, by the documents that hold them.
    judged = (counts >= below) & (counts <= most_occurrences(tokens)) & _mask(vocabulary, _is_text)
    spread = _no_rows()
    for part in read(_count_documents, (shard_set, judged), train):
        spread = add_up([spread, part])
    ids = [
        ConcentratedId(token, vocabulary.spell([token]), count, documents, half_documents, half_tokens)
        for token, count, documents, half_documents, half_count, half_tokens in find_halves(spread).tolist()
        if is_concentrated(half_count, half_tokens, of=tokens)
    ]
    # The documents that are full of them.
    concentrated = np.zeros(len(vocabulary), np.bool_)
    concentrated[[row.id for row in ids]] = True
    search = _ListSearch(shard_set, concentrated, _mask(vocabulary, _has_letter))
    documents: list[ListedDocument] = []
    listed = np.zeros(len(vocabulary), np.int64)
    for held, found in read(_list_documents, search, everything):
        listed += held
        documents += found
    ids = sorted((replace(row, listed=int(listed[row.id])) for row in ids), key=lambda row: -row.listed)
    return Concentrated(ids, documents, dict(zip(totals.source_names, totals.source_tokens.tolist(), strict=True)))


def _count_documents(search: tuple[ShardSet, Bools], number: int) -> Int64s:
    """Return the rows of `add_up` of the judged ids in a shard."""
    shard_set, judged = search
    parts: list[Int64s] = []
    for block in iter_blocks(shard_set, number):
        places = np.flatnonzero(judged[block.tokens])
        pairs, held = np.unique(block.rows_at(places) * len(judged) + block.tokens[places], return_counts=True)
        documents, ids = np.divmod(pairs, len(judged))
        keys = ids * BINS + bin_lengths(held)
        parts.append(np.stack([keys, np.ones_like(held), held, block.lengths[documents]]))
        if len(parts) == BLOCKS_TOGETHER:
            parts = [add_up(parts)]
    return add_up(parts)


def _no_rows() -> Int64s:
    return np.empty((4, 0), np.int64)


def add_up(parts: Sequence[Int64s]) -> Int64s:
    """Add up how ids are spread over documents: rows with equal keys become one, in order of keys.

    Args:
        parts: int64 `(4, rows)` each: `id * BINS + bin` of the id's occurrences in a document; documents; occurrences
            in them; tokens of them.
    """
    rows = np.concatenate([_no_rows(), *parts], axis=1)
    rows = rows[:, np.argsort(rows[0], kind="stable")]
    first = find_firsts(rows[0])
    return np.stack([rows[0][first], *np.add.reduceat(rows[1:], first, axis=1)]) if len(first) else rows


def find_halves(rows: Int64s) -> Int64s:
    """Return the documents with the most occurrences of each id, as many as hold more than half of them all.

    Args:
        rows: from `add_up`.

    Returns:
        In order of ids, int64 `(ids, 6)`: the id; its occurrences; the documents that hold it; and of those with the
        most occurrences their number, the occurrences in them, and their tokens.
    """
    if not rows.shape[1]:
        return np.empty((0, 6), np.int64)
    # Sums over the rows of each id, from the documents with the most occurrences on.
    rows = rows[:, ::-1]
    ids = rows[0] // BINS
    first = find_firsts(ids)
    sizes = np.diff(np.append(first, len(ids)))
    sums = np.cumsum(rows[1:], axis=1)
    sums -= np.repeat(sums[:, first] - rows[1:, first], sizes, axis=1)
    totals = sums[:, first + sizes - 1]
    # The first row at which the sum is more than half.
    more = np.flatnonzero(2 * sums[1] > np.repeat(totals[1], sizes))
    half = sums[:, more[find_firsts(ids[more])]]
    return np.stack([ids[first], totals[1], totals[0], *half], axis=1)[::-1]


def _list_documents(search: _ListSearch, number: int) -> tuple[Int64s, list[ListedDocument]]:
    """Return the occurrences of each id in the listed documents of a shard, and these documents."""
    listed = np.zeros(len(search.letters), np.int64)
    found: list[tuple[int, float, tuple[tuple[int, int], ...]]] = []
    for block in iter_blocks(search.shard_set, number) if search.concentrated.any() else ():
        # The share of a document is that of its concentrated ids among these and all its tokens with letters.
        held = search.concentrated[block.tokens]
        others = search.letters[block.tokens] & ~held
        times = np.add.reduceat(held, block.starts, dtype=np.int64)
        shares = times / np.maximum(times + np.add.reduceat(others, block.starts, dtype=np.int64), 1)
        for row in np.flatnonzero((shares >= LISTED_SHARE) & (times >= MIN_LISTED)).tolist():
            here = slice(int(block.starts[row]), int(block.ends[row]))
            counts = np.bincount(block.tokens[here][held[here]], minlength=len(listed))
            listed += counts
            # The ids that a document holds most are the reasons to list it.
            most = np.argsort(-counts, kind="stable")[:MAX_REASONS].tolist()
            reasons = tuple((token, int(counts[token])) for token in most if counts[token])
            found.append((block.document + row, float(shares[row]), reasons))
    places = find_places(search.shard_set.shards[number], [document for document, _, _ in found])
    return listed, [
        ListedDocument(place, share, reasons) for place, (_, share, reasons) in zip(places, found, strict=True)
    ]


def _mask(vocabulary: Vocabulary, holds: Callable[[bytes], bool]) -> Bools:
    """Return for which ids, special ones left out, `holds(entry)` is true, bool `(vocab_size,)`."""
    return np.array([holds(entry) for entry in vocabulary.entries], np.bool_) & ~vocabulary.special_mask()


def _is_text(entry: bytes) -> bool:
    """Return whether an entry is whole characters. A part of a character is in many words."""
    try:
        return bool(entry.decode("utf-8").strip())
    except UnicodeDecodeError:
        return False


def _has_letter(entry: bytes) -> bool:
    return any(byte >= 0x80 or chr(byte).isalpha() for byte in entry)
