"""Limits that are applied when the set is mixed: what falls, how it is counted, what the evidence says."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.clean.drops import SourceDrops
from pipeline.clean.reasons import DUPLICATE, ELSEWHERE
from pipeline.encode.run import Run
from pipeline.engine.checksums import seal
from pipeline.engine.receipts import CHECKSUMS_FILE, RECEIPT_FILE, TaskOutput
from pipeline.mix import partitions as partitions_module
from pipeline.mix.evidence import EVIDENCE_FILE, Evidence, find_reasons, read_evidence
from pipeline.mix.index import Index, open_limits
from pipeline.recipe.presets import PRESETS
from pipeline.recipe.schema import Recipe
from shards.stores.store import FolderStore
from tests.support.runs import Document, make_recipe, write_index, write_runs


def only(preset: str, **limits: float) -> dict[str, Any]:
    """Return the table of a preset with these limits alone."""
    return dict.fromkeys(PRESETS[preset].limit_keys(), "off") | limits


CLEAN: list[dict[str, Any]] = [
    {"gopher": only("gopher", min_words=0.5, max_words=2.25, max_mean_word_chars=1.5)},
    {"c4": only("c4")},  # measured alone
    {"gopher": only("gopher", min_words=0.5), "code": only("code", min_alphanumeric=0.125, max_longest_line_bytes=2.5)},
]


def recipe_of(clean: list[dict[str, Any]]) -> Recipe:
    plain = make_recipe([1] * len(clean), tokens="max").model_dump()
    for source, tables in zip(plain["sources"], clean, strict=True):
        source["clean"] = tables
    return Recipe.model_validate(plain)


def corpus(seed: int, size: int) -> list[list[Document]]:
    """Return three sources that share documents; some documents are in a source several times."""
    rng = random.Random(seed)
    pool = [Document((rng.getrandbits(64), rng.getrandbits(64)), rng.randint(2, 60)) for _ in range(size)]
    pool += [Document((5 << 60, low), 3) for low in range(20)]  # that share the beginning of their hash
    return [rng.choices(pool, k=size) for _ in range(3)]


def make_index(folder: Path, sources: list[list[Document]], cuts: list[list[int]]) -> Index:
    recipe = recipe_of(CLEAN)
    return index_of(recipe, runs_of(folder, recipe, sources, cuts))


def runs_of(folder: Path, recipe: Recipe, sources: list[list[Document]], cuts: list[list[int]]) -> list[Run]:
    return write_runs(folder, sources, cuts, [source.clean.mix_measures() for source in recipe.sources])


def index_of(recipe: Recipe, runs: list[Run], blocked: Any = None) -> Index:
    return Index(runs, len(recipe.sources), blocked, open_limits(recipe.sources))


def reasons_of(document: Document, recipe: Recipe, source: int) -> list[str]:
    """Reference: all limits of a source that a document breaks, in order."""
    broken: list[str] = []
    for limit in recipe.sources[source].clean.limits("mix"):
        value = document.measure(limit.measure)
        if value < limit.value if limit.side == "min" else value > limit.value:
            broken.append(limit.reason)
    return broken


@pytest.mark.parametrize(("seed", "size"), [(0, 500), (1, 500), (2, 3000)])
def test_what_falls_is_what_plain_code_finds(seed: int, size: int, tmp_path: Path) -> None:
    recipe, sources = recipe_of(CLEAN), corpus(seed, size)
    index = make_index(tmp_path, sources, [[100], [], [30, 200]])
    seen: dict[Any, int] = {}
    for number, documents in enumerate(sources):
        dropped: Counter[str] = Counter()
        kept = 0
        for document in documents:
            broken = reasons_of(document, recipe, number)
            if broken:
                dropped[broken[0]] += 1
            elif document.key in seen:
                dropped[DUPLICATE if seen[document.key] == number else DUPLICATE + ELSEWHERE] += 1
            else:
                seen[document.key] = number
                kept += 1
        assert index.drops[number].dropped() == dropped
        assert index.count_kept(number).documents == kept
        assert kept + sum(dropped.values()) == len(documents)
    assert len([key for key, owner in seen.items() if owner == 2]) > 20
    for number in (0, 2):
        check_limits(index.drops[number], recipe, sources[number], number)
        for preset in CLEAN[number]:
            every = [one for one in sources[number] if f"{preset}:" in " ".join(reasons_of(one, recipe, number))]
            assert asdict(index.drops[number].steps[preset].found) == count(every)


def count(documents: list[Document]) -> dict[str, int]:
    return {"documents": len(documents), "tokens": sum(document.length for document in documents)}


def check_limits(drops: SourceDrops, recipe: Recipe, documents: list[Document], number: int) -> None:
    """Check what is counted for each limit of a source."""
    broken = [(document, reasons_of(document, recipe, number)) for document in documents]
    for limit in recipe.sources[number].clean.limits("mix"):
        step, reason = drops.steps[limit.preset], limit.reason
        assert asdict(step.decided) == count(documents)
        first = [document for document, reasons in broken if reasons[:1] == [reason]]
        assert asdict(step.reasons[reason]) == count(first)


def test_the_evidence_says_why_and_draws_the_lowest_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_module, "PARTITION_DOCUMENTS", 50)
    recipe, sources = recipe_of(CLEAN), corpus(2, 300)
    runs = runs_of(tmp_path, recipe, sources, [[100], [], [7]])
    index = index_of(recipe, runs)
    write_index(tmp_path, index)
    evidence = read_evidence(FolderStore(tmp_path), len(runs))
    for number, run in enumerate(runs):
        rows = run.read_documents(0, run.num_documents)
        for place in range(len(rows)):
            document = sources[run.source][int(rows[place]["row"])]
            dropped = evidence.of(number, place)["dropped"]
            broken = reasons_of(document, recipe, run.source)
            assert dropped == broken[0] if broken else dropped in (None, DUPLICATE, DUPLICATE + ELSEWHERE)
    for source, reason in ((0, "gopher: min_words"), (2, "code: min_alphanumeric"), (1, DUPLICATE)):
        drawn = evidence.draw(runs, source, lambda rows, own=reason: find_reasons(rows, own.__eq__), 5)
        every = [
            runs[number].hash_key(place)
            for number, run in enumerate(runs)
            for place in range(run.num_documents)
            if run.source == source and evidence.of(number, place)["dropped"] == reason
        ]
        assert len(every) > 5
        assert [runs[number].hash_key(place) for number, place, _ in drawn] == sorted(every)[:5]
        assert {row["dropped"] for _, _, row in drawn} == {reason}


def test_evidence_that_a_later_attempt_wrote_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a store with costly requests a process keeps it open; the mix may have run again since."""
    monkeypatch.setattr(FolderStore, "request_bytes", 1)
    recipe, store = recipe_of(CLEAN), FolderStore(tmp_path)
    runs = runs_of(tmp_path, recipe, corpus(3, 100), [[], [], []])
    write_index(tmp_path, index_of(recipe, runs))
    expected = Evidence(TaskOutput(store), len(runs)).kept(0, 0, 100).tolist()
    assert read_evidence(store, len(runs)) is read_evidence(store, len(runs))
    # Another attempt has its files in a folder, and those of the first are gone.
    (tmp_path / "2").mkdir()
    for name in (EVIDENCE_FILE, CHECKSUMS_FILE):
        (tmp_path / name).rename(tmp_path / "2" / name)
    result = TaskOutput(store).result
    result.folder = "2"
    (tmp_path / RECEIPT_FILE).write_bytes(seal(result))
    assert read_evidence(store, len(runs)).kept(0, 0, 100).tolist() == expected
