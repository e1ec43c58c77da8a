"""Exports: the bytes of each layout, the readers that fit this environment, refusals, and exports that end early."""

import json
from importlib.metadata import version

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import shards
from shards.convert import export
from shards.convert.export import export_set
from shards.convert.layouts import LAYOUTS, UINT16_LAYOUTS
from shards.convert.layouts import layout as layouts
from shards.errors import InputError
from shards.format.writer import write_token_set
from tests.support.builds import call_here, read_json
from tests.support.shard_sets import Document, files_of, write_set
from tests.support.token_sets import count_up

EOS = 298


def make_document(*ids):
    return Document(str(ids).encode(), np.array([*ids, EOS], "<u2"), "prose", "unit", 0)


@pytest.fixture
def tiny_set(plan, tmp_path):
    """Return a set of two train shards, 7 tokens in 3 documents, and one val shard of one document."""
    plan.documents = {
        "train": [[make_document(1, 2), make_document()], [make_document(258, 0x0103 - 1)]],
        "val": [[make_document(2)]],
    }
    write_set(tmp_path / "tiny", plan)
    return shards.open_set(tmp_path / "tiny")


@pytest.fixture
def truth(plan):
    """Return the good set's tokens and document lengths by split."""
    documents = {split: [d for shard in group for d in shard] for split, group in plan.documents.items()}
    return {
        split: (np.concatenate([d.tokens for d in group]), np.array([len(d.tokens) for d in group]))
        for split, group in documents.items()
    }


# The three training documents: 1 2 EOS | EOS | 258 258 EOS, the first two in shard 0.
SHARD_0, SHARD_1, VAL = "0100 0200 2a01 2a01", "0201 0201 2a01", "0200 2a01"


def test_golden_llmc(tiny_set, tmp_path):
    export_set(tiny_set, tmp_path / "out", layout="llmc")
    files = files_of(tmp_path / "out")
    assert set(files) == {"train_000000.bin", "train_000001.bin", "val_000000.bin", "tokenizer.json", "export.json"}
    head = bytes.fromhex("88d83401 01000000 04000000")
    assert files["train_000000.bin"] == head + bytes(1012) + bytes.fromhex(SHARD_0)
    assert files["train_000001.bin"][:12] == bytes.fromhex("88d83401 01000000 03000000")
    assert files["val_000000.bin"][1024:] == bytes.fromhex(VAL)


def test_golden_megatron_and_nanogpt(tiny_set, tmp_path):
    export_set(tiny_set, tmp_path / "out", layout="megatron")
    files = files_of(tmp_path / "out")
    assert set(files) == {"train.bin", "train.idx", "val.bin", "val.idx", "tokenizer.json", "export.json"}
    export_set(tiny_set, tmp_path / "plain", layout="nanogpt")
    plain = files_of(tmp_path / "plain")
    assert set(plain) == {"train.bin", "val.bin", "tokenizer.json", "export.json"}
    assert plain["train.bin"] == files["train.bin"] == bytes.fromhex(SHARD_0 + SHARD_1)
    assert plain["val.bin"] == files["val.bin"] == bytes.fromhex(VAL)
    assert plain["tokenizer.json"] == (tiny_set.path / "tokenizer.json").read_bytes()
    assert files["train.idx"] == bytes.fromhex(
        "4d4d494449445800 00"  # MMIDIDX
        "0100000000000000 08"  # version 1, uint16
        "0300000000000000 0400000000000000"  # 3 sequences, 4 bounds
        "03000000 01000000 03000000"  # lengths
        "0000000000000000 0600000000000000 0800000000000000"  # byte offsets
        "0000000000000000 0100000000000000 0200000000000000 0300000000000000"  # document bounds
    )


def test_datasets_and_duckdb_read_parquet(good_set, truth, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    monkeypatch.setattr(layouts, "EXPORT_BLOCK_TOKENS", 5000)
    out = tmp_path / "out"
    shard_set = shards.open_set(good_set)
    export_set(shard_set, out, layout="parquet")
    for split, (tokens, lengths) in truth.items():
        loaded = datasets.load_dataset(str(out), split=split, cache_dir=tmp_path / "cache")
        assert np.array_equal(np.concatenate(loaded["input_ids"]), tokens)
        assert [len(ids) for ids in loaded["input_ids"]] == lengths.tolist()
        table = pa.concat_tables([shard.documents() for shard in shard_set.splits[split]])
        assert loaded["hash"][:] == [digest.hex() for digest in table["hash"].to_pylist()]
        assert {name: loaded[name][:] for name in ("unit", "row")} == table.select(["unit", "row"]).to_pydict()
        assert loaded.features["input_ids"].feature.dtype == "uint16"
        query = f"select source, sum(len(input_ids)) from '{out}/data/{split}-*.parquet' group by source"
        counts = shard_set.manifest.splits[split].sources
        assert dict(duckdb.sql(query).fetchall()) == {name: count.tokens for name, count in counts.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_small_files_and_blocks_hold_the_same(good_set, truth, tmp_path, monkeypatch, name):
    """Many blocks give the bytes of one, and each layout says what it holds."""
    shard_set = shards.open_set(good_set)
    export_set(shard_set, tmp_path / "one", layout=name)
    monkeypatch.setattr(layouts, "EXPORT_BLOCK_TOKENS", 5000)
    found = export_set(shard_set, tmp_path / "out", layout=name)
    assert name == "parquet" or files_of(tmp_path / "one") == files_of(tmp_path / "out")
    for split, (tokens, lengths) in truth.items():
        assert found["splits"][split] == {"tokens": len(tokens), "documents": len(lengths)}
    assert read_json(tmp_path / "out/export.json")["set"]["manifest_sha256"] == shard_set.manifest_sha256


def test_datatrove_writes_the_same_bytes(good_set, plan, tmp_path):
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    export_set(shards.open_set(good_set), tmp_path / "out", layout="datatrove")
    for split, shards_of_split in plan.documents.items():
        theirs = tmp_path / "theirs" / split
        theirs.mkdir(parents=True)
        for number, documents in enumerate(shards_of_split):
            name = f"{split}_{number:06}.ds"
            file = TokenizedFile(
                str(theirs), name, save_final_metadata=True, tokenizer_name_or_path="../tokenizer.json"
            )
            for document in documents:
                file.write(document.tokens.tolist(), None)
            file.close()
        assert files_of(theirs) == files_of(tmp_path / "out" / split)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in UINT16_LAYOUTS])
def test_wide_vocabulary(tmp_path, name):
    """A vocabulary above 65,536 entries has four bytes for each token."""
    tokens = np.array([69_999, 65_536, 0], "<u4")
    wide = write_token_set(tmp_path / "wide", {"train": [tokens, tokens]}, vocab_size=70_000)
    export_set(wide, tmp_path / "out", layout=name)
    content = b"".join(content for path, content in sorted(files_of(tmp_path / "out").items()) if "json" not in path)
    assert name == "parquet" or content.count(tokens.tobytes()) == 2  # which is compressed
    if name == "megatron":
        assert (tmp_path / "out/train.idx").read_bytes()[17] == 4


def test_the_tokenizer_is_proved(plan, tmp_path):
    """A text whose tokens are not those of its tokenizer is shown; nothing is exported."""
    write_set(tmp_path / "good", plan)
    export_set(shards.open_set(tmp_path / "good"), tmp_path / "out", layout="nanogpt")
    proof = read_json(tmp_path / "out/export.json")["tokenizer_proof"]
    assert proof == {"probes": proof["probes"], "documents": 300, "tokenizers": version("tokenizers")}
    assert proof["probes"] > 20
    vocabulary = json.loads(plan.tokenizer)["model"]["vocab"]
    plan.documents = {"train": [[make_document(*map(vocabulary.get, "the"))]]}
    write_set(tmp_path / "other", plan)
    with pytest.raises(
        InputError, match=r"tokenizer\.json: tokenizers gives other ids than training to '.*': from id 0 on"
    ):
        export_set(shards.open_set(tmp_path / "other"), tmp_path / "none", layout="nanogpt")
    assert not (tmp_path / "none").exists()
    # A set of bare ids has none.
    ids = write_token_set(tmp_path / "set", {"train": [count_up(1000, vocab_size=50)]}, vocab_size=50)
    export_set(ids, tmp_path / "bare", layout="nanogpt")
    assert read_json(tmp_path / "bare/export.json")["tokenizer_proof"] == {"probes": 0, "documents": 0}


def test_what_a_layout_cannot_count_is_refused(tiny_set, monkeypatch, tmp_path):
    monkeypatch.setattr(export, "MAX_INT32", 3)
    export_set(tiny_set, tmp_path / "megatron", layout="megatron")  # its longest document has 3 tokens
    with pytest.raises(InputError, match="train-00000 has 4 tokens; llmc counts to 3"):
        export_set(tiny_set, tmp_path / "out", layout="llmc")
    monkeypatch.setattr(export, "MAX_INT32", 2)
    with pytest.raises(InputError, match="train-00000 has a document of 3 tokens; parquet counts to 2"):
        export_set(tiny_set, tmp_path / "out", layout="parquet")


def test_command(tiny_set, tmp_path):
    arguments = ["export", tiny_set.path, "--to", "megatron", "--out", tmp_path / "out"]
    report = call_here(*arguments, "--split", "val", "--json", expect=0).json
    assert report["splits"] == {"val": {"tokens": 2, "documents": 1}}
    assert report["usage"].startswith(f'IndexedDataset("{tmp_path}/out/val")')
    assert report["files"]["val.bin"] == 4
    assert not (tmp_path / "out/train.bin").exists()
