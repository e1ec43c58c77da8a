"""Read a shard set: open it, what its manifest says as properties, pick a shard, read its tokens or document table.

`open_set` reads the manifest and compares the sizes of all files with it. `Shard.read` decompresses just the frames it
needs. Opening does not validate: see `shards.validation.validate`, or `tokenmill validate`. A set is read through a
store (`shards.stores.store`): from a folder, or without a copy from a bucket (`s3://...`) or the Hub
(`hf://datasets/...`). Code that needs files on disk uses `ShardSet.path`.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import InputError, ProblemKind, ShardSetError, plural, remedy_of, set_error
from shards.format import codec
from shards.format.arrays import TOKEN_DTYPES, TokenDtype, Tokens
from shards.format.listed_files import (
    compare_size,
    compare_sizes,
    find_size,
    read_listed_file,
    say_remedy,
)
from shards.format.manifest import (
    MANIFEST_FILE,
    MAX_METADATA_BYTES,
    FileEntry,
    Manifest,
    ShardEntry,
    Split,
    parse_json,
)
from shards.format.vocabulary import MAX_TOKENIZER_BYTES, Vocabulary, read_vocabulary
from shards.stores.cache import Cache
from shards.stores.cache_store import CacheStore
from shards.stores.hub_store import HubStore
from shards.stores.open import AnyPath, open_store
from shards.stores.store import Store, StoredFile, require_folder

if TYPE_CHECKING:
    import pyarrow as pa
    import tokenizers

NAME_COLUMNS = ("source", "unit")
MAX_NAME_BYTES = 1 << 16
"""A longer value of `source` or `unit` is refused: it is copied for batches and messages. A path has at most 4,096."""

NAMES_BYTES, NAME_BYTES = 1 << 24, 1 << 10
"""A row group's values of such a column take at most this, and this for each row; it is known before they are read."""

_NAMES = "dictionary<values=string, indices=int32, ordered=0>"


@dataclass(frozen=True)
class Shard:
    """One shard. Safe to share between threads."""

    store: Store
    entry: ShardEntry
    dtype: TokenDtype

    def __repr__(self) -> str:
        return f"<Shard {self.name}: {plural(self.num_tokens, 'token')} in {plural(self.num_documents, 'document')}>"

    @property
    def name(self) -> str:
        """The name of the open shard, such as `train-00000`."""
        return self.entry.name

    @property
    def num_tokens(self) -> int:
        """Tokens of a shard that a reader has open, EOS included."""
        return self.entry.tokens

    @property
    def num_documents(self) -> int:
        """Documents in the open shard."""
        return self.entry.documents

    @property
    def tokens_file(self) -> StoredFile:
        """The compressed tokens file of the open shard."""
        return StoredFile(self.store, self.entry.files.tokens.path)

    @property
    def cached(self) -> bool:
        """Whether the open shard is read through a cache, which fetches it whole at the first read."""
        return isinstance(self.store, CacheStore)

    @cached_property
    def frames(self) -> codec.Frames:
        """The open shard's frames by its seek table, read once; first the file is compared with the manifest.

        Raises:
            ShardSetError: the file is not what the manifest says, or the table is malformed.
        """
        file = self.entry.files.tokens
        content_bytes = self.num_tokens * self.dtype.itemsize
        with self._tell_damage(file, "seek_table"):
            self._compare(file)
            return codec.read_seek_table(self.tokens_file, size=file.bytes, content_bytes=content_bytes)

    def read(self, start: int = 0, stop: int | None = None) -> Tokens:
        """Read the tokens [start, stop) of the open shard.

        Args:
            start: first token.
            stop: one past the last; the shard's end when None.

        Returns:
            tokens: uint16 or uint32 `(stop - start,)`, writable, owned by the caller.

        Raises:
            ValueError: the range lies outside the shard.
            ShardSetError: the file is not what the manifest says, or a frame is corrupt.
        """
        # The end of the shard is the default; an empty range is allowed.
        stop = self.num_tokens if stop is None else stop
        if not 0 <= start <= stop <= self.num_tokens:
            raise ValueError(f"{self.name}: tokens [{start}, {stop}) lie outside [0, {self.num_tokens})")
        tokens = np.empty(stop - start, self.dtype)
        self.read_into(tokens, start)
        return tokens

    def read_into(self, out: Tokens, start: int) -> None:
        """Read tokens of the open shard into an array, from `start` on. Memory: a decompressed frame.

        Raises:
            ValueError: the range lies outside the shard.
            ShardSetError: the file is not what the manifest says, or a frame is corrupt.
        """
        file, store = self.tokens_file, self.store
        with (
            self._tell_damage(self.entry.files.tokens, "frame_corrupt"),
            # A cache keeps the file until it is read.
            store.hold(file.name) if isinstance(store, CacheStore) else contextlib.nullcontext(file) as held,
        ):
            codec.read_content(held, self.frames, start * self.dtype.itemsize, out.view(np.uint8).data)

    def iter_tokens(self) -> Iterator[Tokens]:
        """Yield the open shard's tokens a frame (1 MiB) at a time, uint16 or uint32, read-only.

        Raises:
            ShardSetError: the file is not what the manifest says, or a frame is corrupt.
        """
        # The file is compared, and its table read, before the first frame is.
        frames = self.frames
        with self._tell_damage(self.entry.files.tokens, "frame_corrupt"):
            for content in codec.iter_frames(self.tokens_file, frames):
                yield np.frombuffer(content, self.dtype)

    def documents(self, columns: list[str] | None = None) -> pa.Table:
        """Read the document table of the open shard, one row per document in shard order.

        Columns: `start` uint64, `length` uint32 (EOS included), `source` and `unit` dictionary<string>, `row` uint32,
        `hash` fixed_size_binary(16).

        Args:
            columns: only these columns, or all when None.

        Raises:
            ShardSetError: kind `document_table`: the table cannot be read, or its names break a limit of FORMAT.md.
            OSError: this process may not read the file, or has too many files open.
        """
        import pyarrow.parquet as pq

        # Threads of Arrow would compete with those of the caller.
        source = self.documents_source()
        with self.table_errors("not a readable Parquet file"), pq.ParquetFile(source) as file:
            if not (found := find_large_names(file.metadata)):
                table = file.read(columns=columns, use_threads=False)
                if not (found := "".join(map(find_long_name, table.to_batches()))):
                    return table
        raise self.wrong_table(found)

    @contextlib.contextmanager
    def table_errors(self, found: str) -> Generator[None]:
        """Turn errors of Arrow in the body into those of the shard's damaged table, unless they have a remedy."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, ShardSetError) or remedy_of(error):
                raise
            raise self.wrong_table(f"{found}: {error}") from error

    def documents_source(self) -> Path | io.BytesIO:
        """Return the open shard's document table, compared with the manifest: its path, else its bytes.

        Raises:
            ShardSetError: the file is not what the manifest says.
        """
        # A table in a folder is read by its path, without a copy.
        file = self.entry.files.documents
        if self.store.folder is not None:
            self._compare(file)
            return self.store.folder / file.path
        return io.BytesIO(read_listed_file(self.store, file.path, file.sha256))

    def _compare(self, file: FileEntry) -> None:
        """Compare a file of the open shard with the manifest before a read: its size, if that takes no request.

        Raises:
            ShardSetError: the file is missing, or has another size.
        """
        # The cache compares size and digest of what it has fetched; elsewhere, a seek table is found only in a file of
        # the manifest's size.
        if self.cached or self.store.request_bytes:
            return
        if (problem := compare_size(self.store, file, find_size(self.store, file.path))) is not None:
            raise ShardSetError([problem])

    @contextlib.contextmanager
    def _tell_damage(self, file: FileEntry, kind: ProblemKind) -> Generator[None]:
        """Turn errors of a read in the body into those of a file that is damaged, or missing from the set's place."""
        try:
            yield
        except codec.CodecError as error:
            raise self._damaged(kind, file, str(error)) from error
        except FileNotFoundError as error:
            # The cache hides the set; ask where the set is.
            place = self.store.remote if isinstance(self.store, CacheStore) else self.store
            if (problem := compare_size(place, file, find_size(place, file.path))) is None:
                raise  # of the cache's own folder
            raise ShardSetError([problem]) from error

    def wrong_table(self, found: str) -> ShardSetError:
        """Return the error of the open shard's document table that is not what the manifest says."""
        return self._damaged("document_table", self.entry.files.documents, found)

    def _damaged(self, kind: ProblemKind, file: FileEntry, found: str) -> ShardSetError:
        """Return the error of a file of the open shard that is not what the manifest says.

        Args:
            kind: the kind of the problem.
            file: the file, as the manifest lists it.
            found: what was found in it, and what was expected.
        """
        # Another size than the manifest's says more than what a decoder found.
        with contextlib.suppress(OSError, InputError):  # a store that does not answer now
            if (size := self.store.size(file.path)) != file.bytes:
                found += f"; the file has {size} bytes; expected {file.bytes} by the manifest"
        return set_error(kind, file.path, f"{found}. {say_remedy(self.store)}")


class Shards(tuple[Shard, ...]):
    """Shards in order: a tuple with their sums, whose `repr` is one line."""

    @property
    def num_tokens(self) -> int:
        """Tokens in the open set's shards of a split, EOS included."""
        return sum(shard.num_tokens for shard in self)

    @property
    def num_documents(self) -> int:
        """Documents in the open set's shards of a split."""
        return sum(shard.num_documents for shard in self)

    def __repr__(self) -> str:
        return (
            f"<{plural(len(self), 'shard')}: {plural(self.num_tokens, 'token')} in "
            f"{plural(self.num_documents, 'document')}>"
        )


@dataclass(frozen=True)
class ShardSet:
    """A complete shard set. Use `open_set`. A pickle of it opens the same set in another process."""

    store: Store

    @property
    def path(self) -> Path:
        """The open set's folder on this machine, for code that needs files on disk.

        Raises:
            InputError: the set is not on this machine's disk.
        """
        return require_folder(self.store)

    def __repr__(self) -> str:
        read = f" {self.manifest.summary}" if "manifest" in self.__dict__ else ""  # a repr reads no files
        return f"<ShardSet at {self.store}{':' if read else ''}{read}>"

    def __reduce__(self) -> tuple[Callable[..., ShardSet], tuple[str, Cache | None, str]]:
        """Pickle the open set's address and identity, for a process in any folder; no manifest or credentials."""
        store, cache = self.store, None
        if isinstance(store, CacheStore):
            store, cache = store.remote, store.cache
        place = str(store.folder.absolute()) if store.folder is not None else str(store)
        if isinstance(store, HubStore):
            place = str(replace(store.address, revision=store.commit))  # of the commit that is read here
        return _reopen_set, (place, cache, self.manifest_sha256)

    @cached_property
    def _manifest_content(self) -> bytes:
        """The bytes of the open set's manifest.json, read once: its digest and what it says are of the same file."""
        try:
            # The size is asked first: a hostile file must not fill the memory.
            if (size := self.store.size(MANIFEST_FILE)) > MAX_METADATA_BYTES:
                raise set_error(
                    "manifest_invalid",
                    MANIFEST_FILE,
                    f"{size} bytes of metadata; expected at most {MAX_METADATA_BYTES}. Not read.",
                )
            return self.store.read(MANIFEST_FILE)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise set_error(
                "manifest_missing",
                MANIFEST_FILE,
                f"no {MANIFEST_FILE} in {self.store}: not a shard set, or its build or push did not finish. "
                "Run that again, or correct the address.",
            ) from error

    @cached_property
    def manifest(self) -> Manifest:
        """The open set's manifest, read once.

        Raises:
            ShardSetError: there is no manifest (the build or the push is incomplete), or it is not valid.
        """
        return parse_json(Manifest, self._manifest_content, where=MANIFEST_FILE)

    @cached_property
    def manifest_sha256(self) -> str:
        """Hex SHA-256 of the open set's manifest.json: its identity, since it names every file's digest."""
        return hashlib.sha256(self._manifest_content).hexdigest()

    @property
    def dtype(self) -> TokenDtype:
        """The dtype of the open set's tokens, little-endian."""
        return TOKEN_DTYPES[self.manifest.dtype]

    @property
    def vocab_size(self) -> int:
        """The number of vocabulary entries of the open set, special tokens included. Every id is smaller."""
        return self.manifest.vocab_size

    @property
    def bos_id(self) -> int | None:
        """The id that begins each document of the open set; None if none does."""
        return self.manifest.tokenizer.bos_id

    @property
    def eos_id(self) -> int:
        """The id that ends every document of the open set."""
        return self.manifest.tokenizer.eos_id

    @cached_property
    def source_numbers(self) -> dict[str, int]:
        """The place of each source in the open set's manifest, by name."""
        return {source.name: number for number, source in enumerate(self.manifest.sources)}

    @cached_property
    def splits(self) -> Mapping[Split, Shards]:
        """The open set's shards of each split, in order: `set.splits["train"][0]`."""
        return {split: Shards(s for s in self.shards if s.entry.split == split) for split in self.manifest.splits}

    @cached_property
    def shards(self) -> Shards:
        """Every shard of the open set, in the manifest's order."""
        return Shards(Shard(self.store, entry, self.dtype) for entry in self.manifest.shards)

    def shard(self, name: str) -> Shard:
        """Return the open set's shard of this name.

        Raises:
            KeyError: no shard has this name; the message lists a few names.
        """
        for shard in self.shards:
            if shard.name == name:
                return shard
        raise KeyError(f"no shard {name!r} in {self.store}; there are {', '.join(s.name for s in self.shards[:5])} ...")

    @property
    def tokenizer_json(self) -> bytes:
        """The bytes of the open set's tokenizer file, compared with the manifest; read each time.

        Raises:
            ShardSetError: the file is too large, or not what the manifest says.
            OSError: the file cannot be read.
        """
        entry = self.manifest.tokenizer
        if (size := find_size(self.store, entry.file) or 0) > MAX_TOKENIZER_BYTES:
            raise set_error("file_size", entry.file, f"{size} bytes; expected at most {MAX_TOKENIZER_BYTES}. Not read.")
        return read_listed_file(self.store, entry.file, entry.sha256)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The open set's bytes of every token id, and which ids its manifest lists as special; read once.

        Raises:
            ShardSetError: the tokenizer's file, or its number of entries, is not what the manifest says.
            InputError: the tokenizer's entries have no fixed bytes.
            OSError: the file cannot be read.
        """
        entry = self.manifest.tokenizer
        data = self.tokenizer_json
        try:
            vocabulary = read_vocabulary(data)
        except ValueError as error:
            raise InputError(str(error)) from error
        if len(vocabulary) != self.vocab_size:
            raise set_error(
                "tokenizer_mismatch",
                entry.file,
                f"has {plural(len(vocabulary), 'entry')}; expected {self.vocab_size} by the manifest. Validate the "
                "set.",
            )
        return replace(vocabulary, special=entry.special_tokens, bos=entry.bos_id)

    def tokenizer(self) -> tokenizers.Tokenizer:
        """Load the open set's tokenizer with the `tokenizers` library.

        Raises:
            ShardSetError: the tokenizer's file is not what the manifest says.
        """
        import tokenizers

        return tokenizers.Tokenizer.from_buffer(self.tokenizer_json)


def open_set(place: AnyPath, *, cache: Cache | None = None) -> ShardSet:
    """Open a shard set: read its manifest, and compare the sizes of all its files with it.

    Sizes cost a stat of each file in a folder, or one listing of a store. No shard is read.

    Args:
        place: a folder, `s3://BUCKET/PREFIX` (or `gs`, `az`), or `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`. The
            manifest is read at once, the shards when they are needed. From the Hub, every file is read at the commit
            that the revision names now.
        cache: keeps the shards of a set that is not on this machine: each is fetched whole and verified when it is
            first read. A set in a folder needs none, and does not use it. Without a cache only the requested ranges are
            read, and kept nowhere.

    Raises:
        ShardSetError: there is no manifest, it is not valid, a shard's file is missing or has another size than it
            says, or (with a cache) the tokenizer is not what it says.
        InputError: the store cannot be read or listed, the place is not the address of one, or the cache's limit
            is smaller than two shards of the set.
        OSError: the folder cannot be read.
    """
    shard_set = _open_in(open_store(place), cache)
    if problems := compare_sizes(shard_set.store, shard_set.manifest):
        raise ShardSetError(problems)
    return shard_set


def _reopen_set(place: str, cache: Cache | None, sha256: str) -> ShardSet:
    """Open the set of a pickle; sizes are compared when a shard is first read, not again for all of them.

    Raises:
        InputError: another set is there now.
    """
    shard_set = _open_in(open_store(place), cache)
    if (found := shard_set.manifest_sha256) != sha256:
        raise InputError(
            f"{place}: manifest sha256 {found}; expected {sha256}, the set that was pickled. It has changed since: "
            "open it, or make the dataset, again."
        )
    return shard_set


def _open_in(store: Store, cache: Cache | None) -> ShardSet:
    """Return the set of a store, and read its manifest; through a cache, manifest and tokenizer stay in memory."""
    shard_set = ShardSet(store)
    manifest = shard_set.manifest
    if cache is None or store.folder is not None:
        return shard_set
    # Manifest and tokenizer are small and needed by everyone: they stay in memory.
    tokenizer = manifest.tokenizer
    metadata = {
        MANIFEST_FILE: shard_set._manifest_content,  # pyright: ignore[reportPrivateUsage]
        tokenizer.file: shard_set.tokenizer_json,
    }
    files = {file.path: (file.bytes, file.sha256) for file in manifest.files}
    set_id = shard_set.manifest_sha256
    return ShardSet(CacheStore(store, cache, set_id=set_id, files=files, metadata=metadata))


def find_large_names(metadata: Any) -> str:
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


def find_long_name(batch: Any) -> str:
    """Return which value of a batch of a document table is too long, or no name at all; empty if none is."""
    for name in sorted({*NAME_COLUMNS} & {*batch.schema.names}):
        if str(found := batch.column(name).type) != _NAMES:
            return f"{name} is {found}; expected {_NAMES}"
        texts = batch.column(name).dictionary
        ends = np.frombuffer(texts.buffers()[1] or b"", np.int32)[texts.offset :][: len(texts) + 1]
        if (longest := int(np.diff(ends).max(initial=0))) > MAX_NAME_BYTES:
            return f"a value of {name} has {longest:,} bytes; expected at most {MAX_NAME_BYTES:,}"
    return ""
