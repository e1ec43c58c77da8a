"""Near-duplicates: shingles, signatures, candidate pairs, exact similarity and the selection, by slow references."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.encode.run import Run, RunList, RunResult
from pipeline.engine.receipts import write_receipt
from pipeline.engine.tasks import Report, digest_of_payload
from pipeline.mix.near_duplicates import bands, similar
from pipeline.mix.near_duplicates import pairs as pairs_module
from pipeline.mix.near_duplicates.bands import BAND_DTYPE, BandsTask, bands_digest, write_bands
from pipeline.mix.near_duplicates.drop import SimilarDocuments, choose_dropped
from pipeline.mix.near_duplicates.pairs import CENTERS, PairsTask, find_pairs, read_pairs
from pipeline.mix.near_duplicates.similar import SIMILAR_DTYPE, SimilarTask, compare_pairs
from shards.stores.store import FolderStore
from tests.support.near_duplicates import jaccard
from tests.support.runs import Document, write_run


def make_documents() -> list[list[int]]:
    """Return documents of which many are near-duplicates, some equal and some short."""
    generator = random.Random(0)
    documents: list[list[int]] = []
    for number in range(200):
        if number % 3 and documents:
            document = list(generator.choice(documents))
            for _ in range(generator.randrange(4)):
                document[generator.randrange(len(document))] = generator.randrange(1, 900)
        else:
            document = [generator.randrange(1, 900) for _ in range(generator.choice((1, 3, 6, 80, 200, 400)))]
        documents.append(document)
    return documents


def write_corpus(folder: Path) -> tuple[list[Run], dict[int, list[int]]]:
    """Write two runs; return them, and the tokens of each content hash."""
    documents = make_documents()
    names: dict[tuple[int, ...], int] = {}
    generator = random.Random(0)
    hashes = [names.setdefault(tuple(document), generator.getrandbits(128)) for document in documents]
    given = [
        Document((value >> 64, value & (2**64 - 1)), len(document) + 1, (*document, 0))
        for document, value in zip(documents, hashes, strict=True)
    ]
    runs = [write_run(folder / f"run-{number}", number, given[number::2]) for number in range(2)]
    return runs, {value: list(document) for document, value in names.items()}


def find_similar(folder: Path, runs: list[Run], *, ranges: int = 1, tasks: int = 1) -> dict[frozenset[int], float]:
    """Run the three stages as a build does; return the similarity of each pair of hashes."""
    listed = RunList(FolderStore(folder), runs)
    listed.write()

    def run(stage: str, function: Any, payload: Any) -> None:
        own = folder / stage / digest_of_payload(payload)
        own.mkdir(parents=True)
        write_receipt(own, function(own, payload, Report()))

    for item in runs:
        run("bands", write_bands, BandsTask(item.place, item.dtype, 1000))
    for number in range(ranges):
        run("pairs", find_pairs, PairsTask(listed.address, f"{folder}/bands", number, ranges))
    found: dict[frozenset[int], float] = {}
    for number in range(tasks):
        task = SimilarTask(listed.address, f"{folder}/pairs", ranges, number, tasks, 1000)
        run("similar", compare_pairs, task)
        digest = digest_of_payload(task)
        for row in similar.read_similar(FolderStore(folder / "similar" / digest), 0.0).tolist():
            key = frozenset((row[0] << 64 | row[1], row[2] << 64 | row[3]))
            assert key not in found
            assert len(key) == 2
            found[key] = row[4]
    return found


def test_similar_documents_are_found_whatever_ranges_tasks_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, tokens = write_corpus(tmp_path)
    exact = {
        frozenset(pair): jaccard(*(tokens[digest] for digest in pair)) for pair in itertools.combinations(tokens, 2)
    }
    found = find_similar(tmp_path / "one", runs)
    assert found == {pair: exact[pair] for pair in found}
    alike = {pair for pair, value in exact.items() if value >= 0.9}
    assert len(alike) > 10
    assert alike <= found.keys()
    monkeypatch.setattr(pairs_module, "PART_PAIRS", 7)
    monkeypatch.setattr(similar, "BATCH_TOKENS", 500)
    monkeypatch.setattr(similar, "READ_BYTES", 1000)
    assert find_similar(tmp_path / "many", runs, ranges=16, tasks=4) == found


def write_rows(folder: Path, run: Run, rows: Any) -> None:
    """Write band rows as `write_bands` does, so that `find_pairs` takes them for a run's."""
    Path(run.place).mkdir()
    write_receipt(Path(run.place), RunResult(documents=len(rows)))  # the list of runs reads it
    own = folder / "bands" / bands_digest(run.digest)
    own.mkdir(parents=True)
    rows = rows[np.argsort(rows["key"], kind="stable")]
    edges = np.searchsorted(rows["key"] >> np.uint64(64 - bands.EDGE_BITS), np.arange((1 << bands.EDGE_BITS) + 1))
    files = {
        bands.BANDS_FILE: bands.write_checksummed(own / bands.BANDS_FILE, rows.view(np.uint8).data),
        bands.EDGES_FILE: bands.write_checksummed(own / bands.EDGES_FILE, edges.astype("<u8").tobytes()),
    }
    write_receipt(own, bands.BandsResult(rows=len(rows), files=files))


def pairs_of_rows(folder: Path, runs: list[Run], ranges: int) -> tuple[list[tuple[int, int]], int]:
    """Return the pairs that `find_pairs` finds, the longer document first, and how many it leaves out."""
    listed = RunList(FolderStore(folder), runs)
    listed.write()
    found: list[tuple[int, int]] = []
    left_out = 0
    for number in range(ranges):
        own = folder / f"pairs-{ranges}-{number}"
        own.mkdir()
        result = find_pairs(own, PairsTask(listed.address, f"{folder}/bands", number, ranges), Report())
        write_receipt(own, result)
        left_out += result.left_out
        found += read_pairs(FolderStore(own), 0, pairs_module.PARTITIONS).tolist()
    return found, left_out


def test_a_bucket_is_paired_up_and_one_that_explodes_is_cut_and_counted(tmp_path: Path) -> None:
    generator, members = np.random.default_rng(9), 2000
    runs = [Run(str(tmp_path / f"r{number}"), number, "<u2") for number in range(3)]
    buckets: dict[int, list[tuple[int, int, int]]] = {}
    for number, run in enumerate(runs):
        rows = np.zeros(400 + (0 if number else members), BAND_DTYPE)
        rows["key"], rows["index"] = 99, np.arange(len(rows))
        rows["key"][:400] = generator.integers(0, 150, 400, np.uint64) << np.uint64(56)
        rows["length"] = 1 + rows["index"] % 3
        rows["length"][400:] = generator.permutation(len(rows) - 400)
        rows["hash"] = rows["index"] * 3 + number
        write_rows(tmp_path, run, rows)
        for row in rows.tolist():
            buckets.setdefault(row[0], []).append((-row[1], row[2], number << 32 | row[3]))
    # Of the large bucket, every document is compared with each of the longest alone.
    paired = {key: (sorted(own), CENTERS if key == 99 else len(own)) for key, own in buckets.items()}
    expected = {
        (own[a][2], own[b][2]) for own, most in paired.values() for a in range(most) for b in range(a + 1, len(own))
    }
    everything = sum(len(own) * (len(own) - 1) // 2 for own in buckets.values())
    for ranges in (1, 8):
        found, left_out = pairs_of_rows(tmp_path, runs, ranges)
        assert len(found) == len(set(found)) == everything - left_out
        assert set(found) == expected


@st.composite
def similar_documents(draw: st.DrawFn) -> tuple[SimilarDocuments, Any]:
    count = draw(st.integers(2, 14))
    hashes = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    lengths = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    keys = [(hashes[place], place) for place in range(count)]
    chosen = draw(st.sets(st.sampled_from(list(itertools.combinations(range(count), 2))), min_size=1))
    pairs = np.zeros(len(chosen), SIMILAR_DTYPE)
    for row, (first, second) in zip(pairs, sorted(chosen), strict=True):
        row["hi_a"], row["lo_a"] = keys[first]
        row["hi_b"], row["lo_b"] = keys[second]
        row["length_a"], row["length_b"] = lengths[first], lengths[second]
        row["jaccard"] = draw(st.sampled_from((0.8, 0.9)))
    documents = SimilarDocuments.of(pairs)
    alive = draw(st.lists(st.booleans(), min_size=len(documents.hi), max_size=len(documents.hi)))
    return documents, np.array(alive)


def choose_slowly(documents: SimilarDocuments, alive: Any) -> list[tuple[int, int, float]]:
    """Reference: from the longest on, each document stays that is similar to none that stays. Return the others."""
    pairs = [documents.first.tolist(), documents.second.tolist(), documents.jaccard.tolist()]
    similar = {frozenset(own): value for *own, value in zip(*pairs, strict=True)}
    stay: list[int] = []
    dropped: list[tuple[int, int, float]] = []
    for place in np.lexsort((documents.lo, documents.hi, -documents.lengths)).tolist():
        found = [(similar[pair], other) for other in stay if (pair := frozenset((place, other))) in similar]
        if alive[place] and found:
            value, kept = max(found, key=lambda one: one[0])  # of equal ones the first
            dropped.append((place, kept, value))
        elif alive[place]:
            stay.append(place)
    return sorted(dropped)


CHAIN = np.zeros(9, SIMILAR_DTYPE)
"""Each document is similar to the next alone: every second one stays, and none goes for a document that goes."""
CHAIN["hi_a"], CHAIN["hi_b"], CHAIN["jaccard"] = np.arange(9), np.arange(1, 10), 0.9
CHAIN["length_a"], CHAIN["length_b"] = 100 - np.arange(9), 99 - np.arange(9)


@settings(max_examples=300)
@example((SimilarDocuments.of(CHAIN), np.ones(10, bool)))
@example((SimilarDocuments.of(CHAIN), np.arange(10) != 4))
@given(similar_documents())
def test_selection(drawn: tuple[SimilarDocuments, Any]) -> None:
    documents, alive = drawn
    assert np.lexsort((documents.lo, documents.hi)).tolist() == list(range(len(alive)))
    found = choose_dropped(documents, alive)
    assert list(zip(*(column.tolist() for column in found), strict=True)) == choose_slowly(documents, alive)
