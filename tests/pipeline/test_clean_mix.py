"""Limits that are applied when the set is mixed: what falls, how it is counted, which documents are shown."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.builder.clean_report.read import add_counts
from pipeline.encode.run import Run
from pipeline.mix import index as index_module
from pipeline.mix import partitions as partitions_module
from pipeline.mix.block_lists import Blocked, BlockList
from pipeline.mix.cleaning import EXAMPLES, add_to_histogram, list_bins, list_other_values, open_limits, write_cleaning
from pipeline.mix.cuts import cut_sources
from pipeline.mix.index import DUPLICATE, DUPLICATE_ELSEWHERE, Index
from pipeline.recipe.presets import PRESETS
from pipeline.recipe.schema import Recipe
from tests.support.runs import Document, make_recipe, write_runs


def only(preset: str, **limits: float) -> dict[str, Any]:
    """Return the table of a preset with these limits alone."""
    return dict.fromkeys(PRESETS[preset].limit_keys(), "off") | limits


CLEAN: list[dict[str, Any]] = [
    {"gopher": only("gopher", min_words=0.5, max_words=2.25, max_mean_word_chars=1.5)},
    {},
    {
        "gopher": only("gopher", min_words=0.5),
        "code": only("code", min_alphanumeric=0.125, max_longest_line_bytes=2.5),
    },
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


def make_index(folder: Path, sources: list[list[Document]], cuts: list[list[int]]) -> tuple[Index, dict[str, Any]]:
    recipe = recipe_of(CLEAN)
    runs = write_runs(folder, sources, cuts, [source.clean.mix_measures() for source in recipe.sources])
    return index_of(folder, recipe, runs)


def index_of(folder: Path, recipe: Recipe, runs: list[Run], blocked: Any = None) -> tuple[Index, dict[str, Any]]:
    limits = open_limits(recipe.sources)
    index = Index(runs, len(recipe.sources), blocked, limits)
    write_cleaning(folder, limits, runs, runs)
    found = json.loads((folder / "cleaning.json").read_text())
    for number, entry in zip(limits, found["sources"], strict=True):
        add_counts(entry, index.drops[number])
    return index, found


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
    index, found = make_index(tmp_path, sources, [[100], [], [30, 200]])
    seen: dict[Any, int] = {}
    for number, documents in enumerate(sources):
        dropped: Counter[str] = Counter()
        kept = 0
        for document in documents:
            broken = reasons_of(document, recipe, number)
            if broken:
                dropped[broken[0]] += 1
            elif document.key in seen:
                dropped[DUPLICATE if seen[document.key] == number else DUPLICATE_ELSEWHERE] += 1
            else:
                seen[document.key] = number
                kept += 1
        assert index.drops[number].dropped() == dropped
        assert index.documents[number] == kept
        assert kept + sum(dropped.values()) == len(documents)
    assert len([key for key, owner in seen.items() if owner == 2]) > 20
    assert [entry["name"] for entry in found["sources"]] == ["s0", "s2"]
    for entry, number in zip(found["sources"], (0, 2), strict=True):
        check_entry(entry, recipe, sources[number], number)
        for preset in CLEAN[number]:
            every = [one for one in sources[number] if f"{preset}:" in " ".join(reasons_of(one, recipe, number))]
            assert asdict(index.drops[number].steps[preset].found) == count(every)


@pytest.mark.parametrize(
    ("value", "others"),
    [
        *((50, [25, 38, 62, 75, 100]), (3, [2, 4, 6]), (2, [1, 3, 4]), (0, [1, 2, 5, 10])),
        *((0.1, [0.05, 0.075, 0.125, 0.15, 0.2]), (0.8, [0.4, 0.6, 1.0]), (1, [0.5, 0.75])),
        (2.5, [1.25, 1.88, 3.12, 3.75, 5]),
    ],
)
def test_the_other_values_of_a_limit_are_round_and_may_be_set(value: float, others: list[float]) -> None:
    assert list_other_values(value) == others


def count(documents: list[Document]) -> dict[str, int]:
    return {"documents": len(documents), "tokens": sum(document.length for document in documents)}


def check_entry(entry: dict[str, Any], recipe: Recipe, documents: list[Document], number: int) -> None:
    """Check everything that is said of a source."""
    broken = [(document, reasons_of(document, recipe, number)) for document in documents]
    left = [document for document, reasons in broken if not reasons]
    assert entry["read"] == count(documents)
    assert entry["left"] == count(left)
    for name, histogram in entry["measures"].items():
        for which, chosen in (("read", documents), ("left", left)):
            # The made-up measures are multiples of 1/8 below 4: each has a bin of its own.
            assert dict(histogram[which]) == Counter(document.measure(name) for document in chosen)
    assert [limit["reason"] for limit in entry["limits"]] == [
        limit.reason for limit in recipe.sources[number].clean.limits("mix")
    ]
    for limit in entry["limits"]:
        reason, name = limit["reason"], limit["measure"]
        values = [document.measure(name) for document in documents]
        every = [document for document, reasons in broken if reason in reasons]
        assert limit["every"] == count(every)
        assert limit["first"] == count([document for document, reasons in broken if reasons[:1] == [reason]])
        assert limit["alone"] == count([document for document, reasons in broken if reasons == [reason]])
        for other in limit["others"]:
            fall = [value < other["value"] if limit["side"] == "min" else value > other["value"] for value in values]
            assert other["documents"] == sum(fall)
        assert len(limit["others"]) >= 2
        distinct = sorted({document.key: document for document in every}.values(), key=lambda one: one.key)
        assert [item["hash"] for item in limit["random"]] == [hex_of(one) for one in distinct[:EXAMPLES]]
        for which, chosen in (
            ("fallen", distinct),
            ("left", {d.key: d for d, r in broken if reason not in r}.values()),
        ):
            near = sorted(chosen, key=lambda one: (abs(one.measure(name) - limit["value"]), one.key))[:EXAMPLES]
            assert [item["hash"] for item in limit[which]] == [hex_of(one) for one in near]
            for item, document in zip(limit[which], near, strict=True):
                assert item["value"] == document.measure(name)
                assert item["reasons"] == reasons_of(document, recipe, number)
                assert item["tokens"] == document.length
                assert item["place"] == f"source-{number}@1#file"
                assert documents[item["row"]] == document


def hex_of(document: Document) -> str:
    return f"{document.key[0]:016x}{document.key[1]:016x}"


def test_partitions_blocks_and_runs_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = corpus(1, 600)
    plain, expected = make_index(tmp_path / "plain", sources, [[], [], []])
    monkeypatch.setattr(partitions_module, "PARTITION_DOCUMENTS", 50)
    for size in (1 << 16, 7):
        monkeypatch.setattr(index_module, "BLOCK_DOCUMENTS", size)
        index, found = make_index(tmp_path / f"cut-{size}", sources, [[3, 4, 100], [50], [10, 300, 301]])
        assert index.bits > plain.bits
        assert index.drops == plain.drops
        assert index.documents.tolist() == plain.documents.tolist()
        for data in (found, expected):
            for item in (item for entry in data["sources"] for limit in entry["limits"] for item in examples(limit)):
                for key in ("run", "index"):
                    item.pop(key, None)
        assert found == expected


def examples(limit: dict[str, Any]) -> list[dict[str, Any]]:
    return [*limit["random"], *limit["fallen"], *limit["left"]]


def test_examples_that_share_the_beginning_of_their_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BLOCK_DOCUMENTS", 7)
    documents = [Document((5 << 60, low), 3) for low in range(200)]
    random.Random(1).shuffle(documents)
    _, found = make_index(tmp_path, [documents, [], []], [[90], [], []])
    check_entry(found["sources"][0], recipe_of(CLEAN), documents, 0)


def test_an_example_says_where_its_tokens_are(tmp_path: Path) -> None:
    sources = corpus(2, 300)
    recipe = recipe_of(CLEAN)
    runs = write_runs(tmp_path, sources, [[100], [], []], [source.clean.mix_measures() for source in recipe.sources])
    _, found = index_of(tmp_path, recipe, runs)
    by_digest = {run.digest: run for run in runs}
    entry = found["sources"][0]
    for item in (item for limit in entry["limits"] for item in examples(limit)):
        run = by_digest[item["run"]]
        tokens = run.read_tokens(run.read_documents(item["index"], item["index"] + 1))
        assert tokens.tolist() == sources[0][item["row"]].tokens


def test_a_listed_document_counts_for_its_list_alone(tmp_path: Path) -> None:
    sources = corpus(3, 300)
    recipe = recipe_of(CLEAN)
    falls = next(document for document in sources[0] if reasons_of(document, recipe, 0))
    (tmp_path / "block.txt").write_text(hex_of(falls) + "\n")
    runs = write_runs(tmp_path, sources, [[], [], []], [source.clean.mix_measures() for source in recipe.sources])
    index, found = index_of(tmp_path, recipe, runs, Blocked([BlockList("block.txt", tmp_path / "block.txt")]))
    copies = sources[0].count(falls)
    assert index.drops[0].dropped()["in block list block.txt"] == copies
    assert found["sources"][0]["read"]["documents"] == 300 - copies
    assert index.documents[0] + sum(index.drops[0].dropped().values()) == 300
    assert hex_of(falls) not in json.dumps(found["sources"][0])


def test_equal_documents_in_sources_with_other_limits(tmp_path: Path) -> None:
    """A document falls in the first source and stays in the second, which keeps it."""
    documents = [Document((number << 50, 0), 10) for number in range(1, 100)]
    recipe = recipe_of([{"gopher": only("gopher", min_words=1)}, {"gopher": only("gopher", max_mean_word_chars=2)}])
    measures = [source.clean.mix_measures() for source in recipe.sources]
    runs = write_runs(tmp_path, [documents, documents], [[], []], measures)
    index, _ = index_of(tmp_path, recipe, runs)
    fell = [document for document in documents if reasons_of(document, recipe, 0)]
    assert 0 < len(fell) < 99
    later = [document for document in fell if not reasons_of(document, recipe, 1)]
    assert index.documents.tolist() == [99 - len(fell), len(later)]
    assert index.drops[1].dropped()[DUPLICATE_ELSEWHERE] == 99 - len(fell) - sum(
        bool(reasons_of(document, recipe, 1)) for document in documents if document not in fell
    )


def test_a_source_of_which_nothing_is_left(tmp_path: Path) -> None:
    recipe = recipe_of([{"gopher": only("gopher", min_words=100)}])
    runs = write_runs(tmp_path, [corpus(1, 50)[0]], [[]], [recipe.sources[0].clean.mix_measures()])
    index, found = index_of(tmp_path, recipe, runs)
    assert found["sources"][0]["left"] == {"documents": 0, "tokens": 0}
    with pytest.raises(match=r"no document is left to mix .50 times gopher: min_words.. Move the limits of"):
        cut_sources(recipe, index)


def test_a_preset_without_limits_is_measured_all_the_same(tmp_path: Path) -> None:
    recipe = recipe_of([{"gopher": only("gopher")}])
    runs = write_runs(tmp_path, [corpus(1, 50)[0]], [[]], [recipe.sources[0].clean.mix_measures()])
    _, found = index_of(tmp_path, recipe, runs)
    (entry,) = found["sources"]
    assert entry["left"] == entry["read"]
    assert sum(count for _, count in entry["measures"]["words"]["read"]) == 50


def test_bins_are_narrow() -> None:
    histogram = np.zeros(0, np.int64)
    values = np.array([0, 0.5, 0.51, 0.52, 1.0, 1000, 1001, 1e9], np.float32)
    for part in (values[:3], values[3:]):
        histogram = add_to_histogram(histogram, part.view(np.uint32) >> np.uint32(18))
    found = list_bins(histogram)
    assert [low for low, _ in found] == pytest.approx([0, 0.5, 0.515625, 1, 992, 989855744], rel=1e-6)
    assert [count for _, count in found] == [1, 2, 1, 1, 2, 1]
