"""Write a shard set: one shard at a time, each file atomically, the manifest last.

Every file is written under a temporary name, synced and renamed, so that a reader never sees half a file and a crash
leaves only `.tmp` files behind. Files are byte-identical for equal input. Memory: one frame of tokens and the shard's
document table; tokens are streamed.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shards.format.carried import CarriedType
from shards.format.codec import SeekableWriter
from shards.format.document_table import count_sources
from shards.format.manifest import (
    MANIFEST_FILE,
    CarriedEntry,
    FileEntry,
    Manifest,
    ShardEntry,
    ShardFiles,
    Sidecar,
    SidecarFiles,
    Split,
    dtype_for,
    version_for,
)
from shards.format.zstd_parameters import Compression
from shards.stores.files import atomic_open

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

ROW_GROUP_DOCUMENTS = 1 << 17
"""Rows in each row group of a document table: about 5 MB, so that a reader can take a part."""


@dataclass(frozen=True, slots=True)
class SetProperties:
    """The properties that all shards of a set share."""

    vocab_size: int
    eos_id: int
    tokenizer_sha256: str
    compression: Compression = "balanced"
    """A choice by name, or a level of Zstandard."""
    bos_id: int | None = None
    carried: tuple[CarriedEntry, ...] = ()
    """The carried columns, in the order of the document tables' columns."""

    @property
    def carried_types(self) -> dict[str, CarriedType]:
        """The carried columns' names and types."""
        return {column.name: column.type for column in self.carried}


def shard_name(split: Split, index: int) -> str:
    """Return the name that the writer gives a shard, such as `train-00000`."""
    return f"{split}-{index:05d}"


def shard_file_names(name: str) -> tuple[str, str, str]:
    """Return the names that the writer gives a shard's files: tokens, document table and sidecar."""
    return f"{name}.bin.zst", f"{name}.docs.parquet", f"{name}.json"


def write_shard(
    folder: Path,
    *,
    split: Split,
    index: int,
    properties: SetProperties,
    chunks: Iterable[Buffer],
    documents: pa.Table,
    phase: str | None = None,
    checksums: dict[str, str] | None = None,
) -> ShardEntry:
    """Write one shard: tokens, document table, metadata, in that order.

    Args:
        folder: the set's folder.
        split: which split the shard belongs to.
        index: the shard's number in its split.
        properties: the properties that all shards share.
        chunks: the tokens in shard order, as buffers of little-endian uint16 (uint32 above 65,536 entries).
        documents: the document table, of `document_schema(properties.carried_types)`; `length` must add up to the
            tokens given.
        phase: the phase that the shard belongs to, if the set has phases.
        checksums: gets by SHA-256 the XXH3-128 of the tokens file and of its content, for `ContentRules`.

    Returns:
        The shard's entry for the manifest.

    Raises:
        ValueError: tokens and document table disagree; no file is left under the shard's name.
        OSError: the disk is full or not writable; partial files are removed.
    """
    name = shard_name(split, index)
    tokens_file, documents_file, metadata_file = shard_file_names(name)
    sources = count_sources(documents)
    num_tokens = sum(counts.tokens for counts in sources.values())
    dtype = dtype_for(properties.vocab_size)
    token_bytes = 2 if dtype == "uint16" else 4
    with atomic_open(folder / tokens_file) as file:
        writer = SeekableWriter(file, compression=properties.compression, token_bytes=token_bytes)
        _write_tokens(writer, chunks, content_bytes=num_tokens * token_bytes, name=tokens_file)
    if checksums is not None:
        checksums.update(writer.checksums)
    tokens = FileEntry(path=tokens_file, bytes=writer.bytes_written, sha256=writer.sha256)
    files = SidecarFiles(tokens=tokens, documents=_write_documents(folder / documents_file, documents))

    values = {name: documents.num_rows - documents.column(name).null_count for name in properties.carried_types}
    sidecar = Sidecar(
        format_version=version_for(has_phases=phase is not None, bos_id=properties.bos_id, carried=properties.carried),
        name=name,
        split=split,
        phase=phase,
        dtype=dtype,
        vocab_size=properties.vocab_size,
        eos_id=properties.eos_id,
        bos_id=properties.bos_id,
        tokenizer_sha256=properties.tokenizer_sha256,
        tokens=num_tokens,
        documents=documents.num_rows,
        sources=sources,
        tokens_sha256=writer.content_sha256,
        carried=list(properties.carried),
        carried_values=values,
        files=files,
    )
    metadata = write_entry(folder / metadata_file, sidecar.to_json())
    return ShardEntry(
        name=name,
        split=split,
        phase=phase,
        tokens=num_tokens,
        documents=documents.num_rows,
        sources=sources,
        tokens_sha256=writer.content_sha256,
        carried_values=values,
        files=ShardFiles(tokens=tokens, documents=files.documents, metadata=metadata),
    )


def _write_tokens(writer: SeekableWriter, chunks: Iterable[Buffer], *, content_bytes: int, name: str) -> None:
    """Write the tokens of a file, which must be `content_bytes`, and its end."""
    given = 0
    for chunk in chunks:
        writer.write(chunk)
        given += memoryview(chunk).nbytes
    writer.close()
    if given != content_bytes:
        raise ValueError(
            f"{name}: {given} bytes of tokens; the document table says {content_bytes}. Give the shard's "
            "tokens and documents in one order, EOS included in `length`."
        )


def _write_documents(path: Path, documents: pa.Table) -> FileEntry:
    """Write a document table; return its entry."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_open(path) as file:
        hashing = HashingFile(file)
        pq.write_table(
            documents,
            pa.PythonFile(hashing, mode="w"),
            compression="zstd",
            use_dictionary=["source", "unit"],  # pyright: ignore[reportArgumentType]
            row_group_size=ROW_GROUP_DOCUMENTS,
            write_statistics=["start", "row"],
        )
    return hashing.entry(path.name)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which makes the set complete. Call it last."""
    write_entry(folder / MANIFEST_FILE, manifest.to_json())


def write_entry(path: Path, text: str) -> FileEntry:
    """Write a small text file of a set atomically, and return its entry for the manifest."""
    with atomic_open(path) as file:
        hashing = HashingFile(file)
        hashing.write(text.encode())
    return hashing.entry(path.name)


class HashingFile(io.RawIOBase):
    """The file object of a writer, which keeps the size and SHA-256 of what passes through it.

    Closing it does not close the underlying file; the caller that opened the file closes it.
    """

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file
        self._hash = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """Return True: the object is writable."""
        return True

    def write(self, data: Buffer) -> int:
        """Write bytes on."""
        self._hash.update(data)
        self._size += memoryview(data).nbytes
        self._file.write(data)
        return memoryview(data).nbytes

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self._size

    def entry(self, path: str) -> FileEntry:
        """Return the file's entry."""
        return FileEntry(path=path, bytes=self._size, sha256=self._hash.hexdigest())
