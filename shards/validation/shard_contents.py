"""The full level for one shard: check its document table and every token.

Tokens are streamed: one frame is read, hashed, decompressed, hashed again and compared while it is in the cache. The
document table is read in batches. Memory: a few MiB, and 8 bytes per document of the shard. Faults of one kind in one
shard make one problem, which says how many there are and where the first one is.

SHA-256 of the file and of its content is as much work as decompressing it. A build knows a checksum that costs a tenth:
the XXH3-128 of the bytes that have a SHA-256, computed when they were written. Then that one is compared. If it is
another one, the file is read again for its SHA-256, so that the problem is the same.
"""

# pyright: reportUnknownMemberType=false
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import xxhash
import zstandard

from shards.errors import Problem, ProblemKind, ShardSetError, plural
from shards.format import codec
from shards.format.arrays import Int64s, Rows
from shards.format.content_hash import split_column
from shards.format.document_table import add_source_counts
from shards.format.manifest import Manifest, SourceCounts
from shards.format.shard import Shard, compare_digest, iter_documents
from shards.stores.files import hash_file
from shards.stores.store import require_folder
from shards.terminal.reporter import Advance
from shards.validation.conversations import ConversationChecker
from shards.validation.files import Listing, check_shard_files, unreadable


@dataclass
class ShardFindings:
    """The findings of the full level for one shard."""

    problems: list[Problem] = field(default_factory=list[Problem])
    longest: dict[str, int] = field(default_factory=dict[str, int])
    """The longest document of each source, in tokens."""
    tokens: int = 0
    """Tokens that were read and checked."""
    documents: int = 0
    sources: Int64s | None = None
    """The place of each document's source among those of conversations, -1 for text, `(documents,)`; None in a set
    without."""
    targets: Int64s | None = None
    """The targets of each source of conversations, `(sources,)`."""
    table_sound: bool = False
    """Whether the document table can be trusted: it has the number of rows in the manifest, the right types, and no gap
    between documents."""
    hashes: tuple[int, int] = (0, 0)
    """The first halves of the lowest and the highest content hash."""


@dataclass
class _Fault:
    """Faults of one kind in one shard: their number, and the first one."""

    kind: ProblemKind
    count: int = 0
    first: str = ""

    def add(self, count: int, first: str) -> None:
        self.count += count
        self.first = self.first or first


def find_shard_problems(
    shard: Shard,
    manifest: Manifest,
    listing: Listing,
    advance: Advance,
    checksums: Mapping[str, str],
) -> ShardFindings:
    """Check one shard in full: its files, then their content.

    Args:
        shard: the shard.
        manifest: that of its set.
        listing: of the set's place.
        advance: called with the number of tokens checked since the last call.
        checksums: by SHA-256 the XXH3-128 of the same bytes, as far as they are known.

    Raises:
        InputError: the store cannot be read.
    """
    problems, sound = check_shard_files(shard, manifest, listing)
    found = ShardFindings(problems)
    # The table first: its documents say where EOS must be among the tokens.
    documents, tokens = (file.path for file in (shard.entry.files.documents, shard.entry.files.tokens))
    ends: Int64s | None = None
    if documents in sound:
        try:
            ends = _check_documents(shard, manifest, found)
        except OSError as error:
            found.problems.append(unreadable(documents, error))
    if tokens in sound:
        try:
            chats = None
            if manifest.chat is not None and ends is not None and found.sources is not None:
                chats = ConversationChecker(manifest, manifest.chat, ends, found.sources)
            problems = _check_tokens(shard, ends, manifest, advance, checksums, chats)
            found.tokens = shard.num_tokens
            found.problems += problems
            if chats is not None and not problems:  # of wrong tokens, what else is wrong follows
                wrong = _Fault("conversation", chats.count, chats.first)
                found.problems += _to_problems([wrong], tokens, "Build the shard again.")
                found.targets = chats.targets
        except OSError as error:
            found.problems.append(unreadable(tokens, error))
    return found


def _check_documents(shard: Shard, manifest: Manifest, found: ShardFindings) -> Int64s | None:
    """Check one shard's document table, digest and rows; return the ends of documents if it can be trusted.

    A table on another machine is read once, whole.
    """
    file = shard.entry.files.documents
    content = None if shard.store.folder is not None else shard.store.read(file.path)
    digest = hash_file(require_folder(shard.store) / file.path) if content is None else sha256(content).hexdigest()
    found.problems += compare_digest(file.path, file.sha256, digest)
    wrong = _Fault("document_table")
    ends, sources = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    conversations = {name: number for number, name in enumerate(manifest.conversations)}
    sums: dict[str, list[int]] = {}
    position, row, low, high = 0, 0, 1 << 64, 0
    try:
        for batch in iter_documents(shard, content=content):
            start: Int64s = np.from_dlpack(batch.column("start")).view(np.int64)
            length: Int64s = np.from_dlpack(batch.column("length")).astype(np.int64)
            stop = np.cumsum(length) + position
            # Each document begins where the one before it ended, and has a token.
            places = np.flatnonzero((start != stop - length) | (length == 0))
            if len(places):
                at = int(places[0])
                held = f"document {row + at} has {plural(length[at], 'token')} from {start[at]}"
                wrong.add(len(places), f"{held}; expected at least 1 from {stop[at] - length[at]}")
            if not wrong.count:  # a broken table is not kept: the shard's tokens do not bound its memory
                ends.append(stop - 1)
                if manifest.chat is not None:
                    column: Any = batch.column("source")
                    numbers = np.array([conversations.get(name, -1) for name in column.dictionary.to_pylist()])
                    codes: Any = np.from_dlpack(column.indices)
                    sources.append(numbers[codes])
            add_source_counts(batch, sums)
            if len(start):
                hashes = split_column(batch.column("hash"))[:, 0]
                low, high = min(low, int(hashes.min())), max(high, int(hashes.max()))
            position, row = int(stop[-1]) if len(stop) else position, row + len(stop)
    except ShardSetError as error:
        found.problems += error.problems
        return None
    # What was seen over all batches.
    found.problems += _to_problems([wrong], file.path, "The table and the tokens come from different builds.")
    found.problems += _check_sums(shard, position, sums)
    if wrong.count or position != shard.num_tokens:
        return None
    # From here on others may rely on the table.
    found.documents, found.table_sound = row, True
    found.longest = {source: most for source, (_, _, most) in sums.items()}
    found.hashes = low, high
    found.sources = None if manifest.chat is None else np.concatenate(sources)
    return np.concatenate(ends)


def _check_sums(shard: Shard, tokens: int, sums: Mapping[str, list[int]]) -> list[Problem]:
    """Check the sums over a shard's document table, of all documents and of each source, against the manifest."""
    name = shard.entry.files.documents.path
    problems: list[Problem] = []
    if tokens != shard.num_tokens:
        message = f"lengths add up to {tokens}; expected {plural(shard.num_tokens, 'token')} by the manifest"
        problems.append(Problem("document_table", name, message))
    held = {source: SourceCounts(tokens=own, documents=rows) for source, (own, rows, _) in sums.items()}
    for source in sorted(held.keys() | shard.entry.sources.keys()):
        found, said = held.get(source, "nothing"), shard.entry.sources.get(source, "nothing")
        if found != said:
            message = f"source {source!r}: {found} in the table; expected {said} by the manifest"
            problems.append(Problem("source_sum", name, message))
    return problems


def _check_tokens(
    shard: Shard,
    ends: Int64s | None,
    manifest: Manifest,
    advance: Advance | None,
    checksums: Mapping[str, str],
    chats: ConversationChecker | None = None,
) -> list[Problem]:
    """Check a shard's tokens, read once: both digests, frame checksums, the range of ids, the places of EOS and BOS."""
    file, dtype, entry = shard.tokens_file, shard.dtype, shard.entry
    try:
        frames = shard.frames
    except ShardSetError as error:
        return error.problems
    corrupt, beyond = _Fault("frame_corrupt"), _Fault("token_out_of_range")
    eos, bos = _Fault("eos_misplaced"), _Fault("bos_misplaced")
    eos_id, bos_id, vocab_size = manifest.tokenizer.eos_id, manifest.tokenizer.bos_id, manifest.vocab_size
    starts = None if ends is None else np.append(0, ends[:-1] + 1)[: len(ends)]
    known = [checksums.get(digest) for digest in (entry.files.tokens.sha256, entry.tokens_sha256)]
    file_hash, content_hash = (sha256() if checksum is None else xxhash.xxh3_128() for checksum in known)
    decompressor = zstandard.ZstdDecompressor()
    for frame, data in codec.iter_compressed(file, frames):
        file_hash.update(data)
        try:
            content = codec.decompress_frame(decompressor, data, frame)
        except codec.CodecError as error:
            corrupt.add(1, str(error))
            continue
        content_hash.update(content)
        # A frame that decompresses: its ids, and where EOS and BOS are in it.
        tokens = np.frombuffer(content, dtype)
        first = frame.start // dtype.itemsize
        if int(tokens.max()) >= vocab_size:
            wrong = np.flatnonzero(tokens >= vocab_size)
            at = int(wrong[0])
            beyond.add(len(wrong), f"token {first + at} is {tokens[at]}; expected less than vocab_size {vocab_size}")
        if ends is not None:
            _check_mark(tokens, first, ends, eos_id, eos, ("ends", "EOS"))
        if starts is not None and bos_id is not None:
            _check_mark(tokens, first, starts, bos_id, bos, ("begins", "BOS"))
        if chats is not None and not beyond.count:
            chats.add(tokens)
        if advance is not None:
            advance(len(tokens))
    size = entry.files.tokens.bytes  # a sound file has it; what follows the frames is the seek table
    for start in range(frames[-1].file_stop if frames else 0, size, codec.FRAME_BYTES):
        file_hash.update(file.read_range(start, min(start + codec.FRAME_BYTES, size)))
    problems = compare_digest(file.name, known[0] or entry.files.tokens.sha256, file_hash.hexdigest())
    expected = known[1] or entry.tokens_sha256
    if not corrupt.count and (digest := content_hash.hexdigest()) != expected:
        kind = content_hash.name.lower()
        message = f"{kind} of the decompressed tokens is {digest}; expected {expected} by the manifest"
        problems.append(Problem("tokens_checksum", file.name, f"{message}. Copy or build it again."))
    if problems and any(known):
        # A fault that is not found again was there once: a disk that gives other bytes each time.
        return _check_tokens(shard, ends, manifest, None, {}) or problems
    return problems + _to_problems([corrupt, beyond, eos, bos], file.name, "Copy or build the shard again.")


def _check_mark(
    tokens: Rows,
    first: int,
    places: Int64s,
    mark: int,
    fault: _Fault,
    words: tuple[str, str],
) -> None:
    """Check that EOS or BOS occurs in a shard's frame exactly where documents end or begin by the table."""
    # The places that the table gives, as far as they are in this frame.
    low, high = np.searchsorted(places, [first, first + len(tokens)])
    here = places[low:high] - first
    is_mark = tokens == mark
    if np.count_nonzero(is_mark) == len(here) and bool(is_mark[here].all()):
        return
    does, name = words
    # Either it is not where it must be, or it is where it must not be.
    absent = here[~is_mark[here]]
    if len(absent):
        at = int(absent[0])
        fault.add(len(absent), f"token {first + at} {does} a document but is {tokens[at]}; expected {name} {mark}")
    is_mark[here] = False
    inside = np.flatnonzero(is_mark)
    if len(inside):
        fault.add(len(inside), f"token {first + int(inside[0])} is {name} {mark} inside a document")


def _to_problems(faults: list[_Fault], name: str, remedy: str) -> list[Problem]:
    problems: list[Problem] = []
    for fault in faults:
        if fault.count:
            more = f" (the first of {fault.count})" if fault.count > 1 else ""
            problems.append(Problem(fault.kind, name, f"{fault.first}{more}. {remedy}"))
    return problems
