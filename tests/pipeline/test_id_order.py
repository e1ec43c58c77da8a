"""The order of a trained tokenizer's ids: by frequency in its sample, with the same entries for the same text."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from pipeline.recipe.schema import TokenizerRecipe
from pipeline.tokenizer.train import build_tokenizer_json, train_merges
from shards.format.tokenizer_json import make_plain
from tests.support.builds import build_here, digests, real_documents
from tests.support.recipes import source, write_recipe
from tests.support.tokenizers import write_sample

SPECIAL = ["<|endoftext|>", "<|pad|>", "<|user|>"]
NAMES = ["gpt2", "llama3", "qwen2", "o200k"]


TEXTS = [*real_documents(), "".join(SPECIAL) * 50]


def write(merges: list[tuple[str, str]], name: str, order: str, sample: Path) -> str:
    recipe = TokenizerRecipe.model_validate({"special_tokens": SPECIAL, "pretokenizer": name, "id_order": order})
    return build_tokenizer_json(merges, recipe, sample)


@pytest.fixture(scope="module", params=NAMES)
def trained(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    sample = write_sample(tmp_path_factory.mktemp("sample") / "sample.bin", TEXTS)
    merges = train_merges(sample, 900, SPECIAL, request.param)
    return write(merges, request.param, "merge", sample), write(merges, request.param, "frequency", sample)


def test_frequent_entries_have_small_bytes(trained: tuple[str, str]) -> None:
    """Counted again by `tokenizers`, from all of the sample."""
    by_merge, by_frequency = trained
    before, after = (json.loads(text) for text in trained)
    reference = Tokenizer.from_str(json.dumps(make_plain(before)))
    counts = Counter(token for text in TEXTS for token in reference.encode(text).tokens)
    ordinary = [entry for entry in before["model"]["vocab"] if entry not in SPECIAL]
    ranked = sorted(ordinary, key=lambda entry: (-counts[entry], before["model"]["vocab"][entry]))
    ids = sorted(range(len(SPECIAL), 900), key=lambda number: (number % 256 + 4) * (number // 256 + 4))
    expected = dict(enumerate(SPECIAL)) | dict(zip(ids, ranked, strict=True))
    assert {number: entry for entry, number in after["model"]["vocab"].items()} == expected
    assert after["model"]["vocab"] != before["model"]["vocab"]
    # All else is the same.
    assert {**after, "model": None} == {**before, "model": None}
    assert {**after["model"], "vocab": None} == {**before["model"], "vocab": None}
    assert by_frequency.endswith("}\n") == by_merge.endswith("}\n")


BY_MERGE = ("--set", "tokenizer.id_order=merge")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"text": real_documents()}), tmp_path / "data" / "a.parquet")
    tables = {"tokenizer": {"vocab_size": 600}, "shards": {"tokens": 20_000}}
    return write_recipe(tmp_path / "recipe.toml", source("text", "data/*.parquet"), **tables)


def test_the_order_is_stated_and_changes_the_digest(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    build_here(recipe, out, *BY_MERGE)
    by_merge = digests(out)
    assert json.loads((out / "recipe.json").read_text())["tokenizer"]["id_order"] == "merge"
    again = build_here(recipe, out)
    assert again["ran"]["tokenizer"] == 1
    assert 'tokenizer.id_order = "frequency" (was "merge")' in again["stderr"]
    assert digests(out)["tokenizer.json"] != by_merge["tokenizer.json"]
