"""The build on real text: web pages, mathematics and the standard library, mixed 87/10/3 with 32,005 entries.

Skipped where the corpora are absent; `TOKENMILL_CORPORA` says where they are.
"""

from __future__ import annotations

import codecs
import json
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import xxhash

import shards
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.sources.selection import open_sources
from pipeline.tokenizer import sample
from pipeline.tokenizer.sample import iter_sample
from tests.support.builds import run_build
from tests.support.recipes import overrides, source, write_recipe

CORPORA = Path(os.environ.get("TOKENMILL_CORPORA", Path(__file__).parents[2] / "../shared/corpora"))
WEIGHTS = {"fineweb-edu": 87, "finemath": 10, "python": 3}
SPECIAL_TOKENS = ["<|endoftext|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (CORPORA / "fineweb_edu").is_dir(), reason=f"no corpora in {CORPORA}"),
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [
        source("fineweb-edu", CORPORA / "fineweb_edu/*.parquet", weight=WEIGHTS["fineweb-edu"]),
        source("finemath", CORPORA / "finemath/*.parquet", weight=WEIGHTS["finemath"]),
        source("python", f"{sysconfig.get_path('stdlib')}/**/*.py", weight=WEIGHTS["python"], max_malformed=0.01),
    ]
    tables: dict[str, Any] = {"mix": {"when_short": "shrink"}, "split": {"val_tokens": 50_000}}
    tables |= {"tokenizer": {"vocab_size": 32005, "special_tokens": SPECIAL_TOKENS}, "shards": {"tokens": 1_000_000}}
    return write_recipe(tmp_path_factory.mktemp("recipe") / "real.toml", *sources, name="real", **tables)


@pytest.fixture(scope="module")
def built(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> shards.ShardSet:
    out = tmp_path_factory.mktemp("built") / "set"
    assert not run_build(recipe, out)["problems"]
    return shards.open_set(out)


def texts_by_hash(recipe: Path) -> dict[bytes, tuple[str, bytes]]:
    """Read all sources with pyarrow and open(), and index the texts by content hash."""
    found: dict[bytes, tuple[str, bytes]] = {}
    for name in ("fineweb-edu", "finemath"):
        for path in sorted((CORPORA / name.replace("-", "_")).glob("*.parquet")):
            for text in pq.read_table(path, columns=["text"])["text"].to_pylist():
                found.setdefault(xxhash.xxh3_128_digest(text.encode()), (name, text.encode()))
    for span in (span for unit in open_sources(load_checked_recipe(recipe))[2].units for span in unit.spans):
        data = Path(span.url).read_bytes().removeprefix(codecs.BOM_UTF8)
        found.setdefault(xxhash.xxh3_128_digest(data), ("python", data))
    return found


def documents(shard_set: shards.ShardSet) -> Iterator[tuple[dict[str, object], list[int]]]:
    for shard in shard_set.shards:
        tokens = shard.read()
        for row in shard.documents().to_pylist():
            yield row, tokens[row["start"] : row["start"] + row["length"]].tolist()


def test_every_document_decodes_to_its_source_byte_for_byte(recipe: Path, built: shards.ShardSet) -> None:
    texts = texts_by_hash(recipe)
    seen: set[bytes] = set()
    for row, tokens in documents(built):
        assert tokens[-1] == built.eos_id
        name, text = texts[row["hash"]]  # type: ignore[index]
        assert name == row["source"]
        assert built.vocabulary.decode(tokens[:-1]) == text
        assert row["hash"] not in seen
        seen.add(row["hash"])  # type: ignore[arg-type]
    assert len(seen) > 3000


def test_ids_are_those_of_tokenizers(recipe: Path, built: shards.ShardSet, tmp_path: Path) -> None:
    """On at least 2,000 documents of each source: those of the set, and of one with more of the small ones."""
    given = overrides(f"tokenizer={{file = '{built.path / 'tokenizer.json'}'}}", "split.val_tokens=0")
    run_build(recipe, tmp_path / "more", *given, *overrides("sources.finemath.weight=87", "sources.python.weight=300"))
    reference = built.tokenizer()
    reference.encode_special_tokens = True
    texts = texts_by_hash(recipe)
    compared = dict.fromkeys(WEIGHTS, 0)
    done: set[bytes] = set()
    for shard_set in (built, shards.open_set(tmp_path / "more")):
        for row, tokens in documents(shard_set):
            name, digest = str(row["source"]), row["hash"]
            if compared[name] >= 2000 or digest in done or len(tokens) > 20_000:
                continue
            done.add(digest)  # type: ignore[arg-type]
            text = texts[digest][1].decode()  # type: ignore[index]
            assert reference.encode(text, add_special_tokens=False).ids == tokens[:-1]
            compared[name] += 1
    offered = {one.name: one.documents_available for one in built.manifest.sources}
    assert compared == {name: min(2000, offered[name]) for name in WEIGHTS}


def test_each_share_is_within_one_document(built: shards.ShardSet) -> None:
    longest = dict.fromkeys(WEIGHTS, 0)
    for row, tokens in documents(built):
        longest[str(row["source"])] = max(longest[str(row["source"])], len(tokens))
    for split in built.splits.values():
        assert split
        total = sum(shard.num_tokens for shard in split)
        for name, weight in WEIGHTS.items():
            held = [shard.entry.sources[name].tokens for shard in split]
            assert abs(sum(held) - weight / 100 * total) <= longest[name]
            for shard, tokens in zip(split, held, strict=True):
                assert abs(tokens - weight / 100 * shard.num_tokens) <= longest[name]


def test_merges_are_those_that_tokenizers_learns_from_the_sample(
    recipe: Path, built: shards.ShardSet, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    loaded = load_checked_recipe(recipe)
    spans = tuple(tuple(span for unit in own.units for span in unit.spans) for own in open_sources(loaded))
    weights = tuple(one.weight for one in loaded.sources)
    task = sample.TokenizerTask(loaded.tokenizer, tuple(loaded.sources), spans, weights, loaded.seed)
    drawn = sample.draw_sample(tmp_path / "sample.bin", task, lambda done, tokens: None)
    sizes = [one.text_bytes for one in drawn]
    for size, weight in zip(sizes, WEIGHTS.values(), strict=True):
        assert size / sum(sizes) == pytest.approx(weight / 100, abs=0.01)
    trainer = trainers.BpeTrainer(
        vocab_size=32005,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    reference = Tokenizer(models.BPE())
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    reference.train_from_iterator(iter_sample(tmp_path / "sample.bin"), trainer)
    expected = json.loads(reference.to_str())["model"]
    found = json.loads((built.path / "tokenizer.json").read_bytes())["model"]
    assert found["merges"] == expected["merges"]
    assert found["vocab"].keys() == expected["vocab"].keys()
