"""Find documents that are full of concentrated ids and words: template triples, hex tables, log dumps, word lists.

An id is *concentrated* when more than half of its training occurrences are in documents that hold few of the set's
tokens (`rules.is_concentrated`). One concentrated id may be the subject of an honest document, which names it now and
then. Generated documents name several all the time, so a document is listed by the *share* of concentrated ids and
words in it: their occurrences, by these and all its other tokens with a letter (a log has as many brackets as words). A
repository needs no rule of its own: an id that one small repository holds is held by few documents.

Three passes read the tokens again. The first counts the documents of each id, and collects candidates among words of
several tokens; the second counts the documents of these words; the third lists documents of both splits. So every id
and word that is reported has been counted exactly.

Memory: a few dozen rows for each id and candidate (`Spread`), the candidates (`Candidates`), and the listed documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from shards.audit.rules import LOOK_LISTED_SHARE, MIN_LISTED, is_concentrated, most_occurrences
from shards.audit.spread import Spread, count_spread_pairs
from shards.audit.totals import Totals
from shards.audit.word_finder import Candidates, WordFinder, Words
from shards.errors import plural
from shards.format.arrays import Bools, Int64s, UInt8s, UInt64s
from shards.format.document_blocks import DocumentBlock, iter_blocks
from shards.format.reader import ShardSet
from shards.format.vocabulary import Vocabulary
from shards.terminal.display import Table
from shards.terminal.reporter import Advance
from shards.terminal.workers import map_tasks
from shards.trace.locate import Place, find_places

SearchT = TypeVar("SearchT")
ResultT = TypeVar("ResultT")

SHOWN_CHARACTERS = 40
"""Characters of a word that a block list shows."""

MAX_REASONS = 3
"""Ids and words that are named for a listed document: the most frequent in it."""


@dataclass(frozen=True)
class Term:
    """A concentrated id, or a concentrated word of several tokens.

    Attributes:
        ids: its ids; one for an id.
        text: the text of its ids; bytes that are not UTF-8 on their own are spelt out, such as `\\xe2`.
        listed: its occurrences in listed documents of both splits.
        count: its occurrences in training.
        documents: training documents that hold it.
        half_documents: the documents with the most occurrences, as many as hold more than half of them all.
        half_count: its occurrences in these.
        half_tokens: tokens of these.
    """

    ids: tuple[int, ...]
    text: str
    listed: int
    count: int
    documents: int
    half_documents: int
    half_count: int
    half_tokens: int


@dataclass(frozen=True, slots=True)
class ListedDocument:
    """A document full of concentrated ids and words.

    Attributes:
        place: the document.
        share: the share of concentrated ids and words in it.
        reasons: the ids and words that are most frequent in it: number in `Concentrated.terms`, occurrences in it.
        repository: its repository, if that was read from the source; else empty.
    """

    place: Place
    share: float
    reasons: tuple[tuple[int, int], ...]
    repository: str = ""


@dataclass
class Concentrated:
    """The concentrated ids and words of a set, and the documents that are full of them.

    Attributes:
        share: documents with this share of concentrated ids and words, or more, are listed.
        terms: concentrated ids and words, those with the most occurrences in listed documents first.
        documents: the listed documents of both splits, in the order of the set.
        source_tokens: tokens of each source in the set, both splits.
    """

    share: float
    terms: list[Term]
    documents: list[ListedDocument]
    source_tokens: dict[str, int]

    @property
    def hashes(self) -> UInt8s:
        """The content hashes of the listed documents, uint8 `(documents, 16)`."""
        # All hashes in one string of digits: one conversion instead of one for each document.
        digits = "".join(document.place.hash for document in self.documents)
        return np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(-1, 16)

    @property
    def asked(self) -> str:
        """The flags of the search."""
        return f"audit --listed-share {self.share:g}: documents full of ids and words that few documents hold"

    @property
    def tokens(self) -> int:
        """Tokens of the listed documents."""
        return sum(document.place.tokens for document in self.documents)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the result, without the documents, which the block list has."""
        return {
            "listed_share": self.share,
            "documents": len(self.documents),
            "tokens": self.tokens,
            "sources": self.sources(),
            "places": self.places(),
            "warnings": self.warnings(),
            "terms": [asdict(term) for term in self.terms],
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

    def places(self) -> Table:
        """Return how many listed documents each repository has, or each file if that is not known, most first.

        Of files that are one document each, those with the same first folder, such as a repository, count together.
        """
        # The repository says more than the file, where it is known.
        counts = Counter(
            (document.place.source, document.repository or _file_of(document.place.unit)) for document in self.documents
        )
        order = sorted(counts, key=lambda place: (-counts[place], place))
        return [{"source": source, "place": name, "documents": counts[source, name]} for source, name in order]

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
        lines: dict[bytes, str] = {}
        for document in self.documents:
            named: list[str] = []
            for number, times in document.reasons:
                term = self.terms[number]
                share = f"{times / term.count:.2%} of {term.count:,} in all"
                named.append(f'"{_cut(term.text)}" {plural(times, "time")} ({share})')
            place, owner = document.place, f", {document.repository}" if document.repository else ""
            origin = f"{place.source}{owner}, {place.unit}: {plural(place.tokens, 'token')}"
            # Equal documents have one hash, and the reason of the first.
            line = f"{origin}, share {document.share:.0%}: {'; '.join(named)}"
            lines.setdefault(bytes.fromhex(place.hash), line)
        return lines


class _ListSearch(NamedTuple):
    """The terms to search documents for: `numbers` has the term of each id, -1 for none; from `first_word` on they are
    the words with these `hashes`, sorted. `letters` says which ids have a letter."""

    shard_set: ShardSet
    share: float
    letters: Bools
    numbers: Int64s
    first_word: int
    hashes: UInt64s
    finder: WordFinder


def find_concentrated(
    shard_set: ShardSet,
    totals: Totals,
    *,
    below: int,
    share: float,
    workers: int,
    advance: Advance,
) -> Concentrated:
    """Find concentrated ids and words, and the documents that are full of them.

    Args:
        shard_set: the set.
        totals: its counts.
        below: ids and words with fewer occurrences in training are not judged.
        share: list documents with this share of concentrated ids and words, or more.
        workers: number of processes; the result does not depend on it.
        advance: called with the tokens read since the last call; training is read three times, validation once.

    Raises:
        ShardSetError: the set's files are not what the manifest says.
        ValueError: the tokenizer is not byte-level.
        OSError: a file cannot be read.
    """
    vocabulary, tokens = shard_set.vocabulary, totals.train.tokens
    counts = totals.train.id_counts
    finder = WordFinder(vocabulary)
    text_of = vocabulary.spell
    everything = range(len(shard_set.shards))
    train = [number for number in everything if shard_set.shards[number].entry.split == "train"]

    def read(function: Callable[[SearchT, int], ResultT], search: SearchT, shards: Sequence[int]) -> Iterator[ResultT]:
        """Yield the result of each shard in one pass."""
        for number, result in map_tasks(function, search, shards, workers):
            yield result
            advance(shard_set.shards[number].num_tokens)

    # The ids that may be concentrated, and candidates among words.
    judged = (counts >= below) & (counts <= most_occurrences(tokens)) & _mask(vocabulary, _is_text)
    ids, candidates = Spread(), Candidates()
    for rows, found in read(_count_ids, (shard_set, judged, finder), train):
        ids.merge(rows)
        candidates.merge(found)

    # The candidates, counted exactly.
    chosen = candidates.choose(below)
    words = Spread()
    for rows in read(_count_words, (shard_set, chosen["hash"], finder), train):
        words.merge(rows)

    # Terms are numbered: ids first, then words.
    terms = [Term((token,), text_of([token]), 0, *half) for token, *half in _choose(ids, below=below, tokens=tokens)]
    numbers = np.full(len(vocabulary), -1, np.int64)
    numbers[[term.ids[0] for term in terms]] = np.arange(len(terms))
    # The ids of a word are read at the place of one of its occurrences.
    halves = _choose(words, below=below, tokens=tokens)
    known = chosen[[word for word, *_ in halves]]
    for (_, *half), row in zip(halves, known, strict=True):
        start, stop = int(row["start"]), int(row["start"] + row["width"])
        own: list[int] = shard_set.shards[int(row["shard"])].read(start, stop).tolist()
        terms.append(Term(tuple(own), text_of(own), 0, *half))

    # The documents that are full of them.
    letters, first_word = _mask(vocabulary, _has_letter), len(terms) - len(halves)
    search = _ListSearch(shard_set, share, letters, numbers, first_word, known["hash"], finder)
    documents: list[ListedDocument] = []
    listed = np.zeros(len(terms), np.int64)
    for held, part in read(_list_documents, search, everything):
        listed += held
        documents += part
    source_tokens = dict(zip(totals.source_names, totals.source_tokens.tolist(), strict=True))
    return _sort_terms(Concentrated(share, terms, documents, source_tokens), listed)


def _choose(spread: Spread, *, below: int, tokens: int) -> list[list[int]]:
    """Return the rows of `Spread.halves` of the concentrated terms."""
    rows: list[list[int]] = spread.halves().tolist()
    return [row for row in rows if row[1] >= below and is_concentrated(*row[-2:], of=tokens)]


def _count_ids(search: tuple[ShardSet, Bools, WordFinder], number: int) -> tuple[Int64s, Candidates]:
    """Return the rows of `Spread` of the judged ids of a shard, and its candidates among words."""
    shard_set, judged, finder = search
    spread, candidates = Spread(), Candidates()
    for block in iter_blocks(shard_set, number):
        # Only occurrences of ids that may be concentrated are counted.
        places = np.flatnonzero(judged[block.tokens])
        pairs = count_spread_pairs(block.rows_at(places), block.tokens[places].astype(np.int64), len(judged))
        spread.add(pairs, block.lengths)
        candidates.add(finder.find(block), block.lengths, shard=number, start=block.start)
    # What waits is added up before it is sent to the process that asked.
    candidates.rows()
    return spread.rows(), candidates


def _count_words(search: tuple[ShardSet, UInt64s, WordFinder], number: int) -> Int64s:
    """Return the rows of `Spread` of the candidates in a shard, given by their hashes."""
    shard_set, hashes, finder = search
    spread = Spread()
    for block in iter_blocks(shard_set, number) if len(hashes) else ():
        words = finder.find(block)
        terms = _find(words, hashes)
        held = terms >= 0
        spread.add(count_spread_pairs(words.rows[held], terms[held], len(hashes)), block.lengths)
    return spread.rows()


def _list_documents(search: _ListSearch, number: int) -> tuple[Int64s, list[ListedDocument]]:
    """Return the occurrences of each term in the listed documents of a shard, and these documents."""
    size = search.first_word + len(search.hashes)
    held = np.zeros(size, np.int64)
    found: list[tuple[int, float, tuple[tuple[int, int], ...]]] = []
    for block in iter_blocks(search.shard_set, number) if size else ():
        # The share of a document is that of its occurrences of terms among all its tokens with letters.
        rows, terms, others = _find_terms(search, block)
        times = np.bincount(rows, minlength=len(others))
        shares = times / np.maximum(times + others, 1)
        for row in np.flatnonzero((shares >= search.share) & (times >= MIN_LISTED)).tolist():
            own = terms[rows == row]
            counts = np.bincount(own, minlength=size)
            held += counts
            # The terms that a document holds most are the reasons to list it.
            first = np.argsort(-counts, kind="stable")[:MAX_REASONS]
            reasons = tuple((term, int(counts[term])) for term in first.tolist() if counts[term])
            found.append((block.document + row, float(shares[row]), reasons))
    places = find_places(search.shard_set.shards[number], [document for document, _, _ in found])
    return held, [
        ListedDocument(place, share, reasons) for place, (_, share, reasons) in zip(places, found, strict=True)
    ]


def _find_terms(search: _ListSearch, block: DocumentBlock) -> tuple[Int64s, Int64s, Int64s]:
    """Return the document and the term of each occurrence of a term, and the other letter tokens of each document.

    A word counts once, and so do the ids in it: as the word.

    Returns:
        rows: int64 `(occurrences,)`.
        terms: int64 `(occurrences,)`.
        others: tokens with a letter that are in no occurrence, int64 `(documents,)`.
    """
    terms = search.numbers[block.tokens]
    others = search.letters[block.tokens]
    if len(search.hashes):
        # A word is marked by its first token; its other tokens are no terms of their own.
        words = search.finder.find(block)
        own = _find(words, search.hashes)
        held = own >= 0
        starts, stops = words.starts[held], words.starts[held] + words.widths[held]
        steps = np.zeros(len(terms) + 1, np.int64)
        steps[starts] = 1
        steps[stops] -= 1  # words do not overlap, and one may begin where another ends
        inside = np.cumsum(steps[:-1]) > 0
        terms[inside] = -1
        terms[starts] = search.first_word + own[held]
        others &= ~inside
    others &= terms < 0
    places = np.flatnonzero(terms >= 0)
    return block.rows_at(places), terms[places], np.add.reduceat(others, block.starts, dtype=np.int64)


def _find(words: Words, hashes: UInt64s) -> Int64s:
    """Return the index of each word's hash among sorted ones, -1 if it is not there, int64 `(words,)`."""
    if not len(hashes):
        return np.full(len(words.hashes), -1, np.int64)
    # Where the hash would be; it is there only if it is equal.
    at = np.minimum(np.searchsorted(hashes, words.hashes), len(hashes) - 1)
    return np.where(hashes[at] == words.hashes, at, -1)


def _sort_terms(found: Concentrated, listed: Int64s) -> Concentrated:
    """Return the result with the terms that listed documents hold most first, and renumber them in the reasons."""
    # A stable order: equal terms keep the order of ids.
    order: list[int] = np.argsort(-listed, kind="stable").tolist()
    new = {old: number for number, old in enumerate(order)}
    found.terms = [replace(found.terms[old], listed=int(listed[old])) for old in order]
    found.documents = [
        replace(document, reasons=tuple((new[old], times) for old, times in document.reasons))
        for document in found.documents
    ]
    return found


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


def _file_of(unit: str) -> str:
    """Return the file of a unit, or the first folder of a file that is one document."""
    name = unit.rsplit("@", 1)[0]
    return name.partition("/")[0] + "/" if unit.endswith("#file") and "/" in name else name


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
