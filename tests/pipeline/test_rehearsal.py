"""A build that rehearses a large one: fewer tokens, and files of one's own in the place of the Hub's."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from tests.support.builds import call_here, digests, read_json, real_documents
from tests.support.recipes import source, write_recipe

HALVES = "mix.phases=[{name='a', share=0.75}, {name='b', share=0.25}]"
GIVEN, SCALED = (10_000_000, 50_000_000), (200_000, 250_000)
FITTED: dict[str, tuple[Any, Any, tuple[str, ...], tuple[int, int]]] = {
    "as it is": ("1G", "1G", (), GIVEN),
    "validation of a twentieth fits": ("1G", 200_000_000, (), GIVEN),
    "validation alone": ("1G", "100M", (), (5_000_000, 50_000_000)),
    "both": ("max", "4M", (), SCALED),
    "the recipe's own part": ("50M", "25M", (), (5_000_000, 1_562_500)),
    "shards that held all before": ("40M", "20M", (), (5_000_000, 50_000_000)),
    "what is given stays": ("1G", "4M", ("split.val_tokens=10M",), (10_000_000, 250_000)),
    "a table that is given stays": ("1G", "4M", ("shards={tokens=9_000_000}",), (200_000, 9_000_000)),
    "not asked for": ("1G", None, ("mix.tokens=4M",), GIVEN),
    "max": ("1G", "max", (), GIVEN),
    "no number": ("1x", "4M", (), SCALED),
    "none": (0, "4M", (), SCALED),
    "every phase has shards of its own": ("1G", "4M", (HALVES,), (200_000, 1_000_000 // 16)),
}


@pytest.mark.parametrize("name", FITTED)
def test_what_no_longer_fits_is_scaled_and_said(name: str, capsys: pytest.CaptureFixture[str]):
    before, tokens, changes, expected = FITTED[name]
    tables: dict[str, Any] = {"name": "n", "sources": [source("s", __file__, format="file")]}
    tables |= {"tokenizer": {"vocab_size": 300}, "mix": {"tokens": before}}
    tables |= {"split": {"val_tokens": GIVEN[0]}, "shards": {"tokens": GIVEN[1]}}
    loaded = pipeline.load_recipe(tables, tokens=tokens, overrides=changes, progress=True)
    assert (loaded.split.val_tokens, loaded.shards.tokens) == expected
    said = capsys.readouterr().err
    for key, old, new in zip(("split.val_tokens", "shards.tokens"), GIVEN, expected, strict=True):
        assert (f"{key} {old:,} -> {new:,}" in said) == (old != new and new != 9_000_000), said
    assert bool(said) == ("->" in said)


def test_local_files_stand_for_the_hub_and_for_software_heritage(tmp_path: Path):
    texts = real_documents()
    (tmp_path / "web/deep").mkdir(parents=True)
    scores = [number % 4 for number in range(len(texts))]
    pq.write_table(pa.table({"body": texts[::2], "score": scores[::2]}), tmp_path / "web/deep/0.parquet")
    code = [f"def f{number}():\n    return {number} * {number}  # a line\n" * 20 for number in range(60)]
    for part in range(2):
        rows = {"text": code[part::2], "blob_id": ["0" * 40] * 30}
        pq.write_table(pa.table(rows), tmp_path / f"code-{part}.parquet")
    shared = {"text": "body", "keep": {"score": ">= 2"}}
    archived = {"repo": "a/code", "kind": "hub", "content": "software-heritage", "max_missing": 0.5}
    tables: dict[str, Any] = {"mix": {"tokens": "1G", "when_short": "shrink"}, "split": {"val_tokens": "50M"}}
    on_hub = source("web", repo="a/web", config="big", revision="v1", kind="hub", **shared), source("code", **archived)
    recipe = write_recipe(tmp_path / "hub.toml", *on_hub, **tables)
    sources = f"--source=web={tmp_path}/web", f"--source=code={tmp_path}/code-0*", f"--source=code={tmp_path}/code-1*"
    smaller = *sources, "--tokens", "40K", "--workers", "1"
    done = call_here("build", recipe, "--out", tmp_path / "set", *smaller, expect=0)
    assert "--tokens 40K: scaled to fit: split.val_tokens 50,000,000 -> 2,000, shards.tokens" in done.stderr
    assert call_here("plan", recipe, *smaller).stderr.count("scaled to fit") == 1
    # It is the set of a recipe that names these files and sizes, and says so.
    codes = [str(tmp_path / f"code-{part}*") for part in range(2)]
    of_files = source("web", tmp_path / "web/**/*", **shared), source("code", *codes)
    tables = {"mix": {"tokens": 40_000, "when_short": "shrink"}, "split": {"val_tokens": 2_000}}
    named = write_recipe(tmp_path / "files.toml", *of_files, **tables, shards={"tokens": 2_500})
    pipeline.build_set(named, out=tmp_path / "named", workers=1)
    assert digests(tmp_path / "set") == digests(tmp_path / "named")
    manifest = read_json(tmp_path / "set/manifest.json")
    assert all("a/" not in json.dumps(one) for one in manifest["sources"])
    # A program gives the files, or the rows, the same way.
    files = {"web": pq.read_table(tmp_path / "web/deep/0.parquet").to_pylist(), "code": codes}
    result = pipeline.build_set(recipe, out=tmp_path / "rows", sources=files, tokens="40K", workers=1)
    assert result.manifest.model_dump(mode="json")["splits"] == manifest["splits"]
