"""From a token, a string or a pattern to the documents that hold it, and where they came from.

A string is searched in the bytes of each document, so that it is found however it was cut into tokens; documents that
cannot hold it are not decoded (`shards.cover`). A pattern is searched in each document's decoded text. Nothing is found
across documents; EOS is not text.

Costs a token on one core: 8 ns for an id, 10 for a string (and 0.1 s), about 30 for a pattern.
Memory: a stretch of documents, or the longest one decoded; 16 bytes a document found.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from shards.cover import cover_bits, may_hold
from shards.places import Excerpt, Place, cut_excerpt, find_places
from shards.problems import Problem, ShardSetError
from shards.reader import Shard, ShardSet, open_set
from shards.stretches import Stretch, iter_stretches
from shards.tokens import decode, token_bytes
from shards.workers import map_tasks
from shards.writer import atomic_open

if TYPE_CHECKING:
    import numpy.typing as npt

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Query:
    """What to look for. `value` is an id in decimal, a text, or a pattern of Python's `re`.

    A text may hold lone surrogates (`surrogateescape`) for bytes that are not UTF-8.
    """

    kind: Literal["token", "text", "regex"]
    value: str

    @property
    def text(self) -> bytes:
        """The bytes of a text."""
        return self.value.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that holds what was looked for, and its first occurrence there.

    Attributes:
        place: the document.
        hits: occurrences in it, not counting those that overlap an earlier one.
        position: the token of the document that the first begins in.
        byte: the byte of the document's text that it begins at.
        excerpt: it, with the text around.
    """

    place: Place
    hits: int
    position: int
    byte: int
    excerpt: Excerpt

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the hit."""
        numbers = {"hits": self.hits, "position": self.position, "byte": self.byte}
        return self.place.to_dict() | numbers | self.excerpt.to_dict()


@dataclass
class SourceHits:
    """Documents of one source that hold it, and occurrences in them."""

    documents: int = 0
    hits: int = 0


@dataclass
class Trace:
    """What was found. `shown` are the first documents, in the set's order; `hashes` uint8 `(documents, 16)` are all."""

    query: Query
    documents: int = 0
    hits: int = 0
    sources: dict[str, SourceHits] = field(default_factory=dict[str, SourceHits])
    shown: list[Hit] = field(default_factory=list[Hit])
    hashes: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 16), np.uint8))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object that `trace --json` prints."""
        return {
            "query": asdict(self.query),
            "documents": self.documents,
            "hits": self.hits,
            "sources": {name: asdict(counts) for name, counts in self.sources.items()},
            "shown": [hit.to_dict() for hit in self.shown],
        }


def trace(
    path: str | os.PathLike[str],
    query: Query,
    *,
    limit: int | None = 20,
    workers: int = 1,
    progress: Progress | None = None,
) -> Trace:
    """Find the documents of a set that hold what is asked for.

    Args:
        path: the set's folder.
        query: what to look for.
        limit: how many documents to describe; all where None. All are counted.
        workers: processes; the result does not depend on it.
        progress: called with tokens done and tokens in all.

    Raises:
        ValueError: the query asks for nothing, for an id that is not in the vocabulary, or is no pattern; or the
            tokenizer is not a byte-level one.
        ShardSetError: the set's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard_set = open_set(path)
    check_query(query, shard_set.vocab_size)
    token_bytes(_tokenizer(shard_set))  # so that what is wrong with it is said here
    found = Trace(query)
    total, done = sum(shard.num_tokens for shard in shard_set.shards), 0
    hashes: list[npt.NDArray[np.uint8]] = []
    tasks = [_Task(shard_set.path, number, query, limit) for number in range(len(shard_set.shards))]
    names = [source.name for source in shard_set.manifest.sources]
    for task, part in map_tasks(_search_shard, tasks, workers):
        hashes.append(part.hashes)
        for number in np.flatnonzero(part.documents).tolist():
            counts = found.sources.setdefault(names[number], SourceHits())
            counts.documents += int(part.documents[number])
            counts.hits += int(part.hits[number])
        found.shown += part.shown if limit is None else part.shown[: limit - len(found.shown)]
        done += shard_set.shards[task.shard].num_tokens
        if progress is not None:
            progress(done, total)
    found.hashes = np.concatenate([found.hashes, *hashes])
    found.documents = len(found.hashes)
    found.hits = sum(counts.hits for counts in found.sources.values())
    return found


def check_query(query: Query, vocab_size: int) -> None:
    """Check a query before anything is read.

    Raises:
        ValueError: it cannot be looked for; the message says why.
    """
    if query.kind == "token":
        if not 0 <= int(query.value) < vocab_size:
            raise ValueError(f"no id {query.value}; the vocabulary has the ids 0 to {vocab_size - 1}")
    elif query.kind == "text":
        if not query.text:
            raise ValueError("the text is empty. Give at least one character.")
    else:
        try:
            empty = re.compile(query.value).search("")
        except re.error as error:
            raise ValueError(f"not a pattern: {error}. The syntax is that of Python's re.") from error
        if empty:
            raise ValueError("the pattern matches the empty text, so every document. Ask for at least one character.")


def locate(shard_set: ShardSet, shard: Shard, offset: int) -> Hit:
    """Return the document that holds a token of a shard, given the token's number in the shard.

    Raises:
        ValueError: no such token, or the tokenizer is not a byte-level one.
        ShardSetError: the shard's files are not what the manifest says.
    """
    if not 0 <= offset < shard.num_tokens:
        raise ValueError(f"no token {offset} in {shard.name}; it has {shard.num_tokens}, counted from 0")
    table = token_bytes(_tokenizer(shard_set))
    starts = np.asarray(shard.documents(["start"])["start"].to_numpy(), np.uint64)
    document = int(np.searchsorted(starts, np.uint64(offset), "right")) - 1
    places = find_places(shard, [document]) if document >= 0 else []
    if not places or not places[0].start <= offset < places[0].start + places[0].tokens:
        message = f"no document holds the token {offset}; expected them to follow one another. Validate the set."
        raise ShardSetError([Problem("document_table", shard.name, message)])
    place = places[0]
    tokens = shard.read(place.start, place.start + place.tokens).tolist()
    position = offset - place.start
    try:
        before, hit, after = (
            decode(part, table) for part in (tokens[:position], tokens[position:][:1], tokens[position + 1 : -1])
        )
    except IndexError as error:
        message = f"holds an id that the tokenizer lacks; expected less than {len(table)}"
        raise ShardSetError([Problem("token_out_of_range", shard.name, message)]) from error
    excerpt = cut_excerpt(before + hit + after, len(before), len(before) + len(hit))
    return Hit(place, 1, position, len(before), excerpt)


def write_block_list(path: Path, found: Trace, shard_set: ShardSet) -> int:
    """Write the content hashes of the documents found, hex, one a line, for a data recipe's `drop_hashes`.

    Lines that begin with `#` say where they are from. Each document stands once, in order of hashes, so that the file
    depends on nothing but what was found. Returns how many there are.

    Raises:
        ValueError: the file would lie in the set's own folder.
        OSError: it cannot be written.
    """
    if path.resolve().is_relative_to(shard_set.path.resolve()):
        raise ValueError(f"{path}: lies in the set's own folder, which may hold no other files. Write it elsewhere.")
    hashes = np.unique(found.hashes, axis=0)
    asked = found.query.value.encode("unicode_escape").decode("ascii")
    with atomic_open(path) as file:
        head = (
            f"# Block list: the content hashes (XXH3-128) of {len(hashes)} documents\n"
            f"# set {shard_set.manifest.name}, manifest {shard_set.manifest_sha256}\n"
            f"# found by --{found.query.kind} {asked}\n"
        )
        file.write(head.encode())
        for first in range(0, len(hashes), 1 << 16):
            part = hashes[first : first + (1 << 16)]
            file.write("".join(f"{bytes(row).hex()}\n" for row in part).encode())
    return len(hashes)


@dataclass(frozen=True)
class _Task:
    folder: Path
    shard: int
    query: Query
    limit: int | None


@dataclass
class _ShardHits:
    """What one shard holds: documents and hits by source, hashes, and the first documents described."""

    documents: npt.NDArray[np.int64]
    hits: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint8]
    shown: list[Hit]


@dataclass(frozen=True, slots=True)
class _Match:
    """A document of a stretch that holds it: its row, the number of hits, the first of them in tokens and bytes."""

    row: int
    hits: int
    position: int
    byte: int
    excerpt: Excerpt | None


@dataclass(frozen=True)
class _Searcher:
    """A query made ready for one tokenizer."""

    query: Query
    table: list[bytes]
    entries: Any
    """The same table as a `pa.LargeBinaryArray`."""
    bits: npt.NDArray[np.uint64] | None
    pattern: re.Pattern[str] | None


def _tokenizer(shard_set: ShardSet) -> Path:
    return shard_set.path / shard_set.manifest.tokenizer.file


@lru_cache(maxsize=1)
def _make_searcher(tokenizer: Path, vocab_size: int, query: Query) -> _Searcher:
    import pyarrow as pa

    table = token_bytes(tokenizer)
    table += [b""] * (vocab_size - len(table))
    bits = cover_bits(query.text, table) if query.kind == "text" else None
    pattern = re.compile(query.value) if query.kind == "regex" else None
    return _Searcher(query, table, pa.array(table, pa.large_binary()), bits, pattern)


def _search_shard(task: _Task) -> _ShardHits:
    shard_set = open_set(task.folder)
    shard = shard_set.shards[task.shard]
    searcher = _make_searcher(_tokenizer(shard_set), shard_set.vocab_size, task.query)
    sources = len(shard_set.manifest.sources)
    found = _ShardHits(np.zeros(sources, np.int64), np.zeros(sources, np.int64), np.empty((0, 16), np.uint8), [])
    hashes: list[npt.NDArray[np.uint8]] = []
    described: list[tuple[int, _Match]] = []
    for stretch in iter_stretches(shard_set, shard):
        room = None if task.limit is None else task.limit - len(described)
        matches = list(_search(searcher, stretch, room))
        if not matches:
            continue
        rows = np.array([match.row for match in matches])
        hashes.append(stretch.hashes[rows].copy())
        hits = np.array([match.hits for match in matches])
        found.documents += np.bincount(stretch.sources[rows], minlength=sources)
        np.add.at(found.hits, stretch.sources[rows], hits)
        described += [(stretch.document + match.row, match) for match in matches if match.excerpt is not None]
    if hashes:
        found.hashes = np.concatenate(hashes)
    if described:
        places = find_places(shard, [document for document, _ in described])
        for place, (_, match) in zip(places, described, strict=True):
            if match.excerpt is not None:
                found.shown.append(Hit(place, match.hits, match.position, match.byte, match.excerpt))
    return found


def _search(searcher: _Searcher, stretch: Stretch, room: int | None) -> Iterator[_Match]:
    """Yield the documents of a stretch that hold it; the first `room` with an excerpt."""
    if searcher.query.kind == "token":
        yield from _search_token(searcher, stretch, room)
        return
    rows: Sequence[int] = range(len(stretch.starts))
    if searcher.bits is not None:
        maybe = may_hold(searcher.bits, searcher.query.text, stretch.tokens, stretch.starts)
        rows = np.flatnonzero(maybe).tolist()
    needle, number = searcher.query.text, 0
    for row in rows:
        text, offsets = _decode(searcher, stretch.tokens[stretch.starts[row] : stretch.ends[row] - 1])
        if searcher.pattern is None:
            hits, first, last = text.count(needle), text.find(needle), 0
            last = first + len(needle)
        else:
            hits, first, last = _match(searcher.pattern, text)
        if not hits:
            continue
        excerpt = cut_excerpt(text, first, last) if room is None or number < room else None
        yield _Match(row, hits, int(np.searchsorted(offsets, first, "right")) - 1, first, excerpt)
        number += 1


def _search_token(searcher: _Searcher, stretch: Stretch, room: int | None) -> Iterator[_Match]:
    token = int(searcher.query.value)
    places = np.flatnonzero(stretch.tokens == token)
    rows, firsts, hits = np.unique(
        np.searchsorted(stretch.ends, places, "right"), return_index=True, return_counts=True
    )
    for number, (row, first, count) in enumerate(zip(rows.tolist(), firsts.tolist(), hits.tolist(), strict=True)):
        position = int(places[first] - stretch.starts[row])
        if room is not None and number >= room:
            yield _Match(row, count, position, 0, None)
            continue
        text, offsets = _decode(searcher, stretch.tokens[stretch.starts[row] : stretch.ends[row]])
        low, high = int(offsets[position]), int(offsets[position + 1])
        yield _Match(row, count, position, low, cut_excerpt(text, low, high))


def _match(pattern: re.Pattern[str], data: bytes) -> tuple[int, int, int]:
    """Return the number of matches, and the bytes [first, last) of the first; matches of nothing do not count."""
    text = data.decode("utf-8", "surrogateescape")
    spans = [match.span() for match in pattern.finditer(text) if match.end() > match.start()]
    if not spans:
        return 0, 0, 0
    first = len(text[: spans[0][0]].encode("utf-8", "surrogateescape"))
    return len(spans), first, first + len(text[slice(*spans[0])].encode("utf-8", "surrogateescape"))


def _decode(searcher: _Searcher, tokens: npt.NDArray[np.unsignedinteger]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return the bytes of tokens and where each begins, int64 `(tokens + 1,)`; Arrow does it at 10 ns a token."""
    import pyarrow as pa

    taken = searcher.entries.take(pa.array(tokens.astype(np.int64)))
    offsets = np.frombuffer(taken.buffers()[1], np.int64)[taken.offset :][: len(tokens) + 1]
    data = taken.buffers()[2]
    whole = cast("bytes", data.to_pybytes()) if data is not None else b""
    return whole[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]
