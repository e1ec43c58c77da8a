"""Blocks of whole documents, in which a shard is read. The audit and the trace read sets this way.

One pass reads the tokens file and the document table together. Memory does not depend on the size of the shard: a
frame, a block (`BLOCK_TOKENS`, or the longest document if that is longer) and a batch of the table. The pass checks
that documents are contiguous, sources are known, and ids are inside the vocabulary.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import Problem, ShardSetError, plural
from shards.format.document_table import iter_documents, number_sources, read_hashes
from shards.format.reader import Shard, ShardSet

if TYPE_CHECKING:
    import numpy.typing as npt

    from shards.format.document_table import DocumentBatch

BLOCK_TOKENS = 1 << 16
"""Approximate tokens in a block. Arrays of 8 bytes per token then stay in a core's cache, which halves the time."""


@dataclass(frozen=True)
class DocumentBlock:
    """Consecutive whole documents of a shard.

    Attributes:
        document: number of the first document in the shard.
        start: first token in the shard.
        tokens: uint16 or uint32 `(tokens,)`, read only.
        starts: int64 `(documents,)`, each document's first token in `tokens`.
        ends: int64 `(documents,)`, one past its last, which is EOS.
        sources: int64 `(documents,)`, index among the manifest's sources.
        hashes: uint8 `(documents, 16)`, content hashes.
    """

    document: int
    start: int
    tokens: npt.NDArray[np.unsignedinteger]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint8]


def iter_blocks(shard_set: ShardSet, shard: Shard) -> Iterator[DocumentBlock]:
    """Yield a shard's documents, in order, in document blocks of about `BLOCK_TOKENS`.

    Raises:
        ShardSetError: the shard's files are not what the manifest says, or an id is outside the vocabulary.
        OSError: a file cannot be read.
    """
    source_index = {source.name: index for index, source in enumerate(shard_set.manifest.sources)}
    tokens = _Tokens(shard, shard_set.vocab_size)
    document = start = 0
    for batch in iter_documents(shard, ["start", "length", "source", "hash"]):
        lengths, sources, hashes = _columns(shard, batch, document, start, source_index)
        ends = np.cumsum(lengths)
        for first, last in cut_blocks(ends, BLOCK_TOKENS):
            held = ends[first:last] - (ends[first] - lengths[first])
            taken = tokens.take(int(held[-1]))
            here = slice(first, last)
            yield DocumentBlock(document, start, taken, held - lengths[here], held, sources[here], hashes[here])
            document += last - first
            start += int(held[-1])
    if start != shard.num_tokens:
        raise _broken(shard, f"lengths add up to {start}; expected {plural(shard.num_tokens, 'token')} by the manifest")


def _columns(
    shard: Shard, batch: DocumentBatch, document: int, start: int, source_index: dict[str, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return lengths, source numbers and hashes of a batch of the document table, checked."""
    lengths: npt.NDArray[np.int64] = np.from_dlpack(batch.column("length")).astype(np.int64)
    starts = np.from_dlpack(batch.column("start")).astype(np.uint64)
    expected = start + np.cumsum(lengths) - lengths
    wrong = np.flatnonzero((starts != expected.astype(np.uint64)) | (lengths < 1))
    if len(wrong):
        at = int(wrong[0])
        message = (
            f"document {document + at} has {plural(lengths[at], 'token')} from {starts[at]}; expected from "
            f"{expected[at]}"
        )
        raise _broken(shard, message)
    return lengths, number_sources(shard, batch, source_index), read_hashes(batch)


class _Tokens:
    """Reads a tokens file from start to end, any number of tokens at a time."""

    def __init__(self, shard: Shard, vocab_size: int):
        self._shard, self._vocab_size = shard, vocab_size
        self._frames = shard.iter_tokens()
        self._frame: npt.NDArray[Any] = np.empty(0, shard.dtype)
        self._used = 0

    def take(self, count: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the next tokens, uint16 or uint32 `(count,)`."""
        parts: list[npt.NDArray[Any]] = []
        while count:
            if self._used == len(self._frame):
                self._next_frame()
            part = self._frame[self._used : self._used + count]
            self._used += len(part)
            count -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _next_frame(self) -> None:
        name = self._shard.tokens_file.name
        frame = next(self._frames, None)
        if frame is None:
            message = "the document table has more tokens than the tokens file. Copy or build it again."
            raise ShardSetError([Problem("document_table", name, message)])
        self._frame = frame
        self._used = 0
        most = int(self._frame.max())
        if most >= self._vocab_size:
            message = f"holds the id {most}; expected less than vocab_size {self._vocab_size}. Validate the set."
            raise ShardSetError([Problem("token_out_of_range", name, message)])


def _broken(shard: Shard, message: str) -> ShardSetError:
    return ShardSetError([Problem("document_table", shard.entry.files.documents.path, f"{message}. Validate the set.")])


def cut_blocks(ends: npt.NDArray[np.int64], block_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield the document blocks as ranges [first, last) of at most `block_tokens` tokens; a longer document is a block.

    Args:
        ends: one past each document's last token, int64 `(documents,)`, ascending; the first document begins at 0.
        block_tokens: the maximum number of tokens in a range.
    """
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + block_tokens, "right")))
        yield first, last
        first = last
