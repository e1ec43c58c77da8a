"""Sets whose tokenizer rewrites text and whose documents begin with BOS, from the recipe to training and back."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
from tokenizers import Tokenizer

import shards
from shards.torch import TokenWindows
from shards.validation.validate import validate
from tests.support.builds import build_here, call_here, read_json, real_documents, recipe_text, write_corpus
from tests.support.provenance import compare_with_sources
from tests.support.tokenizers import as_t5, train_llama2, train_unigram
from trainer.metrics import read_metrics

EOS, BOS = 2, 1
TRAIN = """
name = "tiny"
[model]
kind = "llama"
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 2
intermediate_size = 32
max_position_embeddings = 64
[train]
seq_len = 32
global_batch = 4
micro_batch = 2
steps = 3
precision = "fp32"
device = "cpu"
document_mask = true
[optimizer]
lr = 1e-2
[eval]
every_steps = 3
max_tokens = 2_000
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    texts = real_documents()[:200]
    for name, data in {"llama2": train_llama2(texts), "t5": as_t5(train_unigram(texts))}.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    (folder / "small.toml").write_text(recipe_text(folder))
    return folder


def source_documents(corpus: Path) -> dict[str, list[bytes]]:
    """Read the corpus with other code than the pipeline's, dropping what the recipe drops."""
    prose = [
        row["text"].encode()
        for name in ("prose-0.parquet", "prose-1.parquet")
        for row in pq.read_table(corpus / name).to_pylist()
        if row["score"] >= 1
    ]
    lines = (corpus / "docs.jsonl").read_text(encoding="utf-8").splitlines()
    docs = [json.loads(line)["body"]["content"].encode() for line in lines]
    code = [path.read_bytes() for path in sorted((corpus / "code").glob("*.py"))]
    return {"prose": prose, "docs": docs, "code": [data for data in code if data and data != b"# \xe9\n"]}


def given(corpus: Path, name: str, **keys: str) -> tuple[str, str]:
    section = {"file": json.dumps(f"{corpus}/{name}.json"), "eos_token": '"</s>"', **keys}
    return "--set", f"tokenizer={{{', '.join(f'{key} = {value}' for key, value in section.items())}}}"


@pytest.fixture(scope="module")
def built(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a set of a tokenizer as Llama 2's, with BOS."""
    out = tmp_path_factory.mktemp("built") / "set"
    said = build_here(corpus / "small.toml", out, *given(corpus, "llama2", bos="true"))["stderr"]
    assert "tokenizer: rewrites " in said
    assert "a post-processor that begins documents with <s> (tokenizer.bos decides)" in said
    return out


def test_every_document_is_bos_its_ids_and_eos(corpus: Path, built: Path):
    assert validate(built, level="full").problems == []
    assert compare_with_sources(built, 100) == (100, 0)
    texts, tokenizer = source_documents(corpus), Tokenizer.from_file(str(built / "tokenizer.json"))
    plain = read_json(built / "tokenizer.json") | {"added_tokens": []}
    encoder = Tokenizer.from_str(json.dumps(plain))
    encoded = {
        name: [encoder.encode(text.decode(), add_special_tokens=False).ids for text in own]
        for name, own in texts.items()
    }
    by_hash = {
        xxhash.xxh3_128_digest(text): ids
        for name, own in texts.items()
        for text, ids in zip(own, encoded[name], strict=True)
    }
    for shard in shards.open_set(built).shards:
        tokens = shard.read().tolist()
        for row in shard.documents().to_pylist():
            own = tokens[row["start"] : row["start"] + row["length"]]
            assert own == [BOS, *by_hash[row["hash"]], EOS]
    # The manifest says what was rewritten.
    manifest = read_json(built / "manifest.json")
    assert manifest["tokenizer"]["bos_id"] == read_json(built / "train-00000.json")["bos_id"] == BOS
    for source in manifest["sources"]:
        own, ids = texts[source["name"]], encoded[source["name"]]
        decoded = [tokenizer.decode(one, skip_special_tokens=False).encode() for one in ids]
        assert source["rewriting"] == {
            "documents": len(own),
            "rewritten": sum(text != held for text, held in zip(own, decoded, strict=True)),
            "text_bytes": sum(map(len, own)),
            "token_bytes": sum(len(held) + 1 for held in decoded),  # and the space before each
            "tokens": sum(map(len, ids)),
            "unknown": 0,
        }


def test_text_is_shown_and_found_without_bos_and_the_space_before_it(corpus: Path, built: Path):
    inspected = call_here("inspect", built, "--shard", "0", "--document", "0", "--json")
    document = inspected.json
    texts = {text for own in source_documents(corpus).values() for text in own}
    assert document["text"].encode() in texts
    start = document["text"][:30]
    done = call_here("trace", built, "--text", start, "--json")
    hits = [hit for hit in done.json["shown"] if hit["hash"] == document["hash"]]
    assert [(hit["byte"], hit["before"]) for hit in hits] == [(0, "")]
    assert hits[0]["position"] in (1, 2)  # after BOS, and after the space alone where that is a token
    done = call_here("trace", built, "--token", str(BOS), "--limit", "3", "--json")
    found = done.json["shown"]
    assert {(hit["position"], hit["hits"], hit["byte"]) for hit in found} == {(0, 1, 0)}


def test_audit_and_report_know_bos(built: Path, tmp_path: Path):
    done = call_here("audit", built, "--out", tmp_path / "audit", "--json")
    checks = {check["name"]: check for check in done.json["checks"]}
    assert checks["special_ids"]["verdict"] == "ok"
    assert "BOS once at the beginning" in checks["special_ids"]["summary"]
    assert "of the text as the tokenizer rewrote it" in checks["bytes_per_token"]["summary"]
    call_here("report", built, "--out", tmp_path / "report", expect=0)
    assert "&lt;s&gt;" in (tmp_path / "report" / "index.html").read_text()


def test_windows_number_documents_by_eos_and_bos_begins_them(built: Path):
    with TokenWindows(built, seq_len=64, fields=("document_ids", "position_ids", "cu_seqlens")) as windows:
        for sample in (windows[0], windows[1]):
            begins = sample["position_ids"] == 0
            inner = begins.clone()
            inner[0] = False
            assert torch.equal((sample["input_ids"] == BOS) | (torch.arange(64) == 0), begins)
            assert bool((sample["input_ids"][inner] == BOS).all())


def test_training_counts_bytes_of_the_source_text_and_samples_begin_with_bos(built: Path, tmp_path: Path):
    (tmp_path / "tiny.toml").write_text(TRAIN)
    run = tmp_path / "run"
    call_here("train", tmp_path / "tiny.toml", "--shards", built, "--run", run, expect=0)
    line = next(line for line in read_metrics(run) if "val_loss" in line)
    shard_set = shards.open_set(built)
    # With other code: the bytes of each target's text, scaled to those of its source's documents.
    decoded: dict[str, list[float]] = {}
    sizes = shard_set.vocabulary.text_lengths()
    (shard, *_) = shard_set.splits["val"]
    tokens = shard.read()
    for row in shard.documents().to_pylist():
        for place in range(row["start"], row["start"] + row["length"]):
            if 0 < place <= line["val_tokens"]:
                decoded.setdefault(row["source"], []).append(float(sizes[tokens[place]]))
    scales = {
        s.name: s.rewriting.text_bytes / s.rewriting.token_bytes for s in shard_set.manifest.sources if s.rewriting
    }
    text_bytes = {name: sum(own) * scales[name] for name, own in decoded.items()}
    bits = line["val_loss"] * line["val_tokens"] / np.log(2) / sum(text_bytes.values())
    assert line["val_bits_per_byte"] == pytest.approx(bits)
    for name, own in decoded.items():
        expected = line["val_loss_by_source"][name] * len(own) / np.log(2) / text_bytes[name]
        assert line["val_bits_per_byte_by_source"][name] == pytest.approx(expected)
    call_here("export-model", run, "--to", "hf", "--out", tmp_path / "hf", expect=0)
    config = read_json(tmp_path / "hf" / "config.json")
    assert (config["bos_token_id"], config["eos_token_id"]) == (BOS, EOS)


def test_a_tokenizer_that_drops_white_space_and_characters(corpus: Path, tmp_path: Path):
    refused = build_here(corpus / "small.toml", tmp_path / "set", *given(corpus, "t5"), expect=2)["stderr"]
    assert re.search(r"  '\S+' in '", refused), "an example"
    assert "stand for characters that the tokenizer does not know, more than tokenizer.max_unknown = 0.001" in refused
    assert not (tmp_path / "set" / "manifest.json").exists()
    options = given(corpus, "t5", max_unknown="0.5")
    said = build_here(corpus / "small.toml", tmp_path / "set", *options)["stderr"]
    assert "gigatoken cannot run it" in said
    assert "so `tokenizers` encodes, at about 1 MB of text per second and core" in said
    assert validate(tmp_path / "set", level="full").problems == []
    shard_set = shards.open_set(tmp_path / "set")
    rewriting = [source.rewriting for source in shard_set.manifest.sources if source.rewriting]
    assert sum(one.unknown for one in rewriting) > 0
    done = call_here("audit", tmp_path / "set", "--out", tmp_path / "audit", "--json")
    checks = {check["name"]: check for check in done.json["checks"]}
    assert checks["special_ids"]["verdict"] == "ok"  # unknown tokens stand for text


def test_bos_of_a_trained_tokenizer(corpus: Path, tmp_path: Path):
    options = ("--set", 'tokenizer.special_tokens=["<|endoftext|>", "<|begin|>"]', "--set", 'tokenizer.bos="<|begin|>"')
    out = tmp_path / "set"
    build_here(corpus / "small.toml", out, *options)
    shard_set = shards.open_set(out)
    assert shard_set.bos_id == 1
    assert validate(out, level="full").problems == []
    # Without BOS the tokenizer is not trained again.
    said = build_here(corpus / "small.toml", tmp_path / "other", "--work", f"{out}.work", *options[:2])["stderr"]
    assert "tokenizer: reused from" in said
