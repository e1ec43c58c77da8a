"""Write a set of given documents, or of given tokens: for measurements and tests, which need shards and no sources."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.format.arrays import Rows
from shards.format.document_table import document_schema
from shards.format.manifest import Manifest, RecipeEntry, ShardEntry, SourceEntry, Split, SplitEntry, TokenizerEntry
from shards.format.reader import ShardSet, open_set
from shards.format.totals import describe_mix, describe_split
from shards.format.writer import SetProperties, write_entry, write_manifest, write_shard

if TYPE_CHECKING:
    import pyarrow as pa

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
