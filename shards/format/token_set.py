"""Write a set of given tokens: for measurements and tests, which need shards and no text.

The documents end with EOS, and all are of one source. The set has no text, so a document's hash is its number. The
recipe is empty, and the tokenizer is what the caller gives.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.format.arrays import Rows
from shards.format.document_table import document_schema
from shards.format.manifest import (
    Manifest,
    PhaseEntry,
    RecipeEntry,
    ShardEntry,
    SourceEntry,
    Split,
    SplitEntry,
    TokenizerEntry,
    dtype_for,
)
from shards.format.reader import ShardSet, open_set
from shards.format.totals import describe_mix, describe_phase, describe_split
from shards.format.writer import SetProperties, write_entry, write_manifest, write_shard

if TYPE_CHECKING:
    import pyarrow as pa

SOURCE = "tokens"


def write_token_set(
    folder: Path,
    shards: Mapping[Split, Sequence[Rows]],
    *,
    vocab_size: int = 65_536,
    eos_id: int = 0,
    tokenizer: str = "{}",
    eos: str = "<eos>",
    phases: Sequence[str] = (),
) -> ShardSet:
    """Write a set of tokens and open it.

    Args:
        folder: where to write it.
        shards: the tokens of each shard, each document with its EOS, `(tokens,)`.
        vocab_size: entries of the vocabulary.
        eos_id: the id that ends each document.
        tokenizer: the content of `tokenizer.json`. By default it is no tokenizer.
        eos: the text of EOS.
        phases: the phase of each training shard; none for a set without phases.
    """
    folder.mkdir(parents=True)
    tokenizer_file = write_entry(folder / "tokenizer.json", tokenizer)
    recipe = write_entry(folder / "recipe.json", "{}")
    properties = SetProperties(vocab_size=vocab_size, eos_id=eos_id, tokenizer_sha256=tokenizer_file.sha256)
    dtype = dtype_for(vocab_size)
    entries: list[ShardEntry] = []
    documents = 0
    for split, arrays in shards.items():
        for index, tokens in enumerate(arrays):
            table = _make_table(tokens, eos_id, documents)
            documents += table.num_rows
            phase = phases[index] if phases and split == "train" else None
            chunks = [np.ascontiguousarray(tokens, dtype).data]
            entries.append(
                write_shard(
                    folder,
                    split=split,
                    index=index,
                    properties=properties,
                    chunks=chunks,
                    documents=table,
                    phase=phase,
                )
            )
    splits: dict[Split, SplitEntry] = {}
    for split in shards:
        own = [entry for entry in entries if entry.split == split]
        splits[split] = describe_split(own, [SOURCE], sum(entry.tokens for entry in own))
    manifest = Manifest(
        name=folder.name,
        dtype=dtype,
        vocab_size=vocab_size,
        tokenizer=TokenizerEntry(
            file="tokenizer.json", sha256=tokenizer_file.sha256, eos_id=eos_id, special_tokens={eos: eos_id}
        ),
        recipe=RecipeEntry(file="recipe.json", sha256=recipe.sha256),
        sources=[
            SourceEntry(
                name=SOURCE,
                weight=1.0,
                revision="none",
                tokens_available=sum(entry.tokens for entry in entries),
                documents_available=documents,
                dropped={},
                epochs=1,
            )
        ],
        mix=describe_mix({SOURCE: 1.0}, [splits["train"].tokens], splits["train"].sources),
        phases=[_describe_phase(name, entries) for name in dict.fromkeys(phases)],
        splits=splits,
        shards=entries,
    )
    write_manifest(folder, manifest)
    return open_set(folder)


def _make_table(tokens: Rows, eos_id: int, first: int) -> pa.Table:
    """Return the document table of a shard whose first document has a number."""
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


def _describe_phase(name: str, entries: Sequence[ShardEntry]) -> PhaseEntry:
    train = [entry for entry in entries if entry.split == "train"]
    own = [entry for entry in train if entry.phase == name]
    tokens = sum(entry.tokens for entry in own)
    split = describe_split(own, [SOURCE], tokens)
    share = tokens / sum(entry.tokens for entry in train)
    return describe_phase(name, share, split, describe_mix({SOURCE: 1.0}, [tokens], split.sources))
