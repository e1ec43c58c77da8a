"""The full level for one shard: check its document table and every token.

Tokens are streamed: one frame is read, hashed, decompressed, hashed again and compared while it is in the cache. The
document table is read in batches. Memory: a few MiB, and 8 bytes per document of the shard. Faults of one kind among a
shard's tokens make one problem, which says how many there are and where the first one is; of a document table the first
wrong row is told.

SHA-256 of the file and of its content is as much work as decompressing it. A build knows a checksum that costs a tenth:
the XXH3-128 of the bytes that have a SHA-256, computed when they were written. Then that one is compared. If it is
another one, the file is read again for its SHA-256, so that the problem is the same.
"""

# pyright: reportUnknownMemberType=false
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import xxhash
import zstandard

from shards.errors import Problem
from shards.format import codec
from shards.format.arrays import Int64s, Rows
from shards.format.content_hash import split_column
from shards.format.document_table import add_source_counts, iter_checked_documents, number_sources
from shards.format.manifest import Manifest, SourceCounts
from shards.format.shard import Shard, compare_digest
from shards.stores.files import hash_file
from shards.terminal.reporter import Advance
from shards.validation.conversations import ConversationChecker, Fault
from shards.validation.files import Listing, check_shard_files, collect


@dataclass
class ShardFindings:
    """The findings of the full level for one shard."""

    problems: list[Problem] = field(default_factory=list[Problem])
    longest: dict[str, int] = field(default_factory=dict[str, int])
    """The longest document of each source, in tokens."""
    tokens: int = 0
    """Tokens that were read and checked."""
    documents: int = 0
    targets: Int64s | None = None
    """The targets of each source of conversations, `(sources,)`."""
    hashes: tuple[int, int] | None = None
    """The first halves of the lowest and the highest content hash; None if the document table cannot be trusted: it
    lacks rows, types are wrong, or there is a gap between documents."""


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
    ends = sources = None
    if documents in sound:
        with collect(found.problems, documents):
            ends, sources = _check_documents(shard, manifest, found)
    if tokens in sound:
        with collect(found.problems, tokens):
            chats = None
            if manifest.chat is not None and ends is not None and sources is not None:
                chats = ConversationChecker(manifest, manifest.chat, ends, sources)
            problems = _check_tokens(shard, ends, manifest, advance, checksums, chats)
            found.tokens = shard.num_tokens
            found.problems += problems
            if chats is not None and not problems:  # of wrong tokens, what else is wrong follows
                found.problems += _to_problems([chats.fault], tokens, "Build the shard again.")
                found.targets = chats.targets
    return found


def _check_documents(shard: Shard, manifest: Manifest, found: ShardFindings) -> tuple[Int64s, Int64s]:
    """Check one shard's document table, digest and rows.

    Returns:
        The last token of each document, and the place of its source among those of conversations, -1 for text (of a
        set without, nothing); `(documents,)`.

    Raises:
        ShardSetError: the table cannot be trusted.
        OSError: it cannot be read.
    """
    file, folder = shard.entry.files.documents, shard.store.folder
    if folder is not None:  # from another place, it is compared when it is read
        found.problems += compare_digest(file.path, file.sha256, hash_file(folder / file.path))
    ends, sources = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    conversations = {name: number for number, name in enumerate(manifest.conversations)}
    sums: dict[str, list[int]] = {}
    low, high = (1 << 64) - 1, 0
    for batch, _, stops in iter_checked_documents(shard, ["source", "unit", "row", "hash"]):
        ends.append(stops - 1)
        if manifest.chat is not None:
            sources.append(number_sources(shard, batch, conversations, default=-1))
        add_source_counts(batch, sums)
        hashes = split_column(batch.column("hash"))[:, 0]
        low, high = int(hashes.min(initial=low)), int(hashes.max(initial=high))
    # From here on others may rely on the table.
    found.documents, found.hashes = shard.num_documents, (low, high)
    found.longest = {source: most for source, (_, _, most) in sums.items()}
    held = {source: SourceCounts(tokens=own, documents=rows) for source, (own, rows, _) in sums.items()}
    for source in sorted(held.keys() | shard.entry.sources.keys()):
        there, said = held.get(source, "nothing"), shard.entry.sources.get(source, "nothing")
        if there != said:
            message = f"source {source!r}: {there} in the table; expected {said} by the manifest"
            found.problems.append(Problem("source_sum", file.path, message))
    return np.concatenate(ends), np.concatenate(sources)


def _check_tokens(
    shard: Shard,
    ends: Int64s | None,
    manifest: Manifest,
    advance: Advance | None,
    checksums: Mapping[str, str],
    chats: ConversationChecker | None = None,
) -> list[Problem]:
    """Check a shard's tokens, read once: both digests, frame checksums, the range of ids, the places of EOS and BOS."""
    file, dtype, entry, frames = shard.tokens_file, shard.dtype, shard.entry, shard.frames
    corrupt, beyond = Fault("frame_corrupt"), Fault("token_out_of_range")
    eos, bos = Fault("eos_misplaced"), Fault("bos_misplaced")
    eos_id, bos_id, vocab_size = manifest.tokenizer.eos_id, manifest.tokenizer.bos_id, manifest.vocab_size
    starts = None if ends is None else np.append(0, ends[:-1] + 1)[: len(ends)]
    known = [checksums.get(digest) for digest in (entry.files.tokens.sha256, entry.tokens_sha256)]
    file_hash, content_hash = (sha256() if checksum is None else xxhash.xxh3_128() for checksum in known)
    decompressor = zstandard.ZstdDecompressor()
    for number, data in codec.iter_compressed(file, frames, range(len(frames))):
        file_hash.update(data)
        try:
            content = codec.decompress_frame(decompressor, data, frames, number)
        except codec.CodecError as error:
            corrupt.add(1, str(error))
            continue
        content_hash.update(content)
        # A frame that decompresses: its ids, and where EOS and BOS are in it.
        tokens = np.frombuffer(content, dtype)
        first = number * codec.FRAME_BYTES // dtype.itemsize
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
    file_hash.update(file.read_range(frames.bounds[-1], entry.files.tokens.bytes))  # the seek table
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
    fault: Fault,
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


def _to_problems(faults: list[Fault], name: str, remedy: str) -> list[Problem]:
    problems: list[Problem] = []
    for fault in faults:
        if fault.count:
            more = f" (the first of {fault.count})" if fault.count > 1 else ""
            problems.append(Problem(fault.kind, name, f"{fault.first}{more}. {remedy}"))
    return problems
