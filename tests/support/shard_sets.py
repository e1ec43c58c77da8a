"""A small shard set, built with `shards.format.writer`: plan it, change the plan, write it."""

import dataclasses
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from shards.format import writer
from shards.format.manifest import MANIFEST_FILE, Manifest, RecipeEntry, SourceEntry, Split, TokenizerEntry
from shards.format.reader import open_set
from shards.format.shard import document_schema
from shards.format.totals import describe_mix, describe_split


def train_bpe(texts: Iterable[str], entries: int, special: Sequence[str] = (), splitter: Any = None) -> Tokenizer:
    """Train a byte-level BPE with `tokenizers` alone, split as GPT-2's unless told otherwise."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=entries,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_tokenizer(texts: Iterable[str], entries: int) -> Tokenizer:
    """Train a byte-level BPE; two more entries are special."""
    tokenizer = train_bpe(texts, entries)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|endoftext|>", "<|pad|>")])
    assert tokenizer.get_vocab_size() == entries + 2
    return tokenizer


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


def plan_set(tokenizer: Tokenizer, texts: dict[str, list[str]]) -> Plan:
    """Mix two sources, of texts by SOURCE-UNIT, 3 to 1, each shard cut at the boundary nearest to its target."""
    eos_id = tokenizer.token_to_id("<|endoftext|>")
    vocab_size = tokenizer.get_vocab_size()
    dtype = np.dtype("<u2")
    weights = {"prose": 3.0, "code": 1.0}
    shards: dict[Split, list[list[Document]]] = {"train": [[], []], "val": [[]]}
    for source, weight in weights.items():
        documents = [
            Document(text.encode(), np.array([], dtype), source, f"{unit}.json", row)
            for unit, own in texts.items()
            if unit.startswith(source)
            for row, text in enumerate(own)
        ]
        documents.sort(key=lambda document: document.hash)
        left = (_encode(tokenizer, document, eos_id) for document in documents)  # more than half of them are not needed
        document = next(left)
        for split, total in (("val", 40_000), ("train", TRAIN_TOKENS)):
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


def write_set(folder: Path, plan: Plan) -> Manifest:
    """Write a plan as a shard set whose checksums are all consistent.

    Args:
        folder: where to write.
        plan: what to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = writer.write_entry(folder / "tokenizer.json", plan.tokenizer)
    recipe = writer.write_entry(folder / "recipe.json", plan.recipe)
    properties = writer.SetProperties(plan.vocab_size, plan.eos_id, tokenizer.sha256)
    shards = [
        writer.write_shard(
            folder,
            split=split,
            index=index,
            properties=properties,
            chunks=[np.concatenate([document.tokens for document in documents]).astype(properties.dtype).data],
            documents=document_table(documents),
        )
        for split, parts in plan.documents.items()
        for index, documents in enumerate(parts)
    ]
    # Whatever the shards hold was available, and nothing else.
    names = list(plan.weights)
    available = describe_split(shards, names, 0).sources
    splits = {
        split: describe_split(own, names, TRAIN_TOKENS if split == "train" else sum(entry.tokens for entry in own))
        for split in plan.documents
        for own in [[entry for entry in shards if entry.split == split]]
    }
    shares = {name: weight / sum(plan.weights.values()) for name, weight in plan.weights.items()}
    special = {token["content"]: token["id"] for token in json.loads(plan.tokenizer).get("added_tokens", [])}
    manifest = Manifest(
        name=folder.name,
        dtype=properties.dtype,
        vocab_size=plan.vocab_size,
        tokenizer=TokenizerEntry(
            file=tokenizer.path,
            sha256=tokenizer.sha256,
            eos_id=plan.eos_id,
            special_tokens=special or {"<eos>": plan.eos_id},
        ),
        recipe=RecipeEntry(file=recipe.path, sha256=recipe.sha256),
        sources=[
            SourceEntry(
                name=name,
                weight=weight,
                revision="none",
                tokens_available=available[name].tokens,
                documents_available=available[name].documents,
                dropped={},
                epochs=plan.epochs[name],
            )
            for name, weight in plan.weights.items()
        ],
        mix=describe_mix(shares, [int(share * TRAIN_TOKENS) for share in shares.values()], splits["train"].sources),
        splits=splits,
        shards=shards,
    )
    writer.write_entry(folder / MANIFEST_FILE, manifest.to_json())
    return open_set(folder).manifest


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file in a folder, by its path in it."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
