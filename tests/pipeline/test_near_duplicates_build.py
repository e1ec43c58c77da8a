"""Builds that look for near-duplicates: planted ones are found and dropped, and nothing else changes."""

# pyright: basic

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import xxhash
from tokenizers import Tokenizer

from pipeline.builder.build import BuildResult, build_set
from pipeline.mix.near_duplicates.similar import read_similar
from shards.stores.store import FolderStore
from tests.support.builds import hashes_in
from tests.support.evidence import read_rows
from tests.support.near_duplicates import DRESSES, Planted, count_characters, jaccard, plant, write_scripts
from tests.support.recipes import source, write_recipe, write_texts
from tests.support.tokenizers import train_llama2

pytestmark = pytest.mark.long


def small_texts() -> list[str]:
    """Return texts of about 200 words from Python's own documentation."""
    words = " ".join(topics[name] for name in sorted(topics)).split()
    return [" ".join(words[place : place + 200]) for place in range(0, len(words) - 200, 200)]


def name(text: str) -> str:
    """Return the content hash of a document."""
    return xxhash.xxh3_128_hexdigest(text.encode())


def build(
    folder: Path, texts: Sequence[str], *, near: int = 0, apart: int = 0, tokenizer: Any = None
) -> tuple[Planted, BuildResult]:
    """Build a set of texts and of pairs planted in them; its work lies beside it."""
    planted = plant(texts, near=near, apart=apart)
    documents = [*planted.documents, planted.documents[-1]]  # a copy
    write_texts(folder / "even.jsonl", documents[::2])
    write_texts(folder / "odd.jsonl", documents[1::2])
    tables: dict[str, Any] = {"mix": {"when_short": "shrink"}, "split": {"val_tokens": 20_000}}
    tables |= {"tokenizer": tokenizer or {"vocab_size": 2000}, "shards": {"tokens": 200_000}}
    tables["clean"] = {"near_duplicates": {"action": "drop", "max_dropped": 1.0}}
    sources = [source(name, f"{name}.jsonl") for name in ("odd", "even")]
    return planted, build_set(write_recipe(folder / "r.toml", *sources, **tables), out=folder / "set", workers=1)


def read_twins(folder: Path) -> list[dict[str, Any]]:
    """Return the near-duplicates that a mix has found."""
    return [row for row in read_rows(folder / "set.work") if "twin" in row]


def test_planted_pairs_are_found_and_the_others_stay(tmp_path: Path) -> None:
    planted, built = build(tmp_path, small_texts(), near=120, apart=60)
    tokenizer = Tokenizer.from_file(str(tmp_path / "set/tokenizer.json"))
    named = [name(text) for text in planted.documents]
    texts = dict(zip(named, planted.documents, strict=True))
    exact = {frozenset((named[a], named[b])): jaccard(texts[named[a]], texts[named[b]]) for a, b in planted.near}
    similar = {
        frozenset((f"{row[0]:016x}{row[1]:016x}", f"{row[2]:016x}{row[3]:016x}")): row[4]
        for folder in tmp_path.glob("set.work/similar/*")
        for row in read_similar(FolderStore(folder), 0.0).tolist()
    }

    apart = [jaccard(texts[named[a]], texts[named[b]]) for a, b in planted.apart]
    assert sum(0.75 <= value <= 0.99 for value in exact.values()) >= 100
    assert sum(0.4 <= value <= 0.6 for value in apart) >= 40

    # Recall by the exact similarity of what was planted; each pair that was found is one.
    near = {pair for pair, value in exact.items() if value >= 0.85}
    assert len(near) > len(exact) / 3
    assert len(near & similar.keys()) >= 0.98 * len(near)
    assert len(exact.keys() & similar.keys()) >= 0.9 * len(exact)
    for pair, value in similar.items():
        first, second = pair
        assert value == jaccard(texts[first], texts[second])

    # What went is similar to a longer document that stayed; what is not similar stayed.
    kept = hashes_in(tmp_path / "set")
    dropped: set[str] = set()
    for row in read_twins(tmp_path):
        gone, stays = row["hash"], row["twin"]["hash"]
        dropped.add(gone)
        assert gone not in kept
        assert row["jaccard"] == jaccard(texts[gone], texts[stays]) >= 0.8
        assert count_characters(texts[gone]) <= count_characters(texts[stays])
        for own in (row, row["twin"]):
            assert own["tokens"] == len(tokenizer.encode(texts[own["hash"]], add_special_tokens=False).ids) + 1
    assert len(dropped) >= sum(value >= 0.85 for value in exact.values()) * 0.98
    assert max(apart) < 0.75
    assert not {named[copy] for _, copy in planted.apart} & dropped
    for pair, value in similar.items():
        assert value < 0.8 or pair & dropped
    counted = [source.dropped for source in built.manifest.sources]
    assert sum(own[reason] for own in counted for reason in own if "near" in reason) == len(dropped)
    # Only a few of the documents that were left are not in the set: what the mix could not use.
    assert kept <= texts.keys() - dropped


def test_pages_of_a_template_stop_nothing(tmp_path: Path) -> None:
    """Hundreds of documents that share every band: buckets are cut, counted and said, and the longest stays."""
    texts = [small_texts()[0] + " end" * (number % 7) + f" {number}" for number in range(150)]
    _, built = build(tmp_path, [*texts, *small_texts()[100:200]])
    (note,) = (note for note in built.notes if "skipped" in note)
    assert re.match(r"near-duplicates: [\d,]+ pairs skipped: if more than 64 documents", note)
    rows = read_twins(tmp_path)
    assert len(rows) == len(texts) - 1
    (stays,) = {row["twin"]["hash"] for row in rows}
    assert stays in {name(text) for text in texts if count_characters(text) == max(map(count_characters, texts))}


def test_the_same_text_in_another_dress_is_a_near_duplicate_whatever_the_tokenizer(tmp_path: Path) -> None:
    """20 texts in each dress are found, and another vocabulary, or kind of tokenizer, drops the same documents."""
    texts = write_scripts(50 * len(DRESSES), 3)
    worn = [list(DRESSES)[number % len(DRESSES)] for number in range(len(texts))]
    pairs = [(own, text, DRESSES[own](text)) for own, text in zip(worn, texts, strict=True)]
    pairs = [(own, text, other) for own, text, other in pairs if other != text]  # Chinese has no capitals
    assert min(Counter(own for own, _, _ in pairs).values()) >= 20
    llama = tmp_path / "llama2.json"
    llama.write_text(json.dumps(train_llama2(texts)))
    tables = [{"vocab_size": 400}, {"vocab_size": 3000, "pretokenizer": "llama3"}]
    tables.append({"file": str(llama), "eos_token": "</s>"})
    found: list[dict[str, tuple[str, float]]] = []
    for number, tokenizer in enumerate(tables):
        folder = tmp_path / str(number)
        folder.mkdir()
        build(folder, small_texts()[:100] + [one for _, *both in pairs for one in both], near=60, tokenizer=tokenizer)
        found.append({row["hash"]: (row["twin"]["hash"], row["jaccard"]) for row in read_twins(folder)})
    assert found[0] == found[1] == found[2]
    for dress, text, other in pairs:
        both = {name(text), name(other)}
        assert any({gone, stays} == both for gone, (stays, _) in found[0].items()), (dress, text)
    assert len(found[0]) > len(pairs) + 20
