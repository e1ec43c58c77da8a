"""Write a shard set: one shard at a time, each file atomically, the manifest last.

Every file is written under a temporary name, synced and renamed, so that a reader never sees half a file and a crash
leaves only `.tmp` files behind. Files are byte-identical for equal input. Memory: one frame of tokens (with
threads, two for each), and the shard's document table twice, as Arrow and as Parquet; tokens are streamed.

`write_set` writes a set of given documents, or of given tokens: for measurements and tests, without sources.
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
from shards.format.totals import describe_mix, describe_split
from shards.stores.files import atomic_open

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


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which makes the set complete. Call it last."""
    write_entry(folder / MANIFEST_FILE, manifest.to_json())


def write_entry(path: Path, content: str | Buffer) -> FileEntry:
    """Write a whole file of a set atomically, and return its entry for the manifest."""
    # One pass for the file, one for its digest: both read the same buffer.
    data = memoryview(content.encode() if isinstance(content, str) else content)
    with atomic_open(path) as file:
        file.write(data)
    return FileEntry(path=path.name, bytes=data.nbytes, sha256=hashlib.sha256(data).hexdigest())


SOURCE = "tokens"
"""The source of documents that are given as tokens alone."""


def write_set(
    folder: Path,
    shards: Mapping[Split, Sequence[tuple[Rows, pa.Table]]],
    *,
    vocab_size: int,
    eos_id: int,
    tokenizer: str = "{}",
    recipe: str = "{}",
    weights: Mapping[str, float],
    epochs: Mapping[str, int],
    train_tokens: int | None = None,
) -> ShardSet:
    """Write a set of given documents and open it.

    Args:
        folder: where to write it.
        shards: the tokens of each shard, `(tokens,)`, and its document table.
        vocab_size: entries of the vocabulary.
        eos_id: the id that ends each document.
        tokenizer: the content of `tokenizer.json`. By default it is no tokenizer.
        recipe: the content of `recipe.json`.
        weights: the sources, with their weights.
        epochs: how often a training document of each source may occur.
        train_tokens: tokens that are asked of the training split; those that it has when None.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_file = write_entry(folder / "tokenizer.json", tokenizer)
    recipe_file = write_entry(folder / "recipe.json", recipe)
    properties = SetProperties(vocab_size=vocab_size, eos_id=eos_id, tokenizer_sha256=tokenizer_file.sha256)
    entries: dict[Split, list[ShardEntry]] = {
        split: [
            write_shard(
                folder,
                split=split,
                index=index,
                properties=properties,
                chunks=[np.ascontiguousarray(tokens, properties.dtype).data],
                documents=table,
            )
            for index, (tokens, table) in enumerate(own)
        ]
        for split, own in shards.items()
    }
    # Whatever the shards hold was available, and nothing else.
    every = [entry for own in entries.values() for entry in own]
    available = describe_split(every, list(weights), 0).sources
    splits: dict[Split, SplitEntry] = {
        split: describe_split(own, list(weights), sum(entry.tokens for entry in own)) for split, own in entries.items()
    }
    if train_tokens is not None:
        splits["train"] = splits["train"].model_copy(update={"requested_tokens": train_tokens})
    shares = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    requested = [int(share * splits["train"].requested_tokens) for share in shares.values()]
    special = {token["content"]: token["id"] for token in json.loads(tokenizer).get("added_tokens", [])}
    manifest = Manifest(
        name=folder.name,
        dtype=properties.dtype,
        vocab_size=vocab_size,
        tokenizer=TokenizerEntry(
            file="tokenizer.json",
            sha256=tokenizer_file.sha256,
            eos_id=eos_id,
            special_tokens=special or {"<eos>": eos_id},
        ),
        recipe=RecipeEntry(file="recipe.json", sha256=recipe_file.sha256),
        sources=[
            SourceEntry(
                name=name,
                weight=weight,
                revision="none",
                tokens_available=available[name].tokens,
                documents_available=available[name].documents,
                dropped={},
                epochs=epochs[name],
            )
            for name, weight in weights.items()
        ],
        mix=describe_mix(shares, requested, splits["train"].sources),
        splits=splits,
        shards=every,
    )
    write_manifest(folder, manifest)
    return open_set(folder)


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
    described: dict[Split, list[tuple[Rows, pa.Table]]] = {}
    documents = 0
    for split, arrays in shards.items():
        described[split] = []
        for tokens in arrays:
            table = _make_table(tokens, eos_id, documents)
            documents += table.num_rows
            described[split].append((tokens, table))
    one = {SOURCE: 1}
    return write_set(
        folder, described, vocab_size=vocab_size, eos_id=eos_id, tokenizer=tokenizer, weights=one, epochs=one
    )


def _make_table(tokens: Rows, eos_id: int, first: int) -> pa.Table:
    """Return the document table of a shard of given documents, of which the first has a number."""
    import pyarrow as pa

    ends = np.flatnonzero(tokens == eos_id) + 1
    numbers = np.arange(first, first + len(ends), dtype=">u8")
    hashes = np.zeros((len(ends), 2), ">u8")
    hashes[:, 1] = numbers
    codes: Any = pa.array(np.zeros(len(ends), np.int32))
    names: Any = pa.DictionaryArray.from_arrays(codes, pa.array([SOURCE]))
    lengths = np.diff(ends, prepend=0)
    columns = [
        pa.array((ends - lengths).astype(np.uint64)),
        pa.array(lengths.astype(np.uint32)),
        names,
        names,
        pa.array(np.arange(len(ends), dtype=np.uint32)),
        pa.Array.from_buffers(pa.binary(16), len(ends), [None, pa.py_buffer(hashes.tobytes())]),
    ]
    return pa.Table.from_arrays(columns, schema=document_schema())
