"""Search one shard in one pass for the documents that hold an id, a text or a pattern.

A string is searched in the bytes of a block of documents, so that its tokenization does not matter, and then in those
of each document that may hold it. A pattern is searched in each document's decoded text.
A hit never spans two documents or messages; EOS, BOS and the space that a tokenizer puts before a document are not
text. Of a tokenizer that rewrites text, the rewritten text is searched.

Costs per token on one core: 8 ns for an id, about 20 for a string, about 30 for a pattern. Memory: a block of
documents, or the longest one decoded; 16 bytes per document found.
"""

# pyright: reportUnknownMemberType=false
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np

from shards.errors import InputError
from shards.format.arrays import Int64s, Tokens, UInt8s
from shards.format.chat import locate_messages
from shards.format.document_table import DocumentBlock, iter_blocks
from shards.format.reader import ShardSet
from shards.format.vocabulary import Vocabulary
from shards.trace.locate import Excerpt, Place, cut_excerpt, cut_tokens, find_places

QueryKind = Literal["token", "text", "regex"]


@dataclass(frozen=True)
class Query:
    """A query. `value` is an id in decimal, a text, or a pattern of Python's `re`.

    A text may hold lone surrogates (`surrogateescape`) for bytes that are not UTF-8.
    """

    kind: QueryKind
    value: str

    @property
    def text(self) -> bytes:
        """The bytes of a text to search for."""
        return self.value.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Hit:
    """A document with at least one hit, and the first hit in it.

    Attributes:
        place: the document.
        hits: occurrences in it, not counting those that overlap an earlier one.
        position: the token of the document that the first begins in.
        byte: the byte of the document's text that it begins at.
        excerpt: the first hit, with the text around it.
    """

    place: Place
    hits: int
    position: int
    byte: int
    excerpt: Excerpt

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the hit of a search."""
        numbers = {"hits": self.hits, "position": self.position, "byte": self.byte}
        return self.place.to_dict() | numbers | asdict(self.excerpt)


ShardHits = tuple[Int64s, UInt8s, list[Hit]]
"""The hits in one shard: documents and hits by source, int64 `(2, sources)`; hashes; the first documents described."""

_Match = tuple[int, int, int, int, Excerpt | None]
"""A document of a block with hits: its row, the number of hits, and the first one: its token, its byte, its excerpt."""


@dataclass(frozen=True)
class Search:
    """A query prepared for one set. `limit` is the number of documents of a shard to describe."""

    shard_set: ShardSet
    query: Query
    limit: int
    entries: Any
    """The bytes of each id, a `pa.LargeBinaryArray`."""
    pattern: re.Pattern[str] | None
    vocabulary: Vocabulary


def prepare_search(shard_set: ShardSet, query: Query, limit: int) -> Search:
    """Prepare the search for a query that has been checked.

    Raises:
        ShardSetError, ValueError, OSError: the set's tokenizer cannot be used.
    """
    import pyarrow as pa

    vocabulary = shard_set.vocabulary
    pattern = re.compile(query.value) if query.kind == "regex" else None
    # The entries as an Arrow array, made of buffers: `pa.array` loads pandas, 0.5 s in each process.
    offsets = np.append(0, np.cumsum(vocabulary.entry_lengths())).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(b"".join(vocabulary.entries))]
    entries = pa.Array.from_buffers(pa.large_binary(), len(vocabulary), buffers)
    return Search(shard_set, query, limit, entries, pattern, vocabulary)


def search_shard(search: Search, number: int) -> ShardHits:
    """Search the shard of this number.

    Raises:
        ShardSetError: the shard's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard_set = search.shard_set
    shard = shard_set.shards[number]
    sources = len(shard_set.manifest.sources)
    counts = np.zeros((2, sources), np.int64)
    hashes = [np.empty((0, 16), np.uint8)]
    described: list[tuple[int, _Match]] = []
    for block in iter_blocks(shard_set, number):
        # Of each block, only the documents that there is room for are described.
        matches = list(_search(search, block, search.limit - len(described)))
        rows = np.array([row for row, *_ in matches], np.int64)
        hashes.append(block.hashes[rows].copy())  # a block's memory is used again
        counts[0] += np.bincount(block.sources[rows], minlength=sources)
        np.add.at(counts[1], block.sources[rows], [hits for _, hits, *_ in matches])
        described += [(block.document + match[0], match) for match in matches if match[-1] is not None]
    # Only the documents that are shown are looked up in the document table.
    places = find_places(shard, [document for document, _ in described])
    shown: list[Hit] = [
        Hit(place, hits, position, byte, excerpt)
        for place, (_, (_, hits, position, byte, excerpt)) in zip(places, described, strict=True)
        if excerpt is not None
    ]
    return counts, np.concatenate(hashes), shown


def _search(search: Search, block: DocumentBlock, room: int) -> Iterator[_Match]:
    """Yield the documents of a block with hits of the search; the first `room` have an excerpt."""
    if search.query.kind == "token":
        yield from _search_token(search, block, room)
        return
    needle, number = search.query.text, 0
    for row in range(len(block.starts)) if search.pattern is not None else _find_rows(search, block):
        tokens = block.tokens[block.starts[row] : block.ends[row] - 1]
        text, offsets = _decode(search, tokens)
        # Without BOS and prefix: what is before the text is at byte 0.
        begin, skipped = search.vocabulary.split_document(tokens)
        hidden = int(offsets[begin]) + skipped
        text, offsets = text[hidden:], np.maximum(offsets - hidden, 0)
        found: list[tuple[int, int, int]] = []
        for start, stop in _list_parts(search, tokens, offsets):
            if search.pattern is not None:
                hits, first, last = _match(search.pattern, text[start:stop])
            else:
                hits, first = text.count(needle, start, stop), text.find(needle, start, stop) - start
                last = first + len(needle)
            found += [(hits, start + first, start + last)] if hits else []
        if not found:
            continue
        hits, (_, first, last) = sum(hits for hits, *_ in found), found[0]
        # All documents are counted, and the first ones are described.
        excerpt = cut_excerpt(text, first, last) if number < room else None
        yield row, hits, int(np.searchsorted(offsets, first, "right")) - 1, first, excerpt
        number += 1


def _list_parts(search: Search, tokens: Tokens, offsets: Int64s) -> list[tuple[int, int]]:
    """Return where the texts of a document begin and end that a hit may be in: what each message says, or all."""
    if (chat := search.shard_set.manifest.chat) is None:
        return [(0, int(offsets[-1]))]
    parts = [
        (int(offsets[place]) + len(chat.before[role].encode()), int(offsets[stop]))
        for role, place, _, stop in locate_messages(chat, search.vocabulary, tokens)
    ]
    return parts or [(0, int(offsets[-1]))]


def _find_rows(search: Search, block: DocumentBlock) -> Iterator[int]:
    """Yield the documents of a block that a search may hit: where a string begins in the text of the whole block.

    That text has BOS and EOS in it, which documents do not have: a document is searched again by itself.
    """
    needle = search.query.text
    text, offsets = _decode(search, block.tokens)
    ends = offsets[block.ends]
    place = text.find(needle)
    while place >= 0:
        row = int(np.searchsorted(ends, place, "right"))
        yield row
        place = text.find(needle, int(ends[row]))


def _search_token(search: Search, block: DocumentBlock, room: int) -> Iterator[_Match]:
    token = int(search.query.value)
    # The first place in each document, and how many there are.
    places = np.flatnonzero(block.tokens == token)
    found = np.unique(block.rows_at(places), return_index=True, return_counts=True)
    for number, (row, first, count) in enumerate(np.stack(found, axis=1).tolist()):
        position, byte, excerpt = int(places[first] - block.starts[row]), 0, None
        if number < room:
            tokens = block.tokens[block.starts[row] : block.ends[row]]
            byte, excerpt = cut_tokens(tokens, position, position + 1, search.vocabulary)
        yield row, count, position, byte, excerpt


def _match(pattern: re.Pattern[str], data: bytes) -> tuple[int, int, int]:
    """Return the number of a search's matches, and the bytes [first, last) of the first; empty matches do not count."""
    text = data.decode("utf-8", "surrogateescape")
    # An empty match is at every place and says nothing.
    matches = (match for match in pattern.finditer(text) if match.end() > match.start())
    if (match := next(matches, None)) is None:
        return 0, 0, 0
    first = len(text[: match.start()].encode("utf-8", "surrogateescape"))
    return 1 + sum(1 for _ in matches), first, first + len(match[0].encode("utf-8", "surrogateescape"))


def _decode(search: Search, tokens: Tokens) -> tuple[bytes, Int64s]:
    """Return the bytes of tokens to search and where each begins, int64 `(tokens + 1,)`; by Arrow, 10 ns a token."""
    import pyarrow as pa

    # Arrow takes the entries of all ids at once, and knows where each begins.
    ids = pa.Array.from_buffers(pa.int64(), len(tokens), [None, pa.py_buffer(tokens.astype(np.int64).data)])
    taken = search.entries.take(ids)
    offsets = np.frombuffer(taken.buffers()[1], np.int64)[taken.offset :][: len(tokens) + 1]
    data = taken.buffers()[2]
    whole = cast("bytes", data.to_pybytes()) if data is not None else b""
    return whole[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0]


def check_query(query: Query, vocab_size: int) -> None:
    """Check a query before the search of any shard.

    Raises:
        InputError: the query cannot be searched for; the message says why.
    """
    if query.kind == "token" and not 0 <= int(query.value) < vocab_size:
        raise InputError(f"no id {query.value}; the vocabulary has the ids 0 to {vocab_size - 1}")
    if query.kind == "text" and not query.text:
        raise InputError("the text is empty. Give at least one character.")
    if query.kind == "regex":
        try:
            empty = re.compile(query.value).search("")
        except (re.error, OverflowError, RecursionError) as error:  # the latter two: too large a count, too deep
            raise InputError(f"not a pattern: {error}. The syntax is that of Python's re.") from error
        if empty:
            raise InputError("the pattern matches the empty text, so every document. Ask for at least one character.")
