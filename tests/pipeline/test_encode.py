"""A run: where hashes cut its rows, and that the batches in which its text was read change none of its bytes."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.clean import documents
from pipeline.encode.run import DOCUMENT_DTYPE, END_HASH, FIRST_HASH, count_below
from pipeline.sources.formats import parquet
from pipeline.tokenizer.encoder import Encoder
from shards.convert.tokenizer_proof import prove_tokenizer
from shards.errors import InputError
from shards.format.tokenizer_json import run_tokenizers
from tests.support.builds import build_here, call_here, real_documents
from tests.support.recipes import source, write_recipe, write_texts
from tests.support.tokenizers import train_byte_level, with_pattern


def test_hashes_with_the_same_first_half_are_cut_by_the_second() -> None:
    rows = np.zeros(6, DOCUMENT_DTYPE)
    rows["hash_hi"], rows["hash_lo"] = [1, 5, 5, 5, 5, 9], [7, 2, 4, 4, 8, 0]
    edges = [FIRST_HASH, (5, 0), (5, 3), (5, 4), (5, 5), (5, 9), (9, 1), END_HASH]
    assert count_below(rows, edges).tolist() == [0, 1, 2, 2, 4, 5, 6, 6]


def test_the_batches_of_a_unit_change_no_byte_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = real_documents()[:300]
    items = [text.split("\n")[0] for text in texts[20:280:40]]
    write_texts(tmp_path / "items.jsonl", items)
    pq.write_table(pa.table({"text": texts}), tmp_path / "prose.parquet", row_group_size=50)
    prose = source("prose", "prose.parquet", clean={"gopher": {"max_dropped": 1}})
    items_table = {"name": "items", "paths": ["items.jsonl"], "text": "text"}
    recipe = write_recipe(tmp_path / "recipe.toml", prose, evaluations=[items_table], mix={"when_short": "shrink"})
    found: list[dict[str, bytes]] = []
    for size in (documents.JOIN_BYTES, 4000):
        monkeypatch.setattr(documents, "JOIN_BYTES", size)
        monkeypatch.setattr(parquet, "BATCH_BYTES", size)
        build_here(recipe, tmp_path / f"{size}")
        files = (tmp_path / f"{size}.work/encode").glob("*/*/*.[bn]*")
        found.append({path.name: path.read_bytes() for path in files if "checksums" not in path.name})
    assert found[0] == found[1]
    assert len(found[0]["hits.bin"]) > 0
    assert found[0].keys() >= {"tokens.bin", "documents.npy", "measures.bin", "hits.bin"}


def test_a_unit_that_is_not_encoded_as_tokenizers_does_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for own in ("first", "second"):
        pq.write_table(
            pa.table({"text": [f"{own} {text}" for text in real_documents()[:99]]}), tmp_path / f"{own}.parquet"
        )
    sources = [source(own, f"{own}.parquet") for own in ("first", "second")]
    reference = Encoder.encode_reference

    def encode_other(self: Encoder, text: str) -> list[int]:
        return reference(self, text) + [7] * text.startswith("second")

    monkeypatch.setattr(Encoder, "encode_reference", encode_other)
    said = build_here(write_recipe(tmp_path / "recipe.toml", *sources), tmp_path / "set", expect=1)["stderr"]
    assert "second.parquet row 0: the encoder disagrees with `tokenizers`; expected [" in said
    assert f"for 'second {real_documents()[0][:20]}" in said
    assert not list(tmp_path.glob("set/*"))


@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_document_on_which_a_pattern_explodes_is_named(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = with_pattern(train_byte_level(["a " * 200]), "(a+)+y|.")
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(data))
    write_texts(tmp_path / "a.jsonl", ["b", "a" * 60, "c"])
    given = {"file": "tokenizer.json", "eos_token": "</s>"}
    recipe = write_recipe(tmp_path / "recipe.toml", source("s", "a.jsonl"), tokenizer=given)
    done = call_here(command, recipe, *(["--out", tmp_path / "set", "--workers", "1"] if command == "build" else []))
    words = r"`tokenizers` cannot encode a text of \d+ bytes: .* begins with 'aaa.* patterns are \"\(a\+\)\+y\|\.\""
    assert re.search(rf"source 's': a\.jsonl: record 1: {words}", done.stderr), done.stderr
    with pytest.raises(InputError, match=rf"tokenizer\.json: {words}"):
        prove_tokenizer(file, bos_id=None, shard_set=None)
    assert capfd.readouterr().err == ""
    # What others write to stderr meanwhile is not lost.
    assert run_tokenizers(data, "", lambda text: os.write(2, text), b"line\n") == 5
    assert capfd.readouterr().err == "line\n"
