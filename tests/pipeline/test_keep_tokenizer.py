"""`--keep-tokenizer`: files are added to a source, the tokenizer stays, and only what is new is encoded."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.builds import build_here, digests, real_documents
from tests.support.recipes import source, write_recipe

NEW_TEXT = "A file that came later. It has words of its own: zyzzyva, quokka, and a good many more of them. "


def add_file(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"text": texts}), path)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    add_file(tmp_path / "data" / "same-0.parquet", real_documents()[:300])
    add_file(tmp_path / "data" / "growing-0.parquet", real_documents()[300:600])
    sources = [source(name, f"data/{name}-*.parquet") for name in ("same", "growing")]
    tables = {"tokenizer": {"vocab_size": 500}, "shards": {"tokens": 20_000}}
    return write_recipe(tmp_path / "recipe.toml", *sources, **tables)


def test_a_kept_tokenizer_encodes_only_what_is_new(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    first = build_here(recipe, out)
    assert first["ran"]["tokenizer"] == 1
    assert first["ran"]["encode"] == 2
    assert "tokenizer: trained on " in first["stderr"]
    trained = (out / "tokenizer.json").read_bytes()
    add_file(tmp_path / "data" / "growing-1.parquet", [NEW_TEXT * count for count in range(1, 200)])
    kept = build_here(recipe, out, "--keep-tokenizer")
    assert (out / "tokenizer.json").read_bytes() == trained
    assert kept["ran"]["tokenizer"] == 0
    assert kept["ran"]["encode"] == 1
    (folder,) = (tmp_path / "set.work" / "tokenizer").iterdir()
    assert f"tokenizer: kept from {folder}" in kept["stderr"]
    assert "encode: 1 of 2 units was already encoded" in kept["stderr"]

    # The set's own recipe builds the same set in an empty place; training on these files gives another tokenizer.
    build_here(out / "recipe.json", tmp_path / "again")
    found, expected = digests(tmp_path / "again"), digests(out)
    for name in ("recipe.json", "manifest.json"):  # they state where the tokenizer's file is
        assert found.pop(name)
        assert expected.pop(name)
    assert found == expected
    section = json.loads((out / "recipe.json").read_text())["tokenizer"]
    assert section["file"] == "tokenizer.json"
    assert section["vocab_size"] is None
    anew = build_here(recipe, out)
    assert anew["ran"]["tokenizer"] == 1
    assert (out / "tokenizer.json").read_bytes() != trained


def test_the_tokenizer_of_the_finished_set_is_kept(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    build_here(recipe, out)
    trained = (out / "tokenizer.json").read_bytes()
    add_file(tmp_path / "data" / "growing-1.parquet", [NEW_TEXT * count for count in range(1, 200)])
    # A build that trains another, and stops before it is done.
    build_here(recipe, out, "--set", "mix.tokens=10_000_000_000", expect=2)
    assert len(list((tmp_path / "set.work" / "tokenizer").iterdir())) == 2
    build_here(recipe, out, "--keep-tokenizer")
    assert (out / "tokenizer.json").read_bytes() == trained


def test_what_cannot_be_kept_is_refused(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    refused = build_here(recipe, out, "--keep-tokenizer", expect=2)["stderr"]
    assert "holds no trained tokenizer to keep. Build without --keep-tokenizer." in refused
    assert not out.exists()
    assert not (tmp_path / "set.work").exists()
    build_here(recipe, out)
    before = digests(out)
    refused = build_here(recipe, out, "--keep-tokenizer", "--set", "tokenizer.vocab_size=600", expect=2)["stderr"]
    assert "tokenizer.vocab_size: 600, but the tokenizer to keep in" in refused
    assert digests(out) == before
