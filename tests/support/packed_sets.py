"""Sets of documents whose tokens are told, for packed rows: with and without BOS and conversations."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shards import ShardSet, open_set
from shards.format.writer import write_token_set
from tests.support.faults import edit

EOS, BOS, TURN, OPENING = 0, 1, 2, [2, 3]
Ids = list[int]


def make_documents(seed: int, lengths: Sequence[int], *, bos: bool = False, chat: bool = False) -> list[Ids]:
    """Return documents of some lengths, EOS included; of conversations, each third is a text."""
    random, documents = np.random.default_rng(seed), list[Ids]()
    for number, length in enumerate(lengths):
        ids = random.integers(4, 300, length).tolist()
        if chat and number % 3 and length > 8:
            ids[1 : 1 + len(OPENING)] = OPENING
            ids[length - 4] = TURN
        ids[0] = BOS if bos else ids[0]
        documents.append([*ids[:-1], EOS])
    return documents


def write_documents(
    folder: Path, shards: Sequence[list[Ids]], *, bos: bool = False, chat: bool = False, **more: Any
) -> ShardSet:
    """Write the train shards of a set and one val shard, and open it."""
    train = [np.array([token for document in shard for token in document], np.uint16) for shard in shards]
    write_token_set(folder, {"train": train, "val": [np.array([5, 6, 7, EOS], np.uint16)]}, **more)

    def change(manifest: dict[str, Any]) -> None:
        manifest["tokenizer"]["special_tokens"] = {"<eos>": EOS, "<bos>": BOS, "<turn>": TURN}
        if bos:
            manifest["tokenizer"]["bos_id"] = BOS
        if chat:
            manifest["chat"] = {
                "before": dict.fromkeys(("system", "user", "assistant"), "<turn>a"),
                "after": "<turn>",
                "opening": OPENING,
            }
            targets = [sum(naive_targets(document)) for shard in shards for document in shard]
            manifest["sources"][0]["trained_tokens"] = sum(targets) - bos * sum(
                TURN not in document for shard in shards for document in shard
            )

    return edit_manifest(folder, change)


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> ShardSet:
    """Change the manifest of a set, and open it."""
    edit(folder, change)
    return open_set(folder)


def naive_targets(document: Ids) -> list[bool]:
    """Return which tokens of a document are targets, by the rule as it is told."""
    if TURN not in document:
        return [True] * len(document)
    targets, counts = [], False
    for at, token in enumerate(document):
        targets.append(counts)
        if token in (EOS, BOS, TURN):
            counts = False
        if document[at - 1 : at + 1] == OPENING:
            counts = True
    return targets
