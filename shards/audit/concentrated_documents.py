"""Find documents that are full of concentrated ids: template triples, hex tables, log dumps, word lists.

An id is *concentrated* when more than half of its training occurrences are in documents that hold few of the set's
tokens (`rules.is_concentrated`). One concentrated id may be the subject of an honest document, which names it now and
then. Generated documents name several all the time, so a document is listed by the *share* of concentrated ids in it:
their occurrences, by these and all its other tokens with a letter (a log has as many brackets as words).

Two passes read the tokens again. The first counts the documents of each id in training; the second lists documents of
both splits. Not found: words that the tokenizer cuts into ids that other documents have, too.

Memory: 1.5 KB for each judged id, and the listed documents. Documents are counted by how often they hold an id, exactly
up to 8 times and within a fifth above.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shards.audit.figures import Totals
from shards.audit.rules import LISTED_SHARE, LOOK_LISTED_SHARE, MIN_LISTED, is_concentrated, most_occurrences
from shards.errors import plural
from shards.format.arrays import Bools, Int64s, UInt8s
from shards.format.document_table import iter_blocks
from shards.format.reader import ShardSet
from shards.format.vocabulary import Vocabulary
from shards.terminal.display import JsonObject, Table
from shards.terminal.reporter import Advance
from shards.terminal.workers import map_tasks
from shards.trace.locate import Place, find_places

MAX_REASONS = 3
"""Ids that are named for a listed document: the most frequent in it."""

BINS_A_DOUBLING = 4
SPREAD_BINS = 64
"""By which an id's documents are told apart: by how often they hold it, within a fifth; the last one has all above."""


@dataclass(frozen=True)
class Concentrated:
    """The concentrated ids of a set, and the documents that are full of them.

    Attributes:
        ids: the concentrated ids, those with the most occurrences in listed documents first. `half_documents` are those
            with the most occurrences, as many as hold more than half of them all; `half_tokens` are their tokens;
            `listed` counts occurrences in listed documents of both splits.
        documents: the listed documents of both splits, in the order of the set, and why each is listed.
        sources: of each source that has some, the listed documents, their tokens, and their share of its tokens.
    """

    ids: Table
    documents: list[tuple[Place, str]]
    sources: Table

    @property
    def reasons(self) -> dict[bytes, str]:
        """Why each document is listed, by its content hash; of equal ones the first's."""
        return {bytes.fromhex(place.hash): reason for place, reason in reversed(self.documents)}

    @property
    def hashes(self) -> UInt8s:
        """The content hashes of the listed documents, uint8 `(documents, 16)`."""
        return np.frombuffer(b"".join(self.reasons), np.uint8).reshape(-1, 16)

    def to_dict(self) -> JsonObject:
        """Return the result as JSON, without the documents, which the block list has."""
        return {
            "listed_share": LISTED_SHARE,
            "documents": len(self.documents),
            "tokens": sum(row["tokens"] for row in self.sources),
            "sources": self.sources,
            "warnings": [
                f"the block list takes {row['share']:.1%} of the tokens of {row['source']}, more than "
                f"{LOOK_LISTED_SHARE:.0%}: read some of its documents before you drop them"
                for row in self.sources
                if row["share"] > LOOK_LISTED_SHARE
            ],
            "ids": self.ids,
        }


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
    # The ids that may be concentrated, by the documents that hold them.
    judged = (counts >= below) & (counts <= most_occurrences(tokens)) & _mask(vocabulary, _is_text)
    spread = np.zeros((3, int(judged.sum()), SPREAD_BINS), np.int64)
    for number, part in map_tasks(_count_documents, (shard_set, judged), train, workers):
        spread += part
        advance(shard_set.shards[number].num_tokens)
    halves = {
        token: half
        for token, *half in np.column_stack([np.flatnonzero(judged), find_halves(spread)]).tolist()
        if is_concentrated(half[1], half[2], of=tokens)
    }
    # The documents that are full of them.
    concentrated = np.zeros(len(vocabulary), np.bool_)
    concentrated[list(halves)] = True
    search = (shard_set, concentrated, _mask(vocabulary, _has_letter), counts)
    documents: list[tuple[Place, str]] = []
    listed = np.zeros(len(vocabulary), np.int64)
    for number, (held, found) in map_tasks(_list_documents, search, everything, workers):
        listed += held
        documents += found
        advance(shard_set.shards[number].num_tokens)
    ids: Table = [
        {
            "id": token,
            "text": vocabulary.spell(token),
            "count": int(counts[token]),
            "documents": int(totals.train.documents[token]),
            "half_documents": half_documents,
            "half_tokens": half_tokens,
            "listed": int(listed[token]),
        }
        for token, (half_documents, _, half_tokens) in halves.items()
    ]
    ids.sort(key=lambda row: -row["listed"])
    lengths: dict[str, list[int]] = {name: [] for name in totals.source_names}
    for place, _ in documents:
        lengths[place.source].append(place.tokens)
    sources: Table = [
        {"source": name, "documents": len(own), "tokens": sum(own), "share": sum(own) / tokens}
        for (name, own), tokens in zip(lengths.items(), totals.source_tokens.tolist(), strict=True)
        if own
    ]
    return Concentrated(ids, documents, sources)


def _count_documents(search: tuple[ShardSet, Bools], number: int) -> Int64s:
    """Return how judged ids are spread over a shard's documents, as `find_halves` takes it."""
    shard_set, judged = search
    rows = np.cumsum(judged) - 1  # of each judged id
    spread = np.zeros((3, int(judged.sum()), SPREAD_BINS), np.int64)
    for block in iter_blocks(shard_set, number):
        places = np.flatnonzero(judged[block.tokens])
        pairs, held = np.unique(block.rows_at(places) * len(judged) + block.tokens[places], return_counts=True)
        documents, ids = np.divmod(pairs, len(judged))
        at = rows[ids], np.minimum((BINS_A_DOUBLING * np.log2(held)).astype(np.int64), SPREAD_BINS - 1)
        for table, values in zip(spread, (np.ones_like(held), held, block.lengths[documents]), strict=True):
            np.add.at(table, at, values)
    return spread


def find_halves(spread: Int64s) -> Int64s:
    """Return the documents with the most of each id, as many as hold more than half of it.

    Args:
        spread: documents, occurrences in them and their tokens, int64 `(3, ids, SPREAD_BINS)`: by id, and by the bin
            of the id's occurrences in a document.

    Returns:
        The same three numbers of these documents, int64 `(ids, 3)`.
    """
    sums = spread[:, :, ::-1].cumsum(axis=2)  # from the documents with the most occurrences on
    half = np.argmax(2 * sums[1] > sums[1, :, -1:], axis=1)
    return sums[:, np.arange(len(half)), half].T


def _list_documents(
    search: tuple[ShardSet, Bools, Bools, Int64s], number: int
) -> tuple[Int64s, list[tuple[Place, str]]]:
    """Return how often each concentrated id is in a shard's listed documents, and these with their reasons.

    The search is of a set, by which ids are concentrated, which have a letter, and how often each occurs.
    """
    shard_set, concentrated, letters, totals = search
    vocabulary = shard_set.vocabulary
    listed = np.zeros(len(letters), np.int64)
    found: dict[int, str] = {}
    for block in iter_blocks(shard_set, number) if concentrated.any() else ():
        # The share of a document is that of its concentrated ids among these and all its tokens with letters.
        held = concentrated[block.tokens]
        others = letters[block.tokens] & ~held
        times = np.add.reduceat(held, block.starts, dtype=np.int64)
        shares = times / np.maximum(times + np.add.reduceat(others, block.starts, dtype=np.int64), 1)
        for row in np.flatnonzero((shares >= LISTED_SHARE) & (times >= MIN_LISTED)).tolist():
            here = slice(int(block.starts[row]), int(block.ends[row]))
            counts = np.bincount(block.tokens[here][held[here]], minlength=len(listed))
            listed += counts
            # The ids that a document holds most are the reasons to list it.
            named = [
                f'"{vocabulary.spell(token)}" {plural(int(counts[token]), "time")} '
                f"({counts[token] / totals[token]:.2%} of {totals[token]:,} in all)"
                for token in np.argsort(-counts, kind="stable")[:MAX_REASONS].tolist()
                if counts[token]
            ]
            found[block.document + row] = f"share {shares[row]:.0%}: {'; '.join(named)}"
    places = find_places(shard_set.shards[number], list(found))
    return listed, [
        (
            place,
            f"{place.source}, {place.unit} row {place.row}: {plural(place.tokens, 'token')}, {found[place.document]}",
        )
        for place in places
    ]


def _mask(vocabulary: Vocabulary, holds: Callable[[bytes], bool]) -> Bools:
    """Return for which ids, no special ones, `holds(entry)` is true, bool `(vocab_size,)`."""
    return np.array([holds(entry) for entry in vocabulary.entries], np.bool_) & ~vocabulary.special_mask()


def _is_text(entry: bytes) -> bool:
    """Return whether an entry is whole characters. A part of one is in many words."""
    try:
        return bool(entry.decode("utf-8").strip())
    except UnicodeDecodeError:
        return False


def _has_letter(entry: bytes) -> bool:
    return any(byte >= 0x80 or chr(byte).isalpha() for byte in entry)
