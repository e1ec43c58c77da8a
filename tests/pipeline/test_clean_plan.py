"""Cleaning before anything is built: what `plan` foresees of it, and what the tokenizer's sample is drawn from."""

import random
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.recipe.presets import Code
from tests.support import recipes
from tests.support.builds import build_here, call_here, digests, read_json
from tests.support.recipes import write_recipe, write_texts


def write_words(folder: Path, **limits: Any) -> Path:
    """Write a recipe of 400 documents, of which 100 are one long line of a word that no other document has."""
    rng = random.Random(5)
    words = ["alpha", "beta", "gamma", "delta", "words", "stand", "here", "that", "differ", "often"]
    texts = ["".join(" ".join(rng.choices(words, k=8)) + "\n" for _ in range(rng.randint(8, 16))) for _ in range(300)]
    texts += [f"{number} " + "zqxjkv " * 180 for number in range(100)]
    rng.shuffle(texts)
    write_texts(folder / "a.jsonl", texts)
    own = recipes.source("s", "a.jsonl", clean={"code": {"max_mean_line_bytes": "off"} | limits})
    return write_recipe(folder / "recipe.toml", own, tokenizer={"vocab_size": 290})


@pytest.mark.parametrize("when", ["mix", "encode"])
def test_a_plan_says_what_presets_take(when: str, tmp_path: Path):
    recipe = write_words(tmp_path, when=when, max_dropped=0.2)
    said = call_here("plan", recipe).stdout
    assert re.search(r"^ s +code +25.0% +max_longest_line_bytes 25.0%$", said, re.M)
    assert "warning: the build would stop: source 's': clean.code drops 100 of 400 documents (25.00%" in said
    allowed = "sources.s.clean.code.max_dropped=0.25"
    assert "warning:" not in call_here("plan", recipe, "--set", allowed).stdout
    planned = call_here("plan", recipe, "--set", allowed, "--json").json["sources"][0]
    built = build_here(recipe, tmp_path / "set", "--set", allowed)["sources"][0]
    assert built["documents_available"] == 300
    assert planned["tokens"] == pytest.approx(built["tokens_available"], rel=0.05)
    assert planned["documents"] == 300


def garbage(folder: Path) -> list[str]:
    """Return the entries that only the documents of a few words can have taught."""
    vocabulary = read_json(folder / "tokenizer.json")["model"]["vocab"]
    return [entry for entry in vocabulary if 1 < len(entry) < 9 and set(entry) & set("zqxjkv")]


def test_what_falls_never_becomes_an_entry(tmp_path: Path):
    recipe = write_words(tmp_path, max_dropped=1)
    build_here(recipe, tmp_path / "set")
    assert not garbage(tmp_path / "set")
    before = digests(tmp_path / "set")["tokenizer.json"]
    # A limit that moves keeps the tokenizer, and says so; a preset that is switched off trains another.
    moved = build_here(recipe, tmp_path / "set", "--set", "sources.s.clean.code.max_longest_line_bytes=off")
    assert digests(tmp_path / "set")["tokenizer.json"] == before
    told = "on a sample with other limits (s: code.max_longest_line_bytes = 1000.0, now off)"
    assert any(told in note for note in moved["notes"])
    limits = read_json(tmp_path / "set/recipe.json")["tokenizer"]["sample_limits"]
    assert limits == {"s": {"code": Code().model_dump() | {"max_mean_line_bytes": "off"}}}
    build_here(recipe, tmp_path / "set", "--set", "sources.s.clean.code.enabled=false")
    assert garbage(tmp_path / "set")
    early = ["--set", "sources.s.clean.code.when=encode", "--set", "sources.s.clean.code.max_longest_line_bytes=9000"]
    build_here(recipe, tmp_path / "set", *early)
    assert garbage(tmp_path / "set")
