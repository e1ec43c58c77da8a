"""Shard sets of given tokens, written in milliseconds: for tests that read tokens and no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from shards import ShardSet, open_set
from shards.format import writer
from shards.format.document_table import document_schema
from shards.format.manifest import (
    Manifest,
    MixEntry,
    PhaseEntry,
    RecipeEntry,
    ShardEntry,
    SourceCounts,
    SourceEntry,
    Split,
    SplitEntry,
    TokenizerEntry,
    dtype_for,
)

EOS_ID = 0


def count_up(tokens: int, *, vocab_size: int = 65_536, document_tokens: int = 50, first: int = 0) -> np.ndarray:
    """Return tokens that differ from their neighbours, as documents of one length, the last one perhaps shorter."""
    ids = (np.arange(first, first + tokens) % (vocab_size - 1) + 1).astype(dtype_for(vocab_size))
    ids[document_tokens - 1 :: document_tokens] = EOS_ID
    ids[-1] = EOS_ID
    return ids


def write_token_set(
    folder: Path,
    shards: Mapping[Split, Sequence[np.ndarray]],
    *,
    vocab_size: int = 65_536,
    phases: Sequence[str] = (),
) -> ShardSet:
    """Write a set of these tokens from one source and open it. Its tokenizer is a file, and no tokenizer.

    Args:
        folder: where to write it.
        shards: the tokens of each shard.
        vocab_size: of the tokenizer that it does not have.
        phases: the phase of each train shard; none for a set without phases.
    """
    folder.mkdir(parents=True)
    tokenizer = writer.write_entry(folder / "tokenizer.json", "{}")
    recipe = writer.write_entry(folder / "recipe.json", "{}")
    properties = writer.SetProperties(vocab_size=vocab_size, eos_id=EOS_ID, tokenizer_sha256=tokenizer.sha256)
    entries = [
        writer.write_shard(
            folder,
            split=split,
            index=index,
            properties=properties,
            chunks=[ids],
            documents=_document_table(ids),
            phase=phases[index] if phases and split == "train" else None,
        )
        for split, arrays in shards.items()
        for index, ids in enumerate(arrays)
    ]
    splits: dict[Split, SplitEntry] = {}
    for split in shards:
        mine = [entry for entry in entries if entry.split == split]
        counts = SourceCounts(tokens=sum(e.tokens for e in mine), documents=sum(e.documents for e in mine))
        splits[split] = SplitEntry(
            requested_tokens=counts.tokens, tokens=counts.tokens, documents=counts.documents, sources={"s": counts}
        )
    tokens, documents = (sum(getattr(split, key) for split in splits.values()) for key in ("tokens", "documents"))
    source = SourceEntry(
        name="s",
        weight=1.0,
        revision="test",
        tokens_available=tokens,
        documents_available=documents,
        dropped={},
        epochs=1,
    )
    asked = splits["train"].tokens
    mix = [MixEntry(source="s", requested=1.0, achieved=1.0, requested_tokens=asked, achieved_tokens=asked)]
    manifest = Manifest(
        name="made-up",
        dtype="uint16" if vocab_size <= 65_536 else "uint32",
        vocab_size=vocab_size,
        tokenizer=TokenizerEntry(
            file="tokenizer.json", sha256=tokenizer.sha256, eos_id=EOS_ID, special_tokens={"<eos>": EOS_ID}
        ),
        recipe=RecipeEntry(file="recipe.json", sha256=recipe.sha256),
        sources=[source],
        mix=mix,
        phases=[_phase_entry(name, [e for e in entries if e.phase == name]) for name in dict.fromkeys(phases)],
        splits=splits,
        shards=entries,
    )
    writer.write_manifest(folder, manifest)
    return open_set(folder)


def _phase_entry(name: str, shards: Sequence[ShardEntry]) -> PhaseEntry:
    tokens, documents = sum(shard.tokens for shard in shards), sum(shard.documents for shard in shards)
    mix = [MixEntry(source="s", requested=1.0, achieved=1.0, requested_tokens=tokens, achieved_tokens=tokens)]
    return PhaseEntry(name=name, share=1.0, requested_tokens=tokens, tokens=tokens, documents=documents, mix=mix)


def _document_table(ids: np.ndarray) -> pa.Table:
    ends = np.flatnonzero(ids == EOS_ID) + 1
    lengths = np.diff(ends, prepend=0).astype(np.uint32)
    schema = document_schema()
    names = {
        name: pa.array([name[0]] * len(ends)).dictionary_encode().cast(schema.field(name).type)
        for name in ("source", "unit")
    }
    columns = [
        pa.array((ends - lengths).astype(np.uint64)),
        pa.array(lengths),
        names["source"],
        names["unit"],
        pa.array(np.arange(len(ends), dtype=np.uint32)),
        pa.array([index.to_bytes(16, "big") for index in range(len(ends))], pa.binary(16)),
    ]
    return pa.Table.from_arrays(columns, schema=schema)
