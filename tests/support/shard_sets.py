"""A small shard set, built with `shards.format.writer` alone: plan it, change the plan, write it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from tokenizers import Tokenizer

from shards.format import writer
from shards.format.document_table import document_schema
from shards.format.manifest import (
    Manifest,
    RecipeEntry,
    ShardEntry,
    SourceEntry,
    Split,
    SplitEntry,
    TokenizerEntry,
    dtype_for,
)
from shards.format.totals import describe_mix, describe_split


@dataclasses.dataclass
class Document:
    """One document of the set: its text, its tokens (EOS included), and where it came from."""

    text: bytes
    tokens: np.ndarray
    source: str
    unit: str
    row: int
    hash: bytes = b""

    def __post_init__(self) -> None:
        self.hash = self.hash or xxhash.xxh3_128_digest(self.text)


@dataclasses.dataclass
class Plan:
    """Everything that a set is written from. Tests change a part of it, then write."""

    documents: dict[Split, list[list[Document]]]
    tokenizer: str
    eos_id: int
    vocab_size: int
    weights: dict[str, float]
    recipe: str
    epochs: dict[str, int]


def plan_set(tokenizer: Tokenizer, folder: Path, *, val_tokens: int = 40_000) -> Plan:
    """Mix the sources 3 to 1 into one val and two train shards, each cut at the boundary nearest to its target."""
    eos_id = tokenizer.token_to_id("<|endoftext|>")
    vocab_size = tokenizer.get_vocab_size()
    dtype = np.dtype("<u2")
    weights = {"prose": 3.0, "code": 1.0}
    shards: dict[Split, list[list[Document]]] = {"train": [[], []], "val": [[]]}
    for source, weight in weights.items():
        documents: list[Document] = []
        for file in sorted(folder.glob(f"{source}-*.json")):
            for row, text in enumerate(json.loads(file.read_text())):
                documents.append(Document(text.encode(), np.array([], dtype), source, file.name, row))
        documents.sort(key=lambda document: document.hash)
        left = (_encode(tokenizer, document, eos_id) for document in documents)  # more than half of them are not needed
        document = next(left)
        for split, total in (("val", val_tokens), ("train", TRAIN_TOKENS)):
            number = len(shards[split])
            taken = 0
            for k in range(number):
                target = int(total * weight * (k + 1) / (4 * number))
                while abs(taken + len(document.tokens) - target) < abs(taken - target):
                    taken += len(document.tokens)
                    shards[split][k].append(document)
                    document = next(left)
    rng = random.Random(1)
    for split in shards.values():
        for shard in split:
            rng.shuffle(shard)
    recipe = json.dumps(
        {"name": "good", "sources": [{"name": n, "kind": "files", "paths": [f"{n}-*.json"]} for n in weights]}
    )
    return Plan(shards, tokenizer.to_str(), eos_id, vocab_size, weights, recipe, dict.fromkeys(weights, 1))


def _encode(tokenizer: Tokenizer, document: Document, eos_id: int) -> Document:
    (encoding,) = tokenizer.encode_batch_fast([document.text.decode()], add_special_tokens=False)
    return dataclasses.replace(document, tokens=np.array([*encoding.ids, eos_id], document.tokens.dtype))


def cut_train(plan: Plan, shards: int) -> Plan:
    """Return the plan with the same training documents in another number of shards."""
    train: list[list[Document]] = [[] for _ in range(shards)]
    for source, weight in plan.weights.items():
        documents = [one for shard in plan.documents["train"] for one in shard if one.source == source]
        taken = k = 0
        for document in documents:
            size = len(document.tokens)
            target = TRAIN_TOKENS * weight * (k + 1) / (sum(plan.weights.values()) * shards)
            if k < shards - 1 and abs(taken + size - target) >= abs(taken - target):
                k += 1
            train[k].append(document)
            taken += size
    return dataclasses.replace(plan, documents=plan.documents | {"train": train})


def document_table(documents: list[Document]) -> pa.Table:
    """Return the documents' table."""
    lengths = np.array([len(document.tokens) for document in documents], np.uint32)
    starts = np.cumsum(lengths, dtype=np.uint64) - lengths
    schema = document_schema()
    columns = [
        pa.array(starts, pa.uint64()),
        pa.array(lengths, pa.uint32()),
        pa.array([document.source for document in documents]).dictionary_encode().cast(schema.field("source").type),
        pa.array([document.unit for document in documents]).dictionary_encode().cast(schema.field("unit").type),
        pa.array([document.row for document in documents], pa.uint32()),
        pa.array([document.hash for document in documents], pa.binary(16)),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


TRAIN_TOKENS = 1_300_000
"""Asked of the training split."""


def write_set(folder: Path, plan: Plan, *, table: Callable[[str, pa.Table], pa.Table] | None = None) -> Manifest:
    """Write a plan as a shard set whose checksums are all consistent.

    Args:
        folder: where to write.
        plan: what to write.
        table: changes a shard's document table (given its name) before it is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = writer.write_entry(folder / "tokenizer.json", plan.tokenizer)
    recipe = writer.write_entry(folder / "recipe.json", plan.recipe)
    properties = writer.SetProperties(vocab_size=plan.vocab_size, eos_id=plan.eos_id, tokenizer_sha256=tokenizer.sha256)
    dtype = "<u2" if dtype_for(plan.vocab_size) == "uint16" else "<u4"
    entries: list[ShardEntry] = []
    for split, shards in plan.documents.items():
        for index, documents in enumerate(shards):
            chunks = [document.tokens.astype(dtype) for document in documents]
            rows = document_table(documents)
            rows = table(f"{split}-{index:05d}", rows) if table else rows
            entries.append(
                writer.write_shard(
                    folder, split=split, index=index, properties=properties, chunks=chunks, documents=rows
                )
            )
    manifest = describe(plan, entries, tokenizer.sha256, recipe.sha256)
    writer.write_manifest(folder, manifest)
    return manifest


def describe(plan: Plan, entries: list[ShardEntry], tokenizer_sha256: str, recipe_sha256: str) -> Manifest:
    """Return the manifest of written shards."""
    names, weight_sum = list(plan.weights), sum(plan.weights.values())
    splits: dict[Split, SplitEntry] = {}
    for split in plan.documents:
        own = [entry for entry in entries if entry.split == split]
        splits[split] = describe_split(own, names, sum(entry.tokens for entry in own))
    splits["train"] = splits["train"].model_copy(update={"requested_tokens": TRAIN_TOKENS})
    shares = {name: weight / weight_sum for name, weight in plan.weights.items()}
    requested = [int(TRAIN_TOKENS * weight / weight_sum) for weight in plan.weights.values()]
    return Manifest(
        name="good",
        dtype=dtype_for(plan.vocab_size),
        vocab_size=plan.vocab_size,
        tokenizer=TokenizerEntry(
            file="tokenizer.json",
            sha256=tokenizer_sha256,
            eos_id=plan.eos_id,
            special_tokens={token["content"]: token["id"] for token in json.loads(plan.tokenizer)["added_tokens"]},
        ),
        recipe=RecipeEntry(file="recipe.json", sha256=recipe_sha256),
        sources=[
            SourceEntry(
                name=name,
                weight=weight,
                revision="test",
                tokens_available=10_000_000,
                documents_available=100_000,
                dropped={"empty": 0},
                epochs=plan.epochs[name],
            )
            for name, weight in plan.weights.items()
        ],
        mix=describe_mix(shares, requested, splits["train"].sources),
        splits=splits,
        shards=entries,
    )


def sha256(path: Path) -> str:
    """Return a file's hex SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
