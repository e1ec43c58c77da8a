"""Builds that look for near-duplicates: planted ones are found and dropped, and nothing else changes."""

# pyright: basic

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import xxhash
from tokenizers import Tokenizer

from pipeline.builder.build import BuildResult, build_set
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.near_duplicates.similar import SIMILAR_DTYPE, SIMILAR_FILE
from shards.errors import InputError
from shards.stores.store import FolderStore
from tests.support.builds import call_here, digests, hashes_in
from tests.support.evidence import read_rows
from tests.support.near_duplicates import Planted, jaccard, plant
from tests.support.recipes import source, write_recipe, write_texts

pytestmark = pytest.mark.long


DROP = 'clean.near_duplicates={action = "drop", max_dropped = 1.0}'


def small_texts() -> list[str]:
    """Return texts of about 200 words from Python's own documentation."""
    words = " ".join(topics[name] for name in sorted(topics)).split()
    return [" ".join(words[place : place + 200]) for place in range(0, len(words) - 200, 200)]


@dataclass
class Corpus:
    """A corpus with planted pairs, and builds of it."""

    folder: Path
    planted: Planted

    def build(self, name: str, *overrides: str, workers: int = 1, work: str | None = None) -> BuildResult:
        """Build a set with the recipe's keys changed; its work lies beside it, or at an address."""
        with closing(LocalExecutor(workers)) as executor:
            return build_set(
                self.folder / "recipe.toml",
                out=self.folder / name,
                work=work,
                overrides=overrides,
                executor=executor,
                progress=True,
            )


def write_corpus(folder: Path, texts: Sequence[str], *, near: int, apart: int) -> Corpus:
    planted = plant(texts, near=near, apart=apart)
    documents = [*planted.documents, planted.documents[-1]]  # a copy
    write_texts(folder / "even.jsonl", documents[::2])
    write_texts(folder / "odd.jsonl", documents[1::2])
    tables: dict[str, Any] = {"mix": {"when_short": "shrink"}, "split": {"val_tokens": 20_000}}
    sources = [source(name, f"{name}.jsonl") for name in ("odd", "even")]
    sizes = {"tokenizer": {"vocab_size": 2000}, "shards": {"tokens": 200_000}}
    write_recipe(folder / "recipe.toml", *sources, name="planted", **tables, **sizes)
    return Corpus(folder, planted)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    corpus = write_corpus(tmp_path_factory.mktemp("small"), small_texts(), near=120, apart=60)
    corpus.build("plain")
    corpus.build("set", DROP)
    return corpus


def read_twins(work: Path) -> list[dict[str, Any]]:
    """Return the near-duplicates that a mix has found."""
    return [row for row in read_rows(work) if "twin" in row]


def test_planted_pairs_are_found_and_the_others_stay(small: Corpus) -> None:
    planted, tokenizer = (small.planted, Tokenizer.from_file(str(small.folder / "set/tokenizer.json")))
    tokens = {
        xxhash.xxh3_128_hexdigest(text.encode()): tokenizer.encode(text, add_special_tokens=False).ids
        for text in planted.documents
    }
    named = [xxhash.xxh3_128_hexdigest(text.encode()) for text in planted.documents]
    exact = {frozenset((named[a], named[b])): jaccard(tokens[named[a]], tokens[named[b]]) for a, b in planted.near}
    similar: dict[frozenset[str], float] = {}
    for path in small.folder.glob(f"set.work/similar/*/{SIMILAR_FILE}"):
        output = TaskOutput(FolderStore(path.parent))
        for row in np.frombuffer(output.read(SIMILAR_FILE), SIMILAR_DTYPE).tolist():
            similar[frozenset((f"{row[0]:016x}{row[1]:016x}", f"{row[2]:016x}{row[3]:016x}"))] = row[4]

    apart = [jaccard(tokens[named[a]], tokens[named[b]]) for a, b in planted.apart]
    assert sum(0.75 <= value <= 0.99 for value in exact.values()) >= 100
    assert sum(0.4 <= value <= 0.6 for value in apart) >= 40

    # Recall by the exact similarity of what was planted; each pair that was found is one.
    near = {pair for pair, value in exact.items() if value >= 0.85}
    assert len(near) > len(exact) / 3
    assert len(near & similar.keys()) >= 0.98 * len(near)
    assert len(exact.keys() & similar.keys()) >= 0.9 * len(exact)
    for pair, value in similar.items():
        first, second = pair
        assert value == jaccard(tokens[first], tokens[second])

    # What went is similar to a longer document that stayed; what is not similar stayed.
    kept = hashes_in(small.folder / "set")
    dropped: set[str] = set()
    for row in read_twins(small.folder / "set.work"):
        gone, stays = row["hash"], row["twin"]["hash"]
        dropped.add(gone)
        assert gone not in kept
        assert row["jaccard"] == jaccard(tokens[gone], tokens[stays]) >= 0.8
        assert row["tokens"] == len(tokens[gone]) + 1 <= row["twin"]["tokens"] == len(tokens[stays]) + 1
    assert len(dropped) >= sum(value >= 0.85 for value in exact.values()) * 0.98
    assert max(apart) < 0.75
    assert not {named[copy] for _, copy in planted.apart} & dropped
    for pair, value in similar.items():
        assert value < 0.8 or pair & dropped
    manifest = json.loads((small.folder / "set/manifest.json").read_text())
    counted = sum(
        count for source in manifest["sources"] for reason, count in source["dropped"].items() if "near" in reason
    )
    assert counted == len(dropped)
    # Only a few of the documents that were left are not in the set: what the mix could not use.
    assert kept <= tokens.keys() - dropped


def test_turning_it_on_and_off_encodes_nothing(small: Corpus) -> None:
    shutil.copytree(small.folder / "plain.work", small.folder / "moved.work")
    shutil.copytree(small.folder / "plain", small.folder / "moved")
    on = small.build("moved", DROP)
    ran = {name: stage.ran for name, stage in on.stages.items()}
    assert ran.pop("assemble") > 0
    assert ran == {"tokenizer": 0, "encode": 0, "bands": 2, "pairs": 1, "similar": 1, "mix": 1}
    assert digests(small.folder / "moved") == digests(small.folder / "set")
    # Turned off again, the set is as it was.
    small.build("moved")
    assert digests(small.folder / "moved") == digests(small.folder / "plain")


def test_a_report_keeps_every_document(small: Corpus) -> None:
    report = small.build("report", "clean.near_duplicates={}")
    changed = {"manifest.json", "recipe.json"}
    expected, written = (digests(small.folder / "plain"), digests(small.folder / "report"))
    assert {name for name in expected if expected[name] != written[name]} == changed
    notes = [note for note in report.notes if note.startswith("near-duplicates: ")]
    assert len(notes) == 2
    assert all('action = "report" keeps them' in note for note in notes)
    twins = read_twins(small.folder / "report.work")
    assert len(twins) == len(read_twins(small.folder / "set.work"))
    assert not any(row["dropped"] for row in twins)
    shown = call_here("clean-report", small.folder / "report.work", "--examples", "2").stdout
    assert shown.count("reported, not dropped") >= 2
    assert shown.count("    similar by ") >= 4


def test_too_many_near_duplicates_stop_the_build(small: Corpus) -> None:
    with pytest.raises(InputError) as raised:
        small.build("alarm", 'clean.near_duplicates={action = "drop", max_dropped = 0.05}')
    lines = str(raised.value).splitlines()
    assert "clean.near_duplicates drops" in lines[0]
    assert "more than max_dropped = 0.05 allows" in lines[0]
    shown = [line for line in lines if "similar by" in line]
    assert 6 <= len(shown) <= 12, "three of each reason of each source"
    # The remedy that it names works, and nothing but the end of the build runs.
    allowed = lines[-2].partition("max_dropped = ")[2].partition(" ")[0]
    report = small.build(
        "alarm", f'clean.near_duplicates={{action = "drop", max_dropped = {max(0.5, float(allowed))}}}'
    )
    assert {name: stage.ran for name, stage in report.stages.items() if stage.ran} == {
        "assemble": report.stages["assemble"].ran
    }
    assert digests(small.folder / "alarm").keys() == digests(small.folder / "set").keys()


def test_pages_of_a_template_stop_nothing(tmp_path: Path) -> None:
    """Hundreds of documents that share every band: buckets are cut, counted and said, and the longest stays."""
    texts = [small_texts()[0] + " end" * (number % 7) + f" {number}" for number in range(150)]
    corpus = write_corpus(tmp_path, [*texts, *small_texts()[100:200]], near=0, apart=0)
    report = corpus.build("set", DROP)
    (note,) = (note for note in report.notes if "skipped" in note)
    assert re.match(r"near-duplicates: [\d,]+ pairs skipped: if more than 64 documents", note)
    tokenizer = Tokenizer.from_file(str(tmp_path / "set/tokenizer.json"))
    longest = max(texts, key=lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))
    length = len(tokenizer.encode(longest, add_special_tokens=False).ids)
    rows = read_twins(tmp_path / "set.work")
    assert len(rows) == len(texts) - 1
    assert {row["twin"]["tokens"] for row in rows} == {length + 1}
