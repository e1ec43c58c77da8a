"""The manifest of an imported set: a single source of weight 1, which makes up the whole of every shard."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from shards.convert.import_.imported_documents import SOURCE, ImportedDocuments
from shards.format.arrays import Bools
from shards.format.manifest import (
    FileEntry,
    Manifest,
    MixEntry,
    RecipeEntry,
    ShardEntry,
    SourceCounts,
    SourceEntry,
    Split,
    SplitEntry,
    TokenizerEntry,
    dtype_for,
)

DUPLICATE = "duplicate"
"""The reason under which documents that were left out are counted, as in built sets."""


def make_manifest(
    name: str,
    tokenizer: TokenizerEntry,
    recipe: FileEntry,
    shards: list[ShardEntry],
    parts: Sequence[ImportedDocuments],
    available: Bools,
    *,
    epochs: int,
    vocab_size: int,
) -> Manifest:
    """Return the manifest of an imported set.

    Args:
        name: the set's name.
        tokenizer: its tokenizer.
        recipe: the file that says what was imported.
        shards: every shard.
        parts: the documents found in each split.
        available: which of them count as what the source offers: those kept, without what `epochs` accounts for.
        epochs: how often a training document may occur.
        vocab_size: entries of the vocabulary.
    """
    splits: dict[Split, SplitEntry] = {}
    for split in ("train", "val"):
        own = [shard for shard in shards if shard.split == split]
        if own:
            tokens, documents = sum(shard.tokens for shard in own), sum(shard.documents for shard in own)
            counts = {SOURCE: SourceCounts(tokens=tokens, documents=documents)}
            splits[split] = SplitEntry(requested_tokens=tokens, tokens=tokens, documents=documents, sources=counts)
    lengths = np.concatenate([part.lengths for part in parts])
    held = sum(split.documents for split in splits.values())
    dropped = len(lengths) - held
    train = splits["train"].tokens
    digests = (digest for part in parts for digest in part.stream.digests)
    revision = hashlib.sha256("".join(digests).encode()).hexdigest()
    return Manifest(
        name=name,
        dtype=dtype_for(vocab_size),
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        recipe=RecipeEntry(file=recipe.path, sha256=recipe.sha256),
        sources=[
            SourceEntry(
                name=SOURCE,
                weight=1.0,
                revision=revision,
                tokens_available=int(lengths[available].sum()),
                documents_available=int(available.sum()),
                dropped={DUPLICATE: dropped} if dropped else {},
                epochs=epochs,
            )
        ],
        mix=[MixEntry(source=SOURCE, requested=1.0, achieved=1.0, requested_tokens=train, achieved_tokens=train)],
        splits=splits,
        shards=shards,
    )
