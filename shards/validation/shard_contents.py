"""The full level for one shard: check its document table and every token.

Tokens are streamed: one frame is read, hashed, decompressed, hashed again and compared while it is in the cache. The
document table is read in batches. Memory: a few MiB, and 8 bytes per document of the shard. Faults of one kind in one
shard make one problem, which says how many there are and where the first one is.

SHA-256 of the file and of its content is as much work as decompressing it. Whoever wrote the files may know a checksum
that costs a tenth: the XXH3-128 of the bytes that have a SHA-256, computed of the same bytes at the same time. Then
that one is compared. If it is, the bytes are the same, except with a chance of 1 in 2^128; if it is not, the file is
read again for its SHA-256, so that the problem is the same one. A digest in the manifest that the writer did not
compute has no such checksum.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
import zstandard

from shards.errors import Problem, ProblemKind, ShardSetError, plural, remedy_of
from shards.format import codec
from shards.format.content_hash import split_column
from shards.format.document_table import add_source_counts, iter_documents
from shards.format.equal_hashes import cover_hashes
from shards.format.manifest import SourceCounts
from shards.format.reader import Shard, ShardSet
from shards.stores.files import hash_file
from shards.stores.store import require_folder
from shards.validation import duplicates
from shards.validation.carried import CarriedValues

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass
class ShardContents:
    """The result of the full level for one shard.

    `longest` is the longest document of each source, in tokens. `table_sound` is True if the document table can
    be trusted: it has the number of rows in the manifest, the right types, and no gap between documents. `coverage`
    says which ranges of hashes its documents are in, if that was asked for.
    """

    problems: list[Problem] = field(default_factory=list[Problem])
    longest: dict[str, int] = field(default_factory=dict[str, int])
    tokens: int = 0
    documents: int = 0
    table_sound: bool = False
    coverage: int | None = None


@dataclass
class _Fault:
    """Faults of one kind in one shard: their number, and the first one."""

    kind: ProblemKind
    count: int = 0
    first: str = ""

    def add(self, count: int, first: str) -> None:
        self.count += count
        self.first = self.first or first


@dataclass
class _Table:
    """The content of a document table: the ends of documents, and the totals of each source."""

    ends: npt.NDArray[np.int64]
    sums: dict[str, SourceCounts]
    longest: dict[str, int]
    coverage: int | None


@dataclass(frozen=True, slots=True)
class ContentRules:
    """How the contents of a set's shards are checked."""

    vocab_size: int
    """Every id must be smaller."""
    eos_id: int
    """The id that must end every document and appear nowhere else."""
    cover: bool = False
    """Whether to find out which ranges of hashes the documents are in."""
    checksums: Mapping[str, str] = field(default_factory=dict[str, str])
    """By SHA-256 the XXH3-128 of the same bytes, both in hex, as far as the writer has computed them."""
    bos_id: int | None = None
    """The id that must begin every document and appear nowhere else; None if none does."""


def check_shard_contents(
    shard: Shard, sound: set[str], rules: ContentRules, *, advance: Callable[[int], None] | None = None
) -> ShardContents:
    """Check one shard in full.

    Args:
        shard: the shard.
        sound: the names of the files that passed the quick level; others are not opened.
        rules: how the contents are checked.
        advance: called with the number of tokens checked since the last call.
    """
    found = ShardContents()
    files = shard.entry.files
    table: _Table | None = None
    if files.documents.path in sound:
        try:
            problems, table = _check_documents(shard, with_hashes=rules.cover)
        except OSError as error:
            problems = [_unreadable(files.documents.path, error)]
        found.problems += problems
    if table is not None:
        found.longest, found.documents, found.table_sound = table.longest, len(table.ends), True
        found.coverage = table.coverage
    if files.tokens.path in sound:
        ends = None if table is None else table.ends
        try:
            found.problems += _check_tokens(shard, ends, rules, advance)
            found.tokens = shard.num_tokens
        except OSError as error:
            found.problems.append(_unreadable(files.tokens.path, error))
    return found


def _check_documents(shard: Shard, *, with_hashes: bool) -> tuple[list[Problem], _Table | None]:
    """Check the document table's digest and rows. A table on another machine is read once, whole."""
    file = shard.entry.files.documents
    content = None if shard.store.folder is not None else shard.store.read(file.path)
    digest = hash_file(require_folder(shard.store) / file.path) if content is None else sha256(content).hexdigest()
    problems = [] if digest == file.sha256 else [_wrong_digest("file_checksum", file.path, digest, file.sha256)]
    more, table = _check_rows(shard, content, with_hashes=with_hashes)
    return problems + more, table


def _check_rows(shard: Shard, content: bytes | None, *, with_hashes: bool) -> tuple[list[Problem], _Table | None]:
    """Check that there is no gap between documents and that each source's totals equal the manifest's."""
    name = shard.entry.files.documents.path
    gaps, empty = _Fault("document_table"), _Fault("document_table")
    ends: list[npt.NDArray[np.int64]] = []
    sums: dict[str, list[int]] = {}
    position = row = coverage = 0
    columns = ["start", "length", "source", "unit", "row", *(["hash"] if with_hashes else []), *shard.carried]
    carried = CarriedValues(shard)
    try:
        for batch in iter_documents(shard, columns, content):
            start: npt.NDArray[np.int64] = np.from_dlpack(batch.column("start")).view(np.int64)
            length: npt.NDArray[np.int64] = np.from_dlpack(batch.column("length")).astype(np.int64)
            stop = np.cumsum(length) + position
            wrong = np.flatnonzero(start != stop - length)
            if len(wrong):
                at = int(wrong[0])
                gaps.add(len(wrong), f"document {row + at} starts at {start[at]}; expected {stop[at] - length[at]}")
            if not length.all():
                empty.add(int((length == 0).sum()), f"document {row + int((length == 0).argmax())} has length 0")
            if not gaps.count:  # a broken table is not kept: the shard's tokens do not bound its memory
                ends.append(stop - 1)
            add_source_counts(batch, sums)
            if with_hashes:
                coverage |= cover_hashes(split_column(batch.column("hash"))[:, 0])
            carried.add(batch)
            position, row = int(stop[-1]) if len(stop) else position, row + len(stop)
    except ShardSetError as error:
        return error.problems, None
    problems = _to_problems([gaps, empty], name, "The table and the tokens come from different builds.")
    problems += carried.find_problems()
    if position != shard.num_tokens:
        message = f"lengths add up to {position}; expected {plural(shard.num_tokens, 'token')} by the manifest"
        problems.append(Problem("document_table", name, message))
    counts = {source: SourceCounts(tokens=tokens, documents=rows) for source, (tokens, rows, _) in sums.items()}
    for source in sorted(counts.keys() | shard.entry.sources.keys()):
        said, held = shard.entry.sources.get(source), counts.get(source)
        if said != held:
            message = (
                f"source {source!r}: {held or 'nothing'} in the table; expected {said or 'nothing'} by the manifest"
            )
            problems.append(Problem("source_sum", name, message))
    if gaps.count or empty.count or position != shard.num_tokens:
        return problems, None
    longest = {source: most for source, (_, _, most) in sums.items()}
    all_ends = np.concatenate(ends) if ends else np.empty(0, np.int64)
    return problems, _Table(all_ends, counts, longest, coverage if with_hashes else None)


def _check_tokens(
    shard: Shard, ends: npt.NDArray[np.int64] | None, rules: ContentRules, advance: Callable[[int], None] | None
) -> list[Problem]:
    """Check the tokens file by the writer's checksums if they are known, and then what they find by SHA-256."""
    entry, checksums = shard.entry, rules.checksums
    known = checksums.get(entry.files.tokens.sha256), checksums.get(entry.tokens_sha256)
    if None in known:
        return _read_tokens(shard, ends, rules, (None, None), advance)
    problems = _read_tokens(shard, ends, rules, known, advance)
    # A fault that is not found again was there once: a disk that gives other bytes each time.
    return (_read_tokens(shard, ends, rules, (None, None), None) or problems) if problems else []


def _read_tokens(
    shard: Shard,
    ends: npt.NDArray[np.int64] | None,
    rules: ContentRules,
    known: tuple[str | None, str | None],
    advance: Callable[[int], None] | None,
) -> list[Problem]:
    """Read the tokens file once and check both digests, frame checksums, the range of ids, the places of EOS and BOS.

    `known` are the XXH3-128 of the file and of its content, to compare instead of their SHA-256.
    """
    file, dtype, entry = shard.tokens_file, shard.dtype, shard.entry
    try:
        frames = shard.frames
    except ShardSetError as error:
        return error.problems
    corrupt, beyond = _Fault("frame_corrupt"), _Fault("token_out_of_range")
    eos, bos = _Fault("eos_misplaced"), _Fault("bos_misplaced")
    starts = None if ends is None or rules.bos_id is None else np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    file_hash = _Digest("file_checksum", file.name, entry.files.tokens.sha256, known[0])
    content_hash = _Digest("tokens_checksum", file.name, entry.tokens_sha256, known[1])
    decompressor = zstandard.ZstdDecompressor()
    for frame, data in codec.iter_compressed(file, frames):
        file_hash.update(data)
        try:
            content = codec.decompress_frame(decompressor, data, frame)
        except codec.CodecError as error:
            corrupt.add(1, str(error))
            continue
        content_hash.update(content)
        tokens = np.frombuffer(content, dtype)
        first = frame.start // dtype.itemsize
        _check_range(tokens, first, rules.vocab_size, beyond)
        if ends is not None:
            _check_mark(tokens, first, ends, rules.eos_id, eos, ("ends", "EOS"))
        if starts is not None and rules.bos_id is not None:
            _check_mark(tokens, first, starts, rules.bos_id, bos, ("begins", "BOS"))
        if advance is not None:
            advance(len(tokens))
    size = entry.files.tokens.bytes  # a sound file has it; what follows the frames is the seek table
    for start in range(frames[-1].file_stop if frames else 0, size, codec.FRAME_BYTES):
        file_hash.update(file.read_range(start, min(start + codec.FRAME_BYTES, size)))
    problems = file_hash.problems()
    if not corrupt.count:
        problems += content_hash.problems()
    return problems + _to_problems([corrupt, beyond, eos, bos], file.name, "Copy or build the shard again.")


class _Digest:
    """The digest of bytes as they are read: SHA-256, or XXH3-128 if its right value is known, too."""

    def __init__(self, kind: ProblemKind, name: str, sha256_hex: str, xxh3_hex: str | None):
        self._place = kind, name
        self._hash = sha256() if xxh3_hex is None else xxhash.xxh3_128()
        self._expected = sha256_hex if xxh3_hex is None else xxh3_hex
        self.update = self._hash.update

    def problems(self) -> list[Problem]:
        """Return a problem if the digest is another one than expected."""
        digest = self._hash.hexdigest()
        return [] if digest == self._expected else [_wrong_digest(*self._place, digest, self._expected)]


def _check_range(tokens: npt.NDArray[Any], first: int, vocab_size: int, fault: _Fault) -> None:
    if int(tokens.max()) < vocab_size:
        return
    wrong = np.flatnonzero(tokens >= vocab_size)
    at = int(wrong[0])
    fault.add(len(wrong), f"token {first + at} is {tokens[at]}; expected less than vocab_size {vocab_size}")


def _check_mark(
    tokens: npt.NDArray[Any],
    first: int,
    places: npt.NDArray[np.int64],
    mark: int,
    fault: _Fault,
    words: tuple[str, str],
) -> None:
    """Check that an id occurs in a frame exactly where documents end (or begin) by the table."""
    low, high = np.searchsorted(places, [first, first + len(tokens)])
    here = places[low:high] - first
    is_mark = tokens == mark
    if np.count_nonzero(is_mark) == len(here) and bool(is_mark[here].all()):
        return
    does, name = words
    absent = here[~is_mark[here]]
    if len(absent):
        at = int(absent[0])
        fault.add(len(absent), f"token {first + at} {does} a document but is {tokens[at]}; expected {name} {mark}")
    is_mark[here] = False
    inside = np.flatnonzero(is_mark)
    if len(inside):
        fault.add(len(inside), f"token {first + int(inside[0])} is {name} {mark} inside a document")


def _wrong_digest(kind: ProblemKind, name: str, digest: str, expected: str) -> Problem:
    algorithm = "sha256" if len(expected) == 64 else "xxh3_128"
    what = algorithm if kind == "file_checksum" else f"{algorithm} of the decompressed tokens"
    return Problem(kind, name, f"{what} is {digest}; expected {expected} by the manifest. Copy or build it again.")


def _unreadable(name: str, error: OSError) -> Problem:
    return Problem("file_unreadable", name, f"cannot be read: {error}{remedy_of(error)}")


def _to_problems(faults: list[_Fault], name: str, remedy: str) -> list[Problem]:
    problems: list[Problem] = []
    for fault in faults:
        if fault.count:
            more = f" (the first of {fault.count})" if fault.count > 1 else ""
            problems.append(Problem(fault.kind, name, f"{fault.first}{more}. {remedy}"))
    return problems


def content_rules(shard_set: ShardSet, checksums: Mapping[str, str] | None = None) -> ContentRules:
    """Return the rules by which the contents of a set's shards are checked; `checksums` as in `ContentRules`."""
    documents = sum(shard.num_documents for shard in shard_set.shards)
    cover = documents > duplicates.PARTITION_DOCUMENTS
    return ContentRules(shard_set.vocab_size, shard_set.eos_id, cover, checksums or {}, shard_set.bos_id)
