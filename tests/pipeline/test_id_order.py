"""The order of a trained tokenizer's ids: by frequency in its sample, with the same entries for the same text."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pipeline.recipe.schema import TokenizerRecipe
from pipeline.tokenizer.train import build_tokenizer_json, train_merges
from shards.format.tokenizer_json import make_plain
from tests.support.builds import real_documents
from tests.support.tokenizers import write_sample

SPECIAL = ["<|endoftext|>", "<|pad|>", "<|user|>"]
NAMES = ["gpt2", "llama3", "qwen2", "o200k"]


TEXTS = [*real_documents(), "".join(SPECIAL) * 50]


def write(merges: list[tuple[str, str]], name: str, order: str, sample: Path) -> str:
    recipe = TokenizerRecipe.model_validate({"special_tokens": SPECIAL, "pretokenizer": name, "id_order": order})
    return build_tokenizer_json(merges, recipe, sample)


@pytest.mark.parametrize("name", NAMES)
def test_frequent_entries_have_small_bytes(name: str, tmp_path: Path) -> None:
    """Counted again by `tokenizers`, from all of the sample."""
    sample = write_sample(tmp_path / "sample.bin", TEXTS)
    merges = train_merges(sample, 900, SPECIAL, name)
    by_merge, by_frequency = (write(merges, name, order, sample) for order in ("merge", "frequency"))
    before, after = json.loads(by_merge), json.loads(by_frequency)
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
