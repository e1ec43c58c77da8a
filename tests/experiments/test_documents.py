"""Documents of two sets compared: exact counts by source, examples with their text, records that go stale."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pipeline.engine.stage_progress import Progress
from shards import ShardSet, open_set
from shards.stores.open import open_writable_store
from tests.support.ablations import write_ablation
from tests.support.shard_sets import Document, Plan, write_set
from tokenmill.experiments.arms import resolve_arms
from tokenmill.experiments.documents import compare_documents, record_documents, summarize_record
from tokenmill.experiments.schema import load_ablation

EOS = 256


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with a token for each byte, and EOS."""
    tokenizer = Tokenizer(
        models.BPE({letter: n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def make_set(folder: Path, *train: str, val: str = "prose:held out") -> ShardSet:
    """Write a set of documents `SOURCE:TEXT`, a shard for each argument, separated by `|`; a token a byte."""
    tokenizer = byte_tokenizer()

    def read(shard: str) -> list[Document]:
        rows = [one.partition(":") for one in shard.split("|")]
        return [
            Document(text.encode(), np.array([*tokenizer.encode(text).ids, EOS], "<u2"), source, f"{source}@0", row)
            for row, (source, _, text) in enumerate(rows)
        ]

    held = {"train": [read(shard) for shard in train], "val": [read(val)]}
    write_set(folder, Plan(held, tokenizer.to_str(), EOS, 257, {"prose": 3, "code": 1}, "{}", {"prose": 2, "code": 1}))
    return open_set(folder)


@pytest.fixture
def sets(tmp_path: Path) -> tuple[ShardSet, ShardSet]:
    """Two sets: `both` and `moved` are in both, `moved` under another source; `twice` is repeated in the first."""
    first = make_set(tmp_path / "first", "prose:both|prose:twice|code:12", "prose:twice|prose:moved|prose:new in val")
    arm = make_set(tmp_path / "arm", "prose:both|code:moved", "prose:é <b>\n", val="prose:new in val")
    return first, arm


def test_documents_and_tokens_are_counted_by_source(sets) -> None:
    rows, examples = compare_documents(*sets)
    assert rows == [
        {
            "source": "prose",
            "both_documents": 2,
            "both_tokens": 5 + 6,
            "both_tokens_in_arm": 5 + 6,
            "only_first_documents": 2,  # `twice`, `new in val`
            "only_first_tokens": 6 + 6 + 11,
            "only_arm_documents": 1,
            "only_arm_tokens": 8,
        },
        {
            "source": "code",
            "both_documents": 0,
            "both_tokens": 0,
            "both_tokens_in_arm": 0,
            "only_first_documents": 1,
            "only_first_tokens": 3,
            "only_arm_documents": 0,
            "only_arm_tokens": 0,
        },
    ]
    assert {example["text"] for example in examples["only_first"]} == {"twice", "new in val", "12"}
    (one,) = examples["only_arm"]
    assert (one["text"], one["source"], one["file"], one["row"], one["tokens"], one["whole"]) == (
        "é <b>\n",
        "prose",
        "prose",
        0,
        8,
        True,
    )


def test_the_examples_are_the_documents_with_the_lowest_hashes_of_each_source(tmp_path) -> None:
    texts = [f"text {number}" for number in range(40)]
    first = make_set(tmp_path / "first", "prose:same|code:1")
    arm = make_set(
        tmp_path / "arm",
        "|".join(f"prose:{text}" for text in texts[:20]) + "|code:1|code:2",
        "|".join(f"prose:{text}" for text in texts[20:]),
    )
    hashes = {text: Document(text.encode(), np.empty(0), "", "", 0).hash.hex() for text in [*texts, "2"]}
    expected = [*sorted(texts, key=hashes.__getitem__)[:3], "2"]
    _, examples = compare_documents(first, arm)
    assert [example["text"] for example in examples["only_arm"]] == expected
    assert [example["hash"] for example in examples["only_arm"]] == [hashes[text] for text in expected]


def test_a_record_is_made_again_for_other_sets(sets, tmp_path) -> None:
    first, arm = sets
    one, two = (SimpleNamespace(name=name, data=name * 3) for name in ("as-is", "other"))
    places: dict[str, ShardSet] = {"as-is": first, "other": arm}
    opened: list[str] = []

    def open_arm(which: Any) -> Path:
        opened.append(which.name)
        return places[which.name].path

    def record(which: Any) -> dict[str, Any]:
        return record_documents(tmp_path / "out", one, which, open_arm)  # type: ignore[arg-type]

    found = record(two)
    assert opened == ["other", "as-is"]
    assert summarize_record(found)["only_first_documents"] == 3
    assert summarize_record(found)["answer"] == "other documents"
    assert json.loads((tmp_path / "out/documents/other.json").read_text()) == found == record(two)
    assert len(opened) == 2
    assert [row["documents"] for row in found["mix"]] == [2, 1]

    # The arm is given another recipe, whose set holds the same documents as the first one.
    two.data, places["other"] = "another", first
    assert summarize_record(record(two))["answer"] == "the same documents"
    two.data = one.data
    same = record(two)
    assert (same["same_set"], same["counts"]) == (True, [])
    assert summarize_record(same)["answer"] == "the set of as-is"


def test_arms_have_a_small_validation_split_unless_they_say_otherwise(tmp_path: Path) -> None:
    """A large one would take documents of the training split, and of arms with other weights others."""
    arms = [
        {"name": "plain"},
        {"name": "weights", "data": {"sources": {"sums": {"weight": 2}}}},
        {"name": "own", "data": {"split": {"val_tokens": 50_000}}},
    ]
    file = write_ablation(tmp_path, *arms, tokens=2_048_000)
    recipe = tmp_path / "data.toml"
    recipe.write_text(re.sub(r"(val_tokens\W+)500", r"\g<1>90000", recipe.read_text()))
    config, store = load_ablation(file), open_writable_store(str(tmp_path / "out"))
    resolved = resolve_arms(file, config, store, Progress(quiet=True))
    assert [arm.recipe.split.val_tokens for arm in resolved] == [40_960, 40_960, 50_000]
