"""Reading a shard set: open the folder, pick a shard, take tokens or the document table.

`open_set` reads metadata only. `Shard.read` decompresses just the frames it needs. Opening does not validate: call
`ShardSet.verify`, or `python -m shards validate`. A set may also lie on the Hugging Face Hub (`hf://datasets/...`): its
folder is then a `HubFolder`, which stands in for the few methods of `Path` that reading needs; see `shards.stores.hub`.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from shards.errors import Problem, ShardSetError
from shards.format import codec
from shards.format.manifest import MANIFEST_FILE, Manifest, ShardEntry, Split, read_metadata
from shards.format.tokenizer import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa
    import tokenizers

Level = Literal["quick", "full"]
Incomplete = Literal["refuse", "allow"]


@dataclass(frozen=True)
class Shard:
    """One shard on disk. Safe to share between threads: every call opens the file anew."""

    folder: Path
    entry: ShardEntry
    dtype: np.dtype[np.uint16] | np.dtype[np.uint32]

    @property
    def name(self) -> str:
        """The shard's name, such as `train-00000`."""
        return self.entry.name

    @property
    def num_tokens(self) -> int:
        """Tokens in the shard, EOS included."""
        return self.entry.tokens

    @property
    def num_documents(self) -> int:
        """Documents in the shard."""
        return self.entry.documents

    @property
    def tokens_path(self) -> Path:
        """The compressed tokens file."""
        return self.folder / self.entry.files.tokens.path

    @cached_property
    def seek_table(self) -> codec.SeekTable:
        """The tokens file's seek table, read once.

        Raises:
            ShardSetError: the table is malformed, or holds another number of tokens than the manifest says.
        """
        try:
            return codec.read_seek_table(self.tokens_path, content_bytes=self.num_tokens * self.dtype.itemsize)
        except codec.CodecError as error:
            raise ShardSetError([Problem("seek_table", self.tokens_path.name, str(error))]) from error

    def read(self, start: int = 0, stop: int | None = None, *, threads: int = 1) -> npt.NDArray[np.unsignedinteger]:
        """Read the tokens [start, stop) of the shard.

        Args:
            start: first token.
            stop: one past the last; the shard's end when None.
            threads: threads that decompress; the result does not depend on it.

        Returns:
            tokens: uint16 or uint32 `(stop - start,)`, writable, owned by the caller.

        Raises:
            ValueError: the range lies outside the shard.
            ShardSetError: the file is not what the manifest says, or a frame is corrupt.
        """
        stop = self.num_tokens if stop is None else stop
        size = self.dtype.itemsize
        try:
            data = codec.read_range(self.tokens_path, self.seek_table, start * size, stop * size, threads=threads)
        except codec.CodecError as error:
            raise ShardSetError([Problem("frame_corrupt", self.tokens_path.name, str(error))]) from error
        return np.frombuffer(data, dtype=self.dtype)

    def iter_tokens(self) -> Iterator[npt.NDArray[np.unsignedinteger]]:
        """Yield the shard's tokens a frame (1 MiB) at a time, uint16 or uint32, read-only.

        Raises:
            ShardSetError: the file is not what the manifest says, or a frame is corrupt.
        """
        try:
            for content in codec.iter_frames(self.tokens_path, self.seek_table.frames):
                yield np.frombuffer(content, self.dtype)
        except codec.CodecError as error:
            raise ShardSetError([Problem("frame_corrupt", self.tokens_path.name, str(error))]) from error

    def documents(self, columns: list[str] | None = None) -> pa.Table:
        """Read the document table, one row a document in shard order.

        Columns: `start` uint64, `length` uint32 (EOS included), `source` and `unit` dictionary<string>, `row` uint32,
        `hash` fixed_size_binary(16).

        Args:
            columns: only these columns, or all when None.
        """
        import pyarrow.parquet as pq

        return pq.ParquetFile(self.documents_source()).read(columns=columns, use_threads=False)

    def documents_source(self) -> Path | io.BytesIO:
        """Return what to open the document table from: the file, or, of a set on the Hub, its checked bytes."""
        path = self.folder / self.entry.files.documents.path
        on_disk = isinstance(cast("object", path), Path)
        return path if on_disk else io.BytesIO(path.read_bytes())

    def verify(self) -> list[Problem]:
        """Check this shard's files in full against the manifest; see `shards.validation.validate`."""
        from shards.validation.validate import validate_shard

        return validate_shard(ShardSet(self.folder), self).problems


@dataclass(frozen=True)
class ShardSet:
    """A complete shard set. Use `open_set`."""

    path: Path

    @cached_property
    def manifest(self) -> Manifest:
        """The set's manifest, read once.

        Raises:
            ShardSetError: there is none (the build is incomplete), or it is not valid.
        """
        file = self.path / MANIFEST_FILE
        if not file.is_file():
            message = (
                f"no {MANIFEST_FILE} in {self.path}: not a shard set, or its build did not finish. Re-run the build."
            )
            raise ShardSetError([Problem("manifest_missing", MANIFEST_FILE, message)])
        return read_metadata(Manifest, file)

    @cached_property
    def manifest_sha256(self) -> str:
        """Hex SHA-256 of manifest.json: the identity of the whole set, since the manifest names every file's digest."""
        import hashlib

        return hashlib.sha256((self.path / MANIFEST_FILE).read_bytes()).hexdigest()

    @property
    def dtype(self) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
        """The tokens' dtype, little-endian."""
        return np.dtype("<u2") if self.manifest.dtype == "uint16" else np.dtype("<u4")

    @property
    def vocab_size(self) -> int:
        """Vocabulary entries, special tokens included; every id is below it."""
        return self.manifest.vocab_size

    @property
    def eos_id(self) -> int:
        """The id that ends every document."""
        return self.manifest.tokenizer.eos_id

    @cached_property
    def splits(self) -> Mapping[Split, tuple[Shard, ...]]:
        """The shards of each split, in order: `set.splits["train"][0]`."""
        return {split: tuple(s for s in self.shards if s.entry.split == split) for split in self.manifest.splits}

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        """Every shard, in the manifest's order."""
        return tuple(Shard(self.path, entry, self.dtype) for entry in self.manifest.shards)

    def shard(self, name: str) -> Shard:
        """Return the shard of this name.

        Raises:
            KeyError: there is none; the message lists a few names.
        """
        for shard in self.shards:
            if shard.name == name:
                return shard
        raise KeyError(f"no shard {name!r} in {self.path}; there are {', '.join(s.name for s in self.shards[:5])} ...")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The bytes of every token id, and which ids are special by the manifest; read once.

        Raises:
            ShardSetError: the tokenizer has another number of entries than the manifest says.
            ValueError: the tokenizer is not a byte-level BPE.
            OSError: the file cannot be read.
        """
        entry = self.manifest.tokenizer
        vocabulary = read_vocabulary((self.path / entry.file).read_bytes())
        if len(vocabulary) != self.vocab_size:
            message = f"has {len(vocabulary)} entries; expected {self.vocab_size} by the manifest. Validate the set."
            raise ShardSetError([Problem("tokenizer_mismatch", entry.file, message)])
        return replace(vocabulary, special=entry.special_tokens)

    def tokenizer(self) -> tokenizers.Tokenizer:
        """Load the set's tokenizer with the `tokenizers` library."""
        import tokenizers

        return tokenizers.Tokenizer.from_buffer((self.path / self.manifest.tokenizer.file).read_bytes())

    def verify(self, *, level: Level = "full", threads: int = 1) -> list[Problem]:
        """Return every problem of the set; an empty list means it is whole."""
        from shards.validation.validate import validate

        return validate(self.path, level=level, threads=threads).problems


def open_set(path: str | os.PathLike[str], *, incomplete: Incomplete = "refuse") -> ShardSet:
    """Open a shard set and read its manifest.

    Args:
        path: a folder, or `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`, of which the manifest is read now and shards
            when they are read, at the commit where the revision stands.
        incomplete: whether to "refuse" a set on the Hub whose push has not finished, or to "allow" it: reading a shard
            that is not there looks whether it has come meanwhile.

    Raises:
        ShardSetError: there is no manifest, or one that is not valid; or shards are missing on the Hub.
        shards.stores.hub_client.HubError: the Hub cannot be read, or the place is not one.
    """
    if isinstance(path, str) and path.startswith("hf://"):
        from shards.stores.hub import open_folder

        folder = cast("Path", open_folder(path, incomplete=incomplete))
    else:
        folder = Path(path)
    shard_set = ShardSet(folder)
    _ = shard_set.manifest
    return shard_set
