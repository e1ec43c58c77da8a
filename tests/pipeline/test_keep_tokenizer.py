"""A tokenizer that is kept: given as a file it encodes only what is new; weights that change keep it, and say so."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shards.format.reader import open_set
from tests.support.builds import build_here, digests, read_json, real_documents
from tests.support.recipes import overrides, source, write_recipe

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


def test_a_tokenizer_file_encodes_only_what_is_new(recipe: Path, tmp_path: Path):
    out = tmp_path / "set"
    assert build_here(recipe, out)["ran"]["encode"] == 2
    shutil.copy(out / "tokenizer.json", tmp_path)
    add_file(tmp_path / "data" / "growing-1.parquet", [NEW_TEXT * count for count in range(1, 200)])
    given = f'tokenizer={{file="{tmp_path}/tokenizer.json"}}'
    kept = build_here(recipe, out, "--set", given)
    assert kept["ran"]["encode"] == 1
    assert "encode: already encoded: 1 of 2 units" in kept["stderr"]
    # The set's own recipe builds the same set in an empty place; training on these files gives another tokenizer.
    build_here(out / "recipe.json", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(out)
    back = build_here(recipe, out, *overrides("sources.same.min_bytes=2"))
    assert back["ran"]["tokenizer"] == 1
    assert "sources.same.min_bytes = 2 (was 1)" in back["stderr"]
    assert "To keep the set's, copy its tokenizer.json, and give it: --set 'tokenizer={file=" in back["stderr"]
    assert "mix: no validation split (split.val_tokens = 0)" in back["stderr"]
    assert (out / "tokenizer.json").read_bytes() != (tmp_path / "tokenizer.json").read_bytes()


def test_other_weights_keep_the_tokenizer_and_the_sets_own_recipe_has_its_sample(recipe: Path, tmp_path: Path):
    out, weight = tmp_path / "set", overrides("sources.same.weight=3")
    build_here(recipe, out)
    moved = build_here(recipe, out, *weight)
    assert (moved["ran"]["tokenizer"], moved["ran"]["encode"]) == (0, 0)
    assert any("kept as trained, on a sample with weights {'same': 1.0, 'growing': 1.0}" in n for n in moved["notes"])
    assert read_json(out / "recipe.json")["tokenizer"]["sample_weights"] == {"same": 1, "growing": 1}
    build_here(out / "recipe.json", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(out)
    without = build_here(recipe, out, *overrides("sources.growing.weight=0"))
    assert (without["ran"]["tokenizer"], without["ran"]["encode"]) == (0, 0)
    assert [source.tokens_available > 0 for source in open_set(out).manifest.sources] == [True, False]
    build_here(recipe, tmp_path / "anew", *weight)
    assert (tmp_path / "anew/tokenizer.json").read_bytes() != (out / "tokenizer.json").read_bytes()
