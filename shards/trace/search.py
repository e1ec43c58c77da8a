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
from shards.format.arrays import Int64s, Tokens, UInt8s, find_bounds
from shards.format.chat import locate_messages
from shards.format.document_table import DocumentBlock, iter_blocks
from shards.format.reader import ShardSet
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


@dataclass(frozen=True)
class Search:
    """A query prepared for one set. `limit` is the number of documents of a shard to describe."""

    shard_set: ShardSet
    query: Query
    limit: int
    entries: Any
    """The bytes of each id, a `pa.LargeBinaryArray`."""
    pattern: re.Pattern[str] | None


def prepare_search(shard_set: ShardSet, query: Query, limit: int) -> Search:
    """Check a query, and prepare its search.

    Raises:
        InputError: the query cannot be searched for; the message says why.
        ShardSetError, ValueError, OSError: the set's tokenizer cannot be used.
    """
    import pyarrow as pa

    pattern = None
    if query.kind == "token" and not 0 <= int(query.value) < shard_set.vocab_size:
        raise InputError(f"no id {query.value}; the vocabulary has the ids 0 to {shard_set.vocab_size - 1}")
    if query.kind == "text" and not query.text:
        raise InputError("the text is empty. Give at least one character.")
    if query.kind == "regex":
        try:
            pattern = re.compile(query.value)
            empty = pattern.search("")
        except (re.error, OverflowError, RecursionError) as error:  # the latter two: too large a count, too deep
            raise InputError(f"not a pattern: {error}. The syntax is that of Python's re.") from error
        if empty:
            raise InputError("the pattern matches the empty text, so every document. Ask for at least one character.")
    # The entries as an Arrow array, made of buffers: `pa.array` loads pandas, 0.5 s in each process.
    vocabulary = shard_set.vocabulary
    offsets = find_bounds(vocabulary.entry_lengths())
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(b"".join(vocabulary.entries))]
    entries = pa.Array.from_buffers(pa.large_binary(), len(vocabulary), buffers)
    return Search(shard_set, query, limit, entries, pattern)


def search_shard(search: Search, number: int) -> ShardHits:
    """Search the shard of this number.

    Raises:
        ShardSetError: the shard's files are not what the manifest says.
        OSError: a file cannot be read.
    """
    shard_set = search.shard_set
    sources = len(shard_set.manifest.sources)
    counts = np.zeros((2, sources), np.int64)
    hashes = [np.empty((0, 16), np.uint8)]
    described: list[tuple[int, int, int, int, Excerpt]] = []
    for block in iter_blocks(shard_set, number):
        found = list(_search(search, block))
        rows = np.array([row for row, _ in found], np.int64)
        hashes.append(block.hashes[rows].copy())  # a block's memory is used again
        counts[0] += np.bincount(block.sources[rows], minlength=sources)
        np.add.at(counts[1], block.sources[rows], [hits for _, hits in found])
        # All documents are counted, and the first ones are described.
        for row, hits in found[: search.limit - len(described)]:
            tokens = block.tokens[block.starts[row] : block.ends[row]]
            described.append((block.document + row, hits, *_describe(search, tokens)))
    # Only the documents that are shown are looked up in the document table.
    places = find_places(shard_set.shards[number], [document for document, *_ in described])
    shown = [
        Hit(place, hits, position, byte, excerpt)
        for place, (_, hits, position, byte, excerpt) in zip(places, described, strict=True)
    ]
    return counts, np.concatenate(hashes), shown


def _search(search: Search, block: DocumentBlock) -> Iterator[tuple[int, int]]:
    """Yield the documents of a block with hits of the search, and how many each has."""
    if search.query.kind == "token":
        found = np.unique(block.rows_at(np.flatnonzero(block.tokens == int(search.query.value))), return_counts=True)
        yield from np.stack(found, axis=1).tolist()
        return
    for row in range(len(block.starts)) if search.pattern is not None else _find_rows(search, block):
        hits, *_ = _search_text(search, block.tokens[block.starts[row] : block.ends[row]])
        if hits:
            yield row, hits


def _describe(search: Search, tokens: Tokens) -> tuple[int, int, Excerpt]:
    """Return the first hit of the search in a document: its token, the byte of the text that it begins at, the text."""
    if search.query.kind == "token":
        position = int((tokens == int(search.query.value)).argmax())
        return position, *cut_tokens(tokens, position, position + 1, search.shard_set.vocabulary)
    _, first, last, text, offsets = _search_text(search, tokens)
    return int(np.searchsorted(offsets, first, "right")) - 1, first, cut_excerpt(text, first, last)


def _search_text(search: Search, tokens: Tokens) -> tuple[int, int, int, bytes, Int64s]:
    """Return the number of hits of the search in a document's text, the bytes [first, last) of the first one, the text,
    and where each token begins in it."""
    text, offsets = _decode(search, tokens[:-1])
    # Without BOS and prefix: what is before the text is at byte 0.
    begin, skipped = search.shard_set.vocabulary.split_document(tokens[:-1])
    hidden = int(offsets[begin]) + skipped
    text, offsets = text[hidden:], np.maximum(offsets - hidden, 0)
    total = first = last = 0
    for start, stop in _list_parts(search, tokens[:-1], offsets):
        hits, *place = _match(search.pattern or search.query.text, text[start:stop])
        if hits and not total:
            first, last = (start + at for at in place)
        total += hits
    return total, first, last, text, offsets


def _list_parts(search: Search, tokens: Tokens, offsets: Int64s) -> list[tuple[int, int]]:
    """Return where the texts of a document begin and end that a hit may be in: what each message says, or all."""
    if (chat := search.shard_set.manifest.chat) is None:
        return [(0, int(offsets[-1]))]
    parts = [
        (int(offsets[place]) + len(chat.before[role].encode()), int(offsets[stop]))
        for role, place, _, stop in locate_messages(chat, search.shard_set.vocabulary, tokens)
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


def _match(wanted: re.Pattern[str] | bytes, data: bytes) -> tuple[int, int, int]:
    """Return the number of a search's matches, and the bytes [first, last) of the first; empty matches do not count."""
    if isinstance(wanted, bytes):
        first = data.find(wanted)
        return data.count(wanted), first, first + len(wanted)
    text = data.decode("utf-8", "surrogateescape")
    # An empty match is at every place and says nothing.
    matches = (match for match in wanted.finditer(text) if match.end() > match.start())
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
