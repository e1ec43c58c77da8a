"""`take`: a share of a source's documents, by content hash; nothing is encoded again, and nothing else changes."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shards
from pipeline.mix import partitions as partitions_module
from pipeline.mix.cuts import cut_sources
from pipeline.mix.index import Axis, Index
from tests.support.builds import build_here, digests, real_documents, temporary_folder
from tests.support.near_duplicates import change
from tests.support.recipes import source, write_recipe, write_texts
from tests.support.runs import Document, corpus_of, keep_first, make_recipe, place_documents, write_runs

WEB, NEAR, COPIES, NOTES, SHARED = 2400, 240, 60, 700, 100


def texts() -> tuple[list[str], list[str]]:
    """Return the texts of two sources of short documents: near-duplicates in the first, copies of it in the second."""
    rng = random.Random(4)
    words = sorted({word for text in real_documents() for word in text.split()})
    web = [" ".join(rng.choices(words, k=rng.randint(30, 50))) for _ in range(WEB)]
    near = [change(text, 0.9, rng) + " longer" * rng.randint(0, 1) for text in web[:NEAR]]
    copies = web[NEAR : NEAR + COPIES]
    notes = [" ".join(rng.choices(words, k=20)) for _ in range(NOTES)]
    return web + near + copies, notes + web[-SHARED:]


@dataclass(frozen=True)
class Corpus:
    """Two sources, and the sets of them in one work folder. All of the first is in every set: it bounds them."""

    recipe: Path
    out: Path
    whole: dict[str, Any]
    """What the first build printed, of the recipe without the key."""
    before: dict[str, str]
    """Its digests."""
    hashes: dict[str, dict[str, Counter[str]]]
    """Its documents by split and source: how often each is there."""

    def build(self, *options: str) -> dict[str, Any]:
        """Build in the same folders with keys changed."""
        return build_here(self.recipe, self.out, *options)


def held(out: Path) -> dict[str, dict[str, Counter[str]]]:
    """Return how often each document is in a set, by split and source."""
    found = {split: {"web": Counter[str](), "notes": Counter[str]()} for split in ("train", "val")}
    for shard in shards.open_set(out).shards:
        rows: Any = shard.documents(["source", "hash"])
        for name, digest in zip(rows["source"].to_pylist(), rows["hash"].to_pylist(), strict=True):
            found[shard.entry.split][name][digest.hex()] += 1
    return found


def is_taken(digest: str, take: float) -> bool:
    """Return what FORMAT.md says of a hash."""
    return int.from_bytes(bytes.fromhex(digest)[:8], "big") < take * 2**64


def set_take(take: float) -> tuple[str, str]:
    return "--set", f"sources.web.take={take}"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("take")
    web, notes = texts()
    for name, own in (("web", web), ("notes", notes)):
        write_texts(folder / f"{name}.jsonl", own)
    recipe = write_recipe(
        folder / "recipe.toml",
        source("web", "web.jsonl", weight=20),
        source("notes", "notes.jsonl", weight=1),
        mix={"when_short": "shrink"},
        split={"val_tokens": 4000},
        shards={"tokens": 60_000},
        clean={"near_duplicates": {"action": "drop", "max_dropped": 0.12}},
    )
    out = folder / "set"
    whole = build_here(recipe, out)
    return Corpus(recipe, out, whole, digests(out), held(out))


def test_a_share_is_of_the_whole_sources_documents_and_nothing_else_changes(corpus: Corpus) -> None:
    every = corpus.hashes["train"]["web"] + corpus.hashes["val"]["web"]
    (left,) = (one for one in corpus.whole["sources"] if one["name"] == "web")
    assert len(every) == left["documents_available"], "the set has the whole source"
    assert 0.5 * NEAR < left["dropped"]["near-duplicate"] <= NEAR

    found: dict[float, set[str]] = {1.0: set(every)}
    for take in (0.5, 0.125, 0.1):
        built = corpus.build(*set_take(take))
        ran = built["ran"]
        assert ran.pop("assemble") > 0
        assert ran.pop("mix") == 1
        assert set(ran.values()) == {0}, ran
        assert (take == 0.1) == ("sources.web.take = 0.1 (was 0.125)" in built["stderr"])
        now = held(corpus.out)
        found[take] = set(now["train"]["web"] + now["val"]["web"])
        # Exactly those below the border, of those that the whole source gives; the others count.
        assert found[take] == {digest for digest in every if is_taken(digest, take)}
        (web,) = (one for one in built["sources"] if one["name"] == "web")
        assert web["documents_available"] == len(found[take])
        assert web["dropped"] == left["dropped"] | {f"not taken: take = {take}": len(every) - len(found[take])}
        share, spread = len(found[take]) / len(every), (take * (1 - take) / len(every)) ** 0.5
        assert abs(share - take) < 4 * spread
        # Validation and the other source are as they were.
        assert now["val"] == corpus.hashes["val"]
        assert now["train"]["notes"].keys() <= corpus.hashes["train"]["notes"].keys()
        (notes,) = (one for one in built["sources"] if one["name"] == "notes")
        assert notes == next(one for one in corpus.whole["sources"] if one["name"] == "notes")
        recipe = json.loads((corpus.out / "recipe.json").read_text())
        assert [one["take"] for one in recipe["sources"]] == [take, 1]
        assert not built["problems"]
    assert found[0.1] < found[0.125] < found[0.5] < found[1.0]

    # Other weights and another seed: the same documents.
    corpus.build(*set_take(0.125), "--set", "sources.notes.weight=3", "--set", "split.val_tokens=0")
    assert set(held(corpus.out)["train"]["web"]) == found[0.125]
    again = corpus.build("--set", "sources.web.take=1")
    assert (again["ran"]["encode"], digests(corpus.out)) == (0, corpus.before)


CORPORA = st.builds(corpus_of, st.integers(0, 1 << 32), st.integers(1, 3), st.integers(20, 150))


@settings(max_examples=60)
@given(
    sources=CORPORA,
    takes=st.lists(st.sampled_from([1.0, 0.75, 0.5, 2.0**-63, 2.0**-64, 0.3]), min_size=3, max_size=3),
    documents=st.sampled_from([1, 4, 1 << 24]),
)
def test_an_index_takes_what_plain_code_finds(
    sources: list[list[Document]], takes: list[float], documents: int
) -> None:
    recipe = make_recipe([1] * len(sources))
    own = [one.model_copy(update={"take": take}) for one, take in zip(recipe.sources, takes, strict=False)]
    kept = keep_first(sources)
    taken = [
        [one for one in own if take == 1 or one.key[0] < take * 2**64] for own, take in zip(kept, takes, strict=False)
    ]
    with pytest.MonkeyPatch.context() as patch, temporary_folder() as folder:
        patch.setattr(partitions_module, "PARTITION_DOCUMENTS", documents)
        runs = write_runs(Path(folder), sources, [[]] * len(sources))
        index = Index(runs, len(sources))
        index.drop_not_taken(own)
        for number, left in enumerate(taken):
            lengths = [document.length for document in left]
            counts = index.count_kept(number)
            assert (counts.documents, counts.tokens) == (len(left), sum(lengths))
            assert index.longest[:, number].max() == max(lengths, default=0)
            assert Axis(index, number).total == sum(lengths)
            gone = index.drops[number].dropped().get(f"not taken: take = {takes[number]}", 0)
            assert gone == len(kept[number]) - len(left)
        if all(taken):
            plan = cut_sources(recipe.model_copy(update={"sources": own}), index)
            placed = [item for items in place_documents(plan, runs, index).values() for item in items]
            assert {key for _, _, key, _ in placed} <= {one.key for own in taken for one in own}
