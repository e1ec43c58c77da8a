"""The full level for one shard: check its document table and every token.

Tokens are streamed: one frame is read, hashed, decompressed, hashed again and compared while it is in the cache. The
document table is read in batches. Memory: a few MiB, and 8 bytes a document of the shard. Faults of one kind in one
shard make one problem, which says how many there are and where the first one is.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from shards.errors import Problem, ProblemKind, ShardSetError
from shards.format import codec
from shards.format.documents import iter_documents
from shards.format.manifest import SourceCounts
from shards.format.reader import Shard
from shards.format.writer import add_lengths
from shards.stores.files import hash_file
from shards.stores.store import require_folder

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass
class ShardContents:
    """The result of the full level for one shard.

    `longest` is the longest document of each source, in tokens. `table_sound` is True if the document table can
    be trusted: it has the number of rows in the manifest, the right types, and no gap between documents.
    """

    problems: list[Problem] = field(default_factory=list[Problem])
    longest: dict[str, int] = field(default_factory=dict[str, int])
    tokens: int = 0
    documents: int = 0
    table_sound: bool = False


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


def check_contents(
    shard: Shard, sound: set[str], *, vocab_size: int, eos_id: int, advance: Callable[[int], None] | None = None
) -> ShardContents:
    """Check one shard in full.

    Args:
        shard: the shard.
        sound: the names of the files that passed the quick level; others are not opened.
        vocab_size: the size of the vocabulary; every id must be smaller.
        eos_id: the id that must end every document and appear nowhere else.
        advance: called with the number of tokens checked since the last call.
    """
    found = ShardContents()
    files = shard.entry.files
    table: _Table | None = None
    if files.documents.path in sound:
        try:
            problems, table = _check_documents(shard)
        except OSError as error:
            problems = [_unreadable(files.documents.path, error)]
        found.problems += problems
    if table is not None:
        found.longest, found.documents, found.table_sound = table.longest, len(table.ends), True
    if files.tokens.path in sound:
        ends = None if table is None else table.ends
        try:
            found.problems += _check_tokens(shard, ends, vocab_size=vocab_size, eos_id=eos_id, advance=advance)
            found.tokens = shard.num_tokens
        except OSError as error:
            found.problems.append(_unreadable(files.tokens.path, error))
    return found


def _check_documents(shard: Shard) -> tuple[list[Problem], _Table | None]:
    """Check the document table's digest and rows. A table on another machine is read once, whole."""
    file = shard.entry.files.documents
    content = None if shard.store.folder is not None else shard.store.read(file.path)
    digest = hash_file(require_folder(shard.store) / file.path) if content is None else sha256(content).hexdigest()
    problems = [] if digest == file.sha256 else [_wrong_digest("file_checksum", file.path, digest, file.sha256)]
    more, table = _check_rows(shard, content)
    return problems + more, table


def _check_rows(shard: Shard, content: bytes | None) -> tuple[list[Problem], _Table | None]:
    """Check that there is no gap between documents and that each source's totals equal the manifest's."""
    name = shard.entry.files.documents.path
    gaps, empty = _Fault("document_table"), _Fault("document_table")
    ends: list[npt.NDArray[np.int64]] = []
    sums: dict[str, list[int]] = {}
    position = row = 0
    try:
        for batch in iter_documents(shard, ["start", "length", "source", "unit", "row"], content):
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
            add_lengths(batch, sums)
            position, row = int(stop[-1]) if len(stop) else position, row + len(stop)
    except ShardSetError as error:
        return error.problems, None
    problems = _to_problems([gaps, empty], name, "The table and the tokens come from different builds.")
    if position != shard.num_tokens:
        message = f"lengths add up to {position}; expected {shard.num_tokens} tokens by the manifest"
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
    return problems, _Table(np.concatenate(ends) if ends else np.empty(0, np.int64), counts, longest)


def _check_tokens(
    shard: Shard,
    ends: npt.NDArray[np.int64] | None,
    *,
    vocab_size: int,
    eos_id: int,
    advance: Callable[[int], None] | None,
) -> list[Problem]:
    """Read the tokens file once and check both digests, frame checksums, the range of ids, and the places of EOS."""
    file, dtype = shard.tokens_file, shard.dtype
    try:
        frames = shard.seek_table.frames
    except ShardSetError as error:
        return error.problems
    corrupt, beyond, eos = _Fault("frame_corrupt"), _Fault("token_out_of_range"), _Fault("eos_misplaced")
    file_hash, content_hash = sha256(), sha256()
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
        _check_range(tokens, first, vocab_size, beyond)
        if ends is not None:
            _check_eos(tokens, first, ends, eos_id, eos)
        if advance is not None:
            advance(len(tokens))
    size = shard.entry.files.tokens.bytes  # a sound file has it; what follows the frames is the seek table
    for start in range(frames[-1].file_stop if frames else 0, size, codec.FRAME_BYTES):
        file_hash.update(file.read_range(start, min(start + codec.FRAME_BYTES, size)))
    problems: list[Problem] = []
    if file_hash.hexdigest() != shard.entry.files.tokens.sha256:
        problems.append(
            _wrong_digest("file_checksum", file.name, file_hash.hexdigest(), shard.entry.files.tokens.sha256)
        )
    if not corrupt.count and content_hash.hexdigest() != shard.entry.tokens_sha256:
        digest = content_hash.hexdigest()
        problems.append(_wrong_digest("tokens_checksum", file.name, digest, shard.entry.tokens_sha256))
    return problems + _to_problems([corrupt, beyond, eos], file.name, "Copy or build the shard again.")


def _check_range(tokens: npt.NDArray[Any], first: int, vocab_size: int, fault: _Fault) -> None:
    if int(tokens.max()) < vocab_size:
        return
    wrong = np.flatnonzero(tokens >= vocab_size)
    at = int(wrong[0])
    fault.add(len(wrong), f"token {first + at} is {tokens[at]}; expected less than vocab_size {vocab_size}")


def _check_eos(tokens: npt.NDArray[Any], first: int, ends: npt.NDArray[np.int64], eos_id: int, fault: _Fault) -> None:
    """Compare the places of EOS in one frame with the ends of documents in the table."""
    low, high = np.searchsorted(ends, [first, first + len(tokens)])
    here = ends[low:high] - first
    is_eos = tokens == eos_id
    if np.count_nonzero(is_eos) == len(here) and bool(is_eos[here].all()):
        return
    absent = here[~is_eos[here]]
    if len(absent):
        at = int(absent[0])
        fault.add(len(absent), f"token {first + at} ends a document but is {tokens[at]}; expected EOS {eos_id}")
    is_eos[here] = False
    inside = np.flatnonzero(is_eos)
    if len(inside):
        fault.add(len(inside), f"token {first + int(inside[0])} is EOS {eos_id} inside a document")


def _wrong_digest(kind: ProblemKind, name: str, digest: str, expected: str) -> Problem:
    what = "sha256" if kind == "file_checksum" else "sha256 of the decompressed tokens"
    return Problem(kind, name, f"{what} is {digest}; expected {expected} by the manifest. Copy or build it again.")


def _unreadable(name: str, error: OSError) -> Problem:
    return Problem("file_unreadable", name, f"cannot be read: {error}")


def _to_problems(faults: list[_Fault], name: str, remedy: str) -> list[Problem]:
    problems: list[Problem] = []
    for fault in faults:
        if fault.count:
            more = f" (the first of {fault.count})" if fault.count > 1 else ""
            problems.append(Problem(fault.kind, name, f"{fault.first}{more}. {remedy}"))
    return problems
