"""Planted faults: each damages the plan of a valid set in one thing. `test_validate.py` runs them all.

Those of the manifest, of a set's files and of what lies in its folder are in `tests/golden/refusals.txt`. `FAULTS` is
one table: a name, the kinds of problem that full validation must name, exactly these, and the damage. From the changed
plan a set with consistent checksums is written.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.support.builds import read_json
from tests.support.shard_sets import Document, Plan


class Fault(NamedTuple):
    """One row of the table."""

    name: str
    kinds: str
    """The kinds of problem, with spaces between them."""
    damage: Callable[[Plan], None]


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a set's manifest."""
    data = read_json(folder / "manifest.json")
    change(data)
    (folder / "manifest.json").write_text(json.dumps(data, indent=2) + "\n")


def tokens_of(shard: int, number: int, change: Callable[[Plan, list[int]], list[int]]) -> Any:
    """Return what gives a document of the training split other tokens."""

    def damage(plan: Plan) -> None:
        documents = plan.documents["train"][shard]
        old = documents[number].tokens
        tokens = np.array(change(plan, old.tolist()), old.dtype)
        documents[number] = dataclasses.replace(documents[number], tokens=tokens)

    return damage


def copy_of(document: Document, like: Document) -> Document:
    """Return a copy of a document under another row. It replaces `like` and has its length: shares do not change."""
    text = document.tokens.tolist()[:-1]
    tokens = (text * (len(like.tokens) // max(1, len(text)) + 1))[: len(like.tokens) - 1]
    tokens = np.array([*tokens, document.tokens[-1]], document.tokens.dtype)
    return dataclasses.replace(document, tokens=tokens, source=like.source)


def copies(original: tuple[str, int, int], *places: tuple[str, int, int], epochs: int = 1) -> Any:
    """Return what puts copies of a document, given as (split, shard, number), into other places of the plan."""

    def damage(plan: Plan) -> None:
        plan.epochs.update(prose=epochs, code=epochs)
        split, shard, number = original
        document = plan.documents[split][shard][number]
        for split, shard, number in places:
            documents = plan.documents[split][shard]
            documents[number] = copy_of(document, documents[number])

    return damage


def remove_code(plan: Plan) -> None:
    """Take ten documents of one source out of each training shard."""
    for shard in plan.documents["train"]:
        for document in [d for d in shard if d.source == "code"][:10]:
            shard.remove(document)


def move_code(plan: Plan) -> None:
    """Keep the shares of the whole set, but not those of its shards."""
    first, second = plan.documents["train"]
    for document in [d for d in first if d.source == "code"][:40]:
        first.remove(document)
        second.append(document)


FAULTS = [
    Fault(
        "eos_inside_a_document",
        "eos_misplaced",
        tokens_of(0, 3, lambda plan, tokens: [plan.eos_id, *tokens[1:]]),
    ),
    Fault(
        "eos_one_token_early",  # as many as there are documents, but one is in the wrong place
        "eos_misplaced",
        tokens_of(1, 7, lambda _, tokens: [*tokens[:-2], tokens[-1], tokens[-2]]),
    ),
    Fault("document_in_both_splits", "split_leak", copies(("val", 0, 2), ("train", 1, 5))),
    Fault("document_twice_in_train", "document_repeated", copies(("train", 0, 2), ("train", 1, 5))),
    Fault(
        "document_more_often_than_epochs",
        "document_repeated",
        copies(("train", 0, 2), ("train", 1, 5), ("train", 1, 6), epochs=2),
    ),
    Fault("share_wrong_in_shards", "mix_share", move_code),
    Fault("share_wrong_in_the_set", "mix_share", remove_code),
]
