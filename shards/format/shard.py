"""One shard of a set: its tokens and its document table, and files as the manifest lists them.

`Shard.read` decompresses just the frames that it needs. Sizes are compared when a set is opened: that costs one stat in
a folder, and in a store its part of one listing; no file is read for it. Equal sizes do not prove equal bytes: a digest
does, and costs reading the file.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from shards.errors import Problem, ProblemKind, ShardSetError, plural, remedy_of, set_error
from shards.format import codec
from shards.format.arrays import TokenDtype, Tokens
from shards.format.manifest import FileEntry, Manifest, ShardEntry
from shards.stores.cache_store import CacheStore
from shards.stores.store import Store, StoredFile

if TYPE_CHECKING:
    import pyarrow as pa

NAME_COLUMNS = ("source", "unit")
MAX_NAME_BYTES = 1 << 16
"""A longer value of `source` or `unit` is refused: it is copied for batches and messages. A path has at most 4,096."""

NAMES_BYTES, NAME_BYTES = 1 << 24, 1 << 10
"""A row group's values of such a column take at most this, and this for each row; it is known before they are read."""

BATCH_DOCUMENTS = 1 << 17

DocumentBatch: TypeAlias = Any
"""A `pa.RecordBatch`. pyarrow's stubs cannot express the types of its columns."""


@dataclass(frozen=True)
class Shard:
    """One shard. Safe to share between threads."""

    store: Store
    entry: ShardEntry
    dtype: TokenDtype
    vocab_size: int

    def __repr__(self) -> str:
        return f"<Shard {self.name}: {plural(self.num_tokens, 'token')} in {plural(self.num_documents, 'document')}>"

    @property
    def name(self) -> str:
        """The name, such as `train-00000`."""
        return self.entry.name

    @property
    def num_tokens(self) -> int:
        """Tokens, EOS included."""
        return self.entry.tokens

    @property
    def num_documents(self) -> int:
        """Documents of a shard."""
        return self.entry.documents

    @property
    def tokens_file(self) -> StoredFile:
        """The compressed tokens file."""
        return StoredFile(self.store, self.entry.files.tokens.path)

    @property
    def cached(self) -> bool:
        """Whether it is read through a cache, which fetches it whole at the first read."""
        return isinstance(self.store, CacheStore)

    @cached_property
    def frames(self) -> codec.Frames:
        """The frames by its seek table, read once; first the file is compared with the manifest.

        Raises:
            ShardSetError: the file is not what the manifest says, or the table is malformed.
        """
        file = self.entry.files.tokens
        content_bytes = self.num_tokens * self.dtype.itemsize
        with self._tell_damage(file, "seek_table"):
            self._compare(file)
            return codec.read_seek_table(self.tokens_file, size=file.bytes, content_bytes=content_bytes)

    def read(self, start: int = 0, stop: int | None = None) -> Tokens:
        """Read the tokens [start, stop).

        Args:
            start: first token.
            stop: one past the last; the shard's end when None.

        Returns:
            tokens: uint16 or uint32 `(stop - start,)`, writable, owned by the caller.

        Raises:
            ValueError: the range lies outside the shard.
            ShardSetError: the file is not what the manifest says, a frame is corrupt, or an id is outside the
                vocabulary.
        """
        # The end of the shard is the default; an empty range is allowed.
        stop = self.num_tokens if stop is None else stop
        self._check_range(start, stop)
        tokens = np.empty(stop - start, self.dtype)
        self.read_into(tokens, start)
        return tokens

    def read_into(self, out: Tokens, start: int) -> None:
        """Read tokens into an array, from `start` on. Memory: a decompressed frame. Raises what `read` raises."""
        self._check_range(start, start + len(out))
        file, store = self.tokens_file, self.store
        with (
            self._tell_damage(self.entry.files.tokens, "frame_corrupt"),
            # A cache keeps the file until it is read.
            store.hold(file.name) if isinstance(store, CacheStore) else contextlib.nullcontext(file) as held,
        ):
            codec.read_content(held, self.frames, start * self.dtype.itemsize, out.view(np.uint8).data)
        self._check_ids(out)

    def iter_tokens(self) -> Iterator[Tokens]:
        """Yield the tokens a frame (1 MiB) at a time, uint16 or uint32, read-only. Raises what `read` raises."""
        # The file is compared, and its table read, before the first frame is.
        frames = self.frames
        with self._tell_damage(self.entry.files.tokens, "frame_corrupt"):
            for content in codec.iter_frames(self.tokens_file, frames, range(len(frames))):
                tokens = np.frombuffer(content, self.dtype)
                self._check_ids(tokens)
                yield tokens

    def documents(self, columns: list[str] | None = None) -> pa.Table:
        """Read the document table, one row per document in shard order.

        Columns: `start` uint64, `length` uint32 (EOS included), `source` and `unit` dictionary<string>, `row` uint32,
        `hash` fixed_size_binary(16).

        Args:
            columns: only these columns, or all when None.

        Raises:
            ShardSetError: kind `document_table`: the table cannot be read, or is not what FORMAT.md says.
            OSError: this process may not read the file, or has too many files open.
        """
        import pyarrow as pa

        schema = document_schema()
        own: list[Any] = [schema.field(name) for name in (schema.names if columns is None else columns)]
        return pa.Table.from_batches(list(iter_documents(self, columns)), pa.schema(own))

    def documents_source(self) -> Path | io.BytesIO:
        """Return the document table, compared with the manifest: its path, else its bytes.

        Raises:
            ShardSetError: the file is not what the manifest says.
        """
        # A table in a folder is read by its path, without a copy.
        file = self.entry.files.documents
        if self.store.folder is not None:
            self._compare(file)
            return self.store.folder / file.path
        return io.BytesIO(read_listed_file(self.store, file.path, file.sha256))

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.num_tokens:
            raise ValueError(f"{self.name}: tokens [{start}, {stop}) lie outside [0, {self.num_tokens})")

    def _check_ids(self, tokens: Tokens) -> None:
        """Refuse an id outside the vocabulary: a model's embedding has no row for it, and nobody knows its text."""
        if len(tokens) and (most := int(tokens.max())) >= self.vocab_size:
            found = f"holds the id {most}; expected less than vocab_size {self.vocab_size}. Validate the set."
            raise set_error("token_out_of_range", self.tokens_file.name, found)

    def _compare(self, file: FileEntry) -> None:
        """Compare a file with the manifest before a read: its size, if that takes no request."""
        # The cache compares size and digest of what it has fetched; elsewhere, a seek table is found only in a file of
        # the manifest's size.
        if self.cached or self.store.request_bytes:
            return
        if problems := compare_size(self.store, file, find_size(self.store, file.path)):
            raise ShardSetError(problems)

    @contextlib.contextmanager
    def _tell_damage(self, file: FileEntry, kind: ProblemKind) -> Generator[None]:
        """Turn errors of a read in the body into those of a file that is damaged, or missing from the set's place."""
        try:
            yield
        except codec.CodecError as error:
            raise set_error(kind, file.path, f"{error}. {say_remedy(self.store)}") from error
        except FileNotFoundError as error:
            # The cache hides the set; ask where the set is.
            place = self.store.remote if isinstance(self.store, CacheStore) else self.store
            if not (problems := compare_size(place, file, find_size(place, file.path))):
                raise  # of the cache's own folder
            raise ShardSetError(problems) from error

    def wrong_table(self, found: str) -> ShardSetError:
        """Return the error of a document table that is not what the manifest says."""
        return set_error("document_table", self.entry.files.documents.path, f"{found}. {say_remedy(self.store)}")


class Shards(tuple[Shard, ...]):
    """Shards in order: a tuple with their sums, whose `repr` is one line."""

    @property
    def num_tokens(self) -> int:
        """Tokens, EOS included."""
        return sum(shard.num_tokens for shard in self)

    @property
    def num_documents(self) -> int:
        """Documents."""
        return sum(shard.num_documents for shard in self)

    def __repr__(self) -> str:
        return (
            f"<{plural(len(self), 'shard')}: {plural(self.num_tokens, 'token')} in "
            f"{plural(self.num_documents, 'document')}>"
        )


def document_schema() -> pa.Schema:
    """Return the Arrow schema of a document table, one row per document in shard order."""
    import pyarrow as pa

    # Names repeat from row to row.
    names = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field("start", pa.uint64(), nullable=False),
            pa.field("length", pa.uint32(), nullable=False),
            pa.field("source", names, nullable=False),
            pa.field("unit", names, nullable=False),
            pa.field("row", pa.uint32(), nullable=False),
            pa.field("hash", pa.binary(16), nullable=False),
        ]
    )


def iter_documents(
    shard: Shard, columns: list[str] | None = None, *, batch_size: int = BATCH_DOCUMENTS
) -> Iterator[DocumentBatch]:
    """Yield a shard's document table, or some columns of it, in record batches, in shard order.

    Its columns and number of rows are checked before a row is read.

    Args:
        shard: the shard.
        columns: only these columns, or all when None.
        batch_size: the most rows of a batch.

    Raises:
        ShardSetError: kind `document_table`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = shard.documents_source()
    try:
        with pq.ParquetFile(source) as file:
            # Columns and rows are known from the footer alone.
            rows, expected = file.metadata.num_rows, document_schema()
            if not file.schema_arrow.equals(expected, check_metadata=False):
                raise shard.wrong_table(f"columns {_show_schema(file.schema_arrow)}; expected {_show_schema(expected)}")
            if rows != shard.num_documents:
                expected_rows = plural(shard.num_documents, "document")
                raise shard.wrong_table(f"{plural(rows, 'row')}; expected {expected_rows} by the manifest")
            if found := _find_large_names(file.metadata):
                raise shard.wrong_table(found)
            # Threads of Arrow would compete with those of the caller.
            for batch in file.iter_batches(batch_size=batch_size, columns=columns, use_threads=False):
                if found := _find_long_name(batch):
                    raise shard.wrong_table(found)
                yield batch
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, ShardSetError) or remedy_of(error):
            raise
        raise shard.wrong_table(f"not a readable Parquet file: {error}") from error


def _show_schema(schema: pa.Schema) -> str:
    fields: list[Any] = list(schema)
    return ", ".join(f"{f.name}: {f.type}{'' if f.nullable else ' required'}" for f in fields)[:600]


def _find_large_names(metadata: Any) -> str:
    """Return what is wrong with the size of a document table's names, by its footer; empty if nothing is."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        most = NAMES_BYTES + NAME_BYTES * group.num_rows
        for column in map(group.column, range(group.num_columns)):
            name, size = column.path_in_schema, column.total_uncompressed_size
            if name in NAME_COLUMNS and size > most:
                return (
                    f"the values of {name} take {size:,} bytes for {group.num_rows:,} rows; expected at most {most:,}"
                )
    return ""


def _find_long_name(batch: Any) -> str:
    """Return which value of a batch of a document table is too long; empty if none is."""
    for name in sorted({*NAME_COLUMNS} & {*batch.schema.names}):
        texts = batch.column(name).dictionary
        ends = np.frombuffer(texts.buffers()[1] or b"", np.int32)[texts.offset :][: len(texts) + 1]
        if (longest := int(np.diff(ends).max(initial=0))) > MAX_NAME_BYTES:
            return f"a value of {name} has {longest:,} bytes; expected at most {MAX_NAME_BYTES:,}"
    return ""


AGAIN = "Copy or build it again."


def compare_sizes(store: Store, manifest: Manifest) -> list[Problem]:
    """Return a problem for each listed file that is missing, or has another size than the manifest says.

    Raises:
        OSError: the folder cannot be read.
        InputError: the store cannot be listed.
    """
    # One listing of a store; a stat for each file of a folder.
    if store.folder is None:
        sizes: Mapping[str, int] = {file.name: file.bytes for file in store.list()}
    else:
        sizes = {name: size for name in manifest.digests if (size := find_size(store, name)) is not None}
    unsized = (manifest.tokenizer.file, manifest.recipe.file)  # these have only a digest in the manifest
    problems = [_missing(store, name) for name in unsized if name not in sizes]
    for file in manifest.files:
        problems += compare_size(store, file, sizes.get(file.path))
    return problems


def find_size(store: Store, name: str) -> int | None:
    """Return the size in bytes of a listed file, or None if it is missing."""
    try:
        return store.size(name)
    except (FileNotFoundError, NotADirectoryError):
        return None


def compare_size(store: Store, file: FileEntry, size: int | None) -> list[Problem]:
    """Return the problem of a listed file of another size than the manifest's, or of one that is missing (None)."""
    if size is None:
        return [_missing(store, file.path)]
    found = f"{size:,} bytes in {store}; expected {file.bytes:,} by the manifest"
    return [] if size == file.bytes else [Problem("file_size", file.path, f"{found}. {say_remedy(store)}")]


def check_most(name: str, size: int, most: int, *, kind: ProblemKind = "file_size") -> list[Problem]:
    """Return the problem of a file that is too large to be read whole: a hostile one must not fill the memory."""
    return [] if size <= most else [Problem(kind, name, f"{size:,} bytes; expected at most {most:,}. Not read.")]


def say_remedy(store: Store) -> str:
    """Return the remedy for a listed file that is missing or is not what the manifest says."""
    again = "Copy, pull or build it again" if store.folder is not None else "Push or build it again"
    return f"{again}; tokenmill validate {store} finds what is damaged."


def read_listed_file(store: Store, name: str, sha256: str) -> bytes:
    """Read a whole file that a set's manifest lists, and check it against its SHA-256.

    Raises:
        ShardSetError: its bytes do not have that digest, or it is missing.
        OSError: it cannot be read.
    """
    try:
        content = store.read(name)
    except FileNotFoundError as error:
        if find_size(store, name) is not None:
            raise
        raise ShardSetError([_missing(store, name)]) from error
    if problems := compare_digest(name, sha256, hashlib.sha256(content).hexdigest(), remedy=say_remedy(store)):
        raise ShardSetError(problems)
    return content


def compare_digest(name: str, expected: str, digest: str, *, remedy: str = AGAIN) -> list[Problem]:
    """Return the problem of a listed file whose SHA-256 is not the manifest's."""
    message = f"sha256 is {digest}; expected {expected} by the manifest. {remedy}"
    return [] if digest == expected else [Problem("file_checksum", name, message)]


def _missing(store: Store, name: str) -> Problem:
    return Problem("file_missing", name, f"in the manifest, but not in {store}. {say_remedy(store)}")
