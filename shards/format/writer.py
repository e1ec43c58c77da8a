"""Write a shard set: one shard at a time, each file atomically, the manifest last.

Every file is written under a temporary name, synced and renamed, so that a reader never sees half a file and a crash
leaves only `.tmp` files behind. Files are byte-identical for equal input. Memory: one frame of tokens (with
threads, two for each), and the shard's document table twice, as Arrow and as Parquet; tokens are streamed.

`write_token_set` writes a set of given tokens, without sources: for measurements and tests.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from shards.format.arrays import TOKEN_DTYPES, Rows
from shards.format.codec import SeekableWriter
from shards.format.document_table import count_sources
from shards.format.manifest import (
    MANIFEST_FILE,
    Dtype,
    FileEntry,
    Manifest,
    RecipeEntry,
    ShardEntry,
    ShardFiles,
    Sidecar,
    SidecarFiles,
    SourceEntry,
    Split,
    SplitEntry,
    TokenizerEntry,
    dtype_for,
)
from shards.format.reader import ShardSet, open_set
from shards.format.shard import document_schema
from shards.format.tokenizer_json import find_special
from shards.format.totals import describe_mix, describe_split
from shards.stores.files import atomic_open, write_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

ROW_GROUP_DOCUMENTS = 1 << 17
"""Rows in each row group of a document table: about 5 MB, so that a reader can take a part."""


@dataclass(frozen=True)
class SetProperties:
    """The properties that all shards of a set share."""

    vocab_size: int
    eos_id: int
    tokenizer_sha256: str
    zstd_level: int | None = None
    """The level of Zstandard; None for parameters that fit tokens."""
    bos_id: int | None = None

    @property
    def dtype(self) -> Dtype:
        """The dtype of the tokens to write."""
        return dtype_for(self.vocab_size)

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the properties with which a finished set's shards were written."""
        tokenizer = manifest.tokenizer
        return cls(manifest.vocab_size, tokenizer.eos_id, tokenizer.sha256, bos_id=tokenizer.bos_id)


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
    threads: int = 1,
) -> ShardEntry:
    """Write one shard: tokens, document table, metadata, in that order.

    Args:
        folder: the set's folder.
        split: which split the shard belongs to.
        index: the shard's number in its split.
        properties: the properties that all shards share.
        chunks: the tokens in shard order, as buffers of little-endian uint16 (uint32 above 65,536 entries).
        documents: the document table, of `document_schema()`; `length` must add up to the
            tokens given.
        phase: the phase that the shard belongs to, if the set has phases.
        checksums: gets by SHA-256 the XXH3-128 of the tokens file and of its content, for `validate`.
        threads: how many compress the tokens, as for `SeekableWriter`. The files do not depend on it.

    Returns:
        The shard's entry for the manifest.

    Raises:
        ValueError: tokens and document table disagree; no file is left under the shard's name.
        OSError: the disk is full or not writable; partial files are removed.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = shard_name(split, index)
    tokens_file, documents_file, metadata_file = shard_file_names(name)
    sources = count_sources(documents)
    num_tokens = sum(counts.tokens for counts in sources.values())
    token_bytes = TOKEN_DTYPES[properties.dtype].itemsize

    # The tokens, hashed as they are written; then the document table.
    with atomic_open(folder / tokens_file) as file:
        writer = SeekableWriter(file, level=properties.zstd_level, token_bytes=token_bytes, threads=threads)
        given = 0
        for chunk in chunks:
            writer.write(chunk)
            given += memoryview(chunk).nbytes
        writer.close()
        # The document table says how many bytes there must be.
        if given != num_tokens * token_bytes:
            raise ValueError(
                f"{tokens_file}: {given} bytes of tokens; the document table says {num_tokens * token_bytes}. Give the "
                "shard's tokens and documents in one order, EOS included in `length`."
            )
    if checksums is not None:
        checksums |= writer.checksums
    tokens = FileEntry(path=tokens_file, bytes=writer.bytes_written, sha256=writer.sha256)
    packed = pa.BufferOutputStream()  # in memory: a document table is a small part of its shard
    pq.write_table(
        documents,
        packed,
        compression="zstd",
        use_dictionary=["source", "unit"],  # pyright: ignore[reportArgumentType]
        row_group_size=ROW_GROUP_DOCUMENTS,
        write_statistics=["start", "row"],
    )
    table = write_entry(folder / documents_file, packed.getvalue())

    # The metadata comes last: it has the digests of both.
    facts: dict[str, Any] = {
        "name": name,
        "split": split,
        "phase": phase,
        "tokens": num_tokens,
        "documents": documents.num_rows,
        "sources": sources,
        "tokens_sha256": writer.content_sha256,
    }
    sidecar = make_sidecar(properties, SidecarFiles(tokens=tokens, documents=table), facts)
    metadata = write_entry(folder / metadata_file, sidecar.to_json())
    return ShardEntry(**facts, files=ShardFiles(tokens=tokens, documents=table, metadata=metadata))


def make_sidecar(properties: SetProperties, files: SidecarFiles, facts: Mapping[str, Any]) -> Sidecar:
    """Return the metadata to write for a shard: what all share, its files, and other keys of its `ShardEntry`."""
    return Sidecar(
        **facts,
        dtype=properties.dtype,
        vocab_size=properties.vocab_size,
        eos_id=properties.eos_id,
        bos_id=properties.bos_id,
        tokenizer_sha256=properties.tokenizer_sha256,
        files=files,
    )


def write_entry(path: Path, content: str | Buffer) -> FileEntry:
    """Write a whole file of a set atomically, and return its entry for the manifest."""
    # One pass for the file, one for its digest: both read the same buffer.
    data = memoryview(content.encode() if isinstance(content, str) else content)
    write_bytes(path, data)
    return FileEntry(path=path.name, bytes=data.nbytes, sha256=hashlib.sha256(data).hexdigest())


SOURCE = "tokens"
"""The source of documents that are given as tokens alone."""


def write_token_set(
    folder: Path,
    shards: Mapping[Split, Sequence[Rows]],
    *,
    vocab_size: int = 65_536,
    eos_id: int = 0,
    tokenizer: str = "{}",
) -> ShardSet:
    """Write a set of given tokens and open it.

    The documents end with EOS, and all are of one source. The set has no text, so a document's hash is its number.

    Args:
        folder: where to write it.
        shards: the tokens of each shard, each document with its EOS, `(tokens,)`.
        vocab_size: entries of the vocabulary.
        eos_id: the id that ends each document.
        tokenizer: the content of `tokenizer.json`. By default it is no tokenizer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_file = write_entry(folder / "tokenizer.json", tokenizer)
    recipe_file = write_entry(folder / "recipe.json", "{}")
    properties = SetProperties(vocab_size=vocab_size, eos_id=eos_id, tokenizer_sha256=tokenizer_file.sha256)
    entries: list[ShardEntry] = []
    splits: dict[Split, SplitEntry] = {}
    documents = 0
    for split, arrays in shards.items():
        own: list[ShardEntry] = []
        for index, tokens in enumerate(arrays):
            table = make_token_table(tokens, eos_id, documents)
            documents += table.num_rows
            chunks = [np.ascontiguousarray(tokens, properties.dtype).data]
            own.append(
                write_shard(folder, split=split, index=index, properties=properties, chunks=chunks, documents=table)
            )
        splits[split] = describe_split(own, [SOURCE], sum(entry.tokens for entry in own))
        entries += own
    special = find_special(json.loads(tokenizer))
    manifest = Manifest(
        name=folder.name,
        dtype=properties.dtype,
        vocab_size=vocab_size,
        tokenizer=TokenizerEntry(
            file=tokenizer_file.path,
            sha256=tokenizer_file.sha256,
            eos_id=eos_id,
            special_tokens=special or {"<eos>": eos_id},
        ),
        recipe=RecipeEntry(file=recipe_file.path, sha256=recipe_file.sha256),
        sources=[
            SourceEntry(
                name=SOURCE,
                weight=1,
                revision="none",
                tokens_available=sum(entry.tokens for entry in entries),
                documents_available=documents,
                dropped={},
                epochs=1,
            )
        ],
        mix=describe_mix({SOURCE: 1.0}, [splits["train"].tokens], splits["train"].sources),
        splits=splits,
        shards=entries,
    )
    write_entry(folder / MANIFEST_FILE, manifest.to_json())
    return open_set(folder)


def make_token_table(tokens: Rows, eos_id: int, first: int) -> pa.Table:
    """Return the document table of a shard of given tokens, whose first document has a number."""
    import pyarrow as pa

    ends = np.flatnonzero(tokens == eos_id) + 1
    lengths = np.diff(ends, prepend=0)
    names = [SOURCE] * len(ends)
    columns: dict[str, Any] = {
        "start": ends - lengths,
        "length": lengths,
        "source": names,
        "unit": names,
        "row": np.arange(len(ends)),
        "hash": [number.to_bytes(16) for number in range(first, first + len(ends))],
    }
    return pa.Table.from_pydict(columns, schema=document_schema())
