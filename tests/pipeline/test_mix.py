"""The mix: exact shares, no document twice, whatever the partitions and the runs are."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.clean.reasons import DUPLICATE, ELSEWHERE
from pipeline.encode import run as run_module
from pipeline.encode.run import END_HASH, FIRST_HASH, Run
from pipeline.engine.checksums import seal, unseal
from pipeline.mix import partitions as partitions_module
from pipeline.mix.block_lists import Blocked, BlockList
from pipeline.mix.cuts import cut_sources
from pipeline.mix.evidence import read_evidence
from pipeline.mix.index import Axis, Index
from pipeline.mix.mix_plan import MixPlan
from pipeline.mix.partitions import Partitions
from pipeline.recipe.schema import Recipe
from shards.errors import InputError, RunError
from shards.format.manifest import block_list_reason
from shards.stores.store import FolderStore
from tests.support.builds import temporary_folder
from tests.support.runs import (
    Document,
    Placed,
    corpus_of,
    keep_first,
    kept_of,
    make_recipe,
    place_documents,
    write_index,
    write_run,
    write_runs,
)

TOP = (1 << 64) - 1
# Many hashes that differ in the last half only, and at both ends, besides well-spread ones.
KEYS = st.one_of(
    st.tuples(st.integers(0, TOP), st.integers(0, TOP)),
    st.tuples(st.sampled_from([0, 1, 1 << 63, TOP]), st.sampled_from([0, 1, 2, TOP])),
)


CORPORA = st.builds(corpus_of, st.integers(0, 1 << 32), st.integers(1, 3), st.integers(20, 150))
WEIGHTS = st.lists(st.one_of(st.integers(1, 100), st.sampled_from([0.1, 1e-3, 33.3])), min_size=3, max_size=3)
CUTS = st.lists(st.lists(st.integers(0, 60), max_size=4), min_size=3, max_size=3)


def plan_of(recipe: Recipe, runs: list[Run]) -> tuple[MixPlan, Index]:
    index = Index(runs, len(recipe.sources))
    return cut_sources(recipe, index), index


def content(shards: dict[tuple[str, int], list[Placed]]) -> dict[tuple[str, int], list[Placed]]:
    return {name: sorted(documents) for name, documents in shards.items()}


def planned(folder: str, sources: list[list[Document]], recipe: Recipe, cuts: list[list[int]]) -> Any:
    """Return the plan and what its shards hold, or None where the sources are too small."""
    runs = write_runs(Path(folder), sources, cuts)
    try:
        plan, index = plan_of(recipe, runs)
    except InputError:
        return None
    return plan, index, content(place_documents(plan, runs, index))


@settings(max_examples=150)
@example(corpus_of(0, 3, 20), [1, 1, 3], [[], [], []], "shrink", "max", 30, 80, 1)
@given(
    sources=CORPORA,
    weights=WEIGHTS,
    cuts=CUTS,
    when_short=st.sampled_from(["shrink", "repeat"]),
    tokens=st.one_of(st.just("max"), st.integers(50, 5000)),
    val_tokens=st.sampled_from([0, 1, 30, 100]),
    shard_tokens=st.integers(80, 2000),
    max_epochs=st.integers(1, 4),
)
def test_properties_of_any_plan(
    sources: list[list[Document]],
    weights: list[float],
    cuts: list[list[int]],
    when_short: str,
    tokens: Any,
    val_tokens: int,
    shard_tokens: int,
    max_epochs: int,
) -> None:
    weights = weights[: len(sources)]
    mix = {"tokens": tokens, "when_short": when_short, "max_epochs": max_epochs}
    recipe = make_recipe(weights, val_tokens=val_tokens, shard_tokens=shard_tokens, **mix)
    with temporary_folder() as folder:
        result = planned(folder, sources, recipe, cuts)
    if result is None:
        return
    plan, index, shards = result
    assert unseal(seal(plan), MixPlan) == plan
    kept = keep_first(sources)
    for name in ("tokens", "documents"):
        count = len if name == "documents" else lambda own: sum(document.length for document in own)
        assert [getattr(index.count_kept(s), name) for s in range(len(kept))] == [count(own) for own in kept]
    dropped = [sum(drops.dropped().values()) for drops in index.drops]
    assert dropped == [len(own) - len(left) for own, left in zip(sources, kept, strict=True)]
    train = [item for (split, _), items in shards.items() if split == "train" for item in items]
    val = [item for (split, _), items in shards.items() if split == "val" for item in items]
    check_documents(plan, kept, train, val, max_epochs if when_short == "repeat" else 1)
    check_shares(plan, kept, shards, weights, val_tokens)
    if when_short == "shrink" and (tokens == "max" or plan.train_tokens < tokens):
        counts = Counter(source for source, *_ in (*train, *val))
        used = [counts[source] == len(own) for source, own in enumerate(kept)]
        assert any(used), "some source binds, and all of it is used"


def check_documents(
    plan: MixPlan, kept: list[list[Document]], train: list[Placed], val: list[Placed], most: int
) -> None:
    owner = {document.key: (source, document.length) for source, own in enumerate(kept) for document in own}
    assert all(owner[key] == (source, length) for source, _, key, length in (*train, *val))
    times = Counter(key for _, _, key, _ in train)
    held_out = Counter(key for _, _, key, _ in val)
    assert not times.keys() & held_out.keys()
    assert set(held_out.values()) <= {1}
    for source in range(len(kept)):
        own = {key: count for key, count in times.items() if owner[key][0] == source}
        epochs = plan.epochs[source]
        if not own:  # its share is less than a token
            assert (plan.requested_tokens[source], epochs) == (0, 1)
            continue
        assert max(own.values()) == epochs <= most
        # An epoch begins only when the one before is whole.
        available = sum(1 for document in kept[source] if document.key not in held_out)
        if epochs > 1:
            assert len(own) == available
            assert min(own.values()) >= epochs - 1
    assert len({(key, epoch) for _, epoch, key, _ in train}) == len(train)


def check_shares(plan: MixPlan, kept: list[list[Document]], shards: Any, weights: list[float], val_tokens: int) -> None:
    exact = [Fraction(str(weight)) for weight in weights]
    for split, total in (("train", plan.train_tokens), ("val", val_tokens)):
        number = sum(1 for name, _ in shards if name == split)
        for source in range(len(kept)):
            share = exact[source] / sum(exact) * total
            # As validation does: the longest document that the set holds.
            longest = max((n for items in shards.values() for s, _, _, n in items if s == source), default=0)
            held = [sum(n for s, _, _, n in shards[split, k] if s == source) for k in range(number)]
            assert abs(sum(held) - share) <= longest + 2
            for k in range(number):
                assert abs(held[k] - share / number) <= longest + 2
                assert abs(sum(held[: k + 1]) - share * (k + 1) / number) <= longest + 2


def deduplicate(sources: list[list[Document]], listed: set[Any]) -> tuple[list[list[bool]], list[Counter[str]]]:
    """Reference: which documents are kept, in the order given, and how many are dropped for each reason."""
    owners: dict[Any, int] = {}
    kept: list[list[bool]] = []
    dropped: list[Counter[str]] = []
    for source, documents in enumerate(sources):
        kept.append([])
        dropped.append(Counter())
        for document in documents:
            keep = document.key not in owners and document.key not in listed
            if document.key in listed:
                dropped[source][block_list_reason("listed.txt")] += 1
            elif not keep:
                dropped[source][DUPLICATE if owners[document.key] == source else DUPLICATE + ELSEWHERE] += 1
            kept[source].append(keep)
            owners.setdefault(document.key, source)
    return kept, dropped


@settings(max_examples=40)
@given(
    sources=CORPORA,
    cuts=CUTS,
    seed=st.integers(0, 1 << 32),
    documents=st.sampled_from([1, 4, 1 << 24]),
    group=st.sampled_from([1, 9, 1 << 22]),
)
def test_an_index_is_what_plain_code_finds(
    sources: list[list[Document]], cuts: list[list[int]], seed: int, documents: int, group: int
) -> None:
    rng = random.Random(seed)
    keys = sorted({document.key for own in sources for document in own})
    listed = set(rng.sample(keys, rng.choice([0, len(keys) // 5])))
    kept, dropped = deduplicate(sources, listed)
    with pytest.MonkeyPatch.context() as patch, temporary_folder() as folder:
        patch.setattr(partitions_module, "PARTITION_DOCUMENTS", documents)
        patch.setattr(partitions_module, "GROUP_DOCUMENTS", group)
        path = Path(folder, "listed.txt")
        path.write_text("".join(f"{hi:016x}{lo:016x}\n" for hi, lo in [*listed, (1, 77)]))
        blocked = Blocked([BlockList("listed.txt", path)]) if listed else None
        runs = write_runs(Path(folder, "runs"), sources, cuts)
        index = Index(runs, len(sources), blocked)
        write_index(Path(folder), index)
        written = read_evidence(FolderStore(Path(folder)), len(runs))
        for number, run in enumerate(runs):
            rows = run.read_documents(0, run.num_documents)
            expected = [kept[run.source][row] for row in rows["row"].tolist()]
            for read in (partial(kept_of, index), written.kept):
                assert read(number, 0, len(rows)).tolist() == expected
                first = rng.randrange(len(rows) + 1)
                last = rng.randrange(first, len(rows) + 1)
                assert read(number, first, last).tolist() == expected[first:last]
        assert [drops.dropped() for drops in index.drops] == dropped
        if blocked:
            (use,) = index.block_lists()
            assert (use.hashes, use.found) == (len(listed) + 1, len(listed))
            assert use.documents == sum(document.key in listed for own in sources for document in own)
        for source, own in enumerate(sources):
            left = sorted(
                (document for document, keep in zip(own, kept[source], strict=True) if keep),
                key=lambda document: document.key,
            )
            lengths = [document.length for document in left]
            edges = [0, *itertools.accumulate(lengths)]
            assert index.count_kept(source).documents == len(left)
            assert index.longest[:, source].max() == max(lengths, default=0)
            axis = Axis(index, source)
            assert axis.total == edges[-1]
            for target in rng.sample(range(edges[-1] + 2), min(20, edges[-1])):
                nearest = min(edges, key=lambda edge: (abs(edge - target), -edge))
                cut = axis.cut(target)
                assert cut.tokens == nearest
                assert sum(document.length for document in left if document.key < cut.key) == nearest


@given(st.lists(KEYS, max_size=50), KEYS, KEYS)
def test_a_run_finds_the_documents_between_two_hashes(keys: list[Any], one: Any, other: Any) -> None:
    start, stop = min(one, other), max(one, other)
    with pytest.MonkeyPatch.context() as patch, temporary_folder() as folder:
        patch.setattr(run_module, "SLACK", 0.1)  # so that a search must read further
        patch.setattr(run_module, "LEAST_SLACK", 1)
        run = write_run(Path(folder, "run"), 0, [Document(k, 2) for k in keys])
        for begin, end in ((start, stop), (FIRST_HASH, stop), (start, END_HASH), (FIRST_HASH, END_HASH)):
            expected = [k for k in sorted(keys) if begin <= k < end]
            place = sum(k < begin for k in keys)
            first, rows = run.read_between(begin, end)
            assert [(int(row["hash_hi"]), int(row["hash_lo"])) for row in rows] == expected
            assert first == place or not expected
            assert run.read_tokens(rows).tolist() == [token for k in expected for token in Document(k, 2).tokens]


def test_scratch_that_a_disk_changed_is_not_used(tmp_path: Path) -> None:
    partitions = Partitions(write_runs(tmp_path, [spread(100)], [[50]]))
    assert partitions.read(0).lengths.tolist() == [10] * 100
    file = partitions.scratch._file  # pyright: ignore[reportPrivateUsage]
    file.seek(1234)
    file.write(b"#")
    with pytest.raises(RunError, match=r"scratch file of the mix differs .* Check it"):
        partitions.read(0)


def spread(number: int, *, length: int = 10, start: int = 0) -> list[Document]:
    """Return documents whose hashes are spread evenly."""
    return [Document(((start + i) * 0x9E3779B97F4A7C15 % (1 << 64), i), length) for i in range(number)]


def test_repeat_is_exact(tmp_path: Path) -> None:
    runs = write_runs(tmp_path, [spread(50), spread(2000, start=5000)], [[], []])
    recipe = make_recipe([50, 50], tokens=1750 * 2, when_short="repeat", max_epochs=4, shard_tokens=700)
    plan, index = plan_of(recipe, runs)
    train = [item for items in place_documents(plan, runs, index).values() for item in items]
    times = Counter(key for source, _, key, _ in train if source == 0)
    assert Counter(times.values()) == {4: 25, 3: 25}  # 1,750 tokens of 500: three and a half epochs
    assert plan.epochs == (4, 1)
    recipe = make_recipe([50, 50], tokens="max", when_short="repeat", max_epochs=3, shard_tokens=700)
    plan, index = plan_of(recipe, runs)
    assert plan.train_tokens == 3000
    times = Counter(key for items in place_documents(plan, runs, index).values() for s, _, key, _ in items if s == 0)
    assert set(times.values()) == {3}
    assert len(times) == 50
    assert plan.notes == ("3,000 training tokens, the most that 's0' allows in 3 epochs",)
    (note,) = plan_of(make_recipe([50, 50], tokens="max"), runs)[0].notes
    assert note.endswith("To use all, add to this command: --set sources.s0.weight=2.439 --set sources.s1.weight=97.56")
    phases = [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}]
    (note,) = plan_of(make_recipe([50, 50], tokens="max", phases=phases, shard_tokens=500), runs)[0].notes
    assert note.endswith("the most that 's0' allows")
    plan, _ = plan_of(make_recipe([50, 50], tokens=3000, when_short="shrink"), runs)
    assert plan.notes == ("shrunk from 3,000 to 1,000 training tokens: 's0' is too small",)


def test_a_document_longer_than_a_shard_has_one_of_its_own(tmp_path: Path) -> None:
    lengths = [10] * 100 + [5000] + [10] * 100
    own = [Document((number + 1, 0), length) for number, length in enumerate(lengths)]
    runs = write_runs(tmp_path / "runs", [own, spread(700)], [[], []])
    for weights, tokens, found in (([1, 0.0001], [1000, 5000, 1000], 3), ([1, 1], [1700] * 7, 14)):
        plan, index = plan_of(make_recipe(weights, shard_tokens=1000, when_short="shrink"), runs)
        assert len(plan.shards) == found
        shards = place_documents(plan, runs, index).values()
        assert all(shards)
        if found == 3:
            assert [sum(item[3] for item in items if item[0] == 0) for items in shards] == tokens
            (note,) = [note for note in plan.notes if "longest document" in note]
            assert note.startswith("3 shards, not 7: the longest document has 5,000 tokens, shards.tokens is 1,000")
        else:
            assert not any("longest document" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("before", "straddling", "asked", "taken"),
    [
        (30, 500, 350, 300),  # a long document at the end: without it 50 are missing, with it 450 are too many
        (30, 100, 340, 300),  # 60 too many, more than a twentieth
        (30, 28, 315, 328),  # 13 too many, less than a twentieth: as 0.1.0 cut
        (0, 500, 100, 500),  # a source that is asked for is never left out
    ],
)
def test_validation_ends_near_its_share(tmp_path: Path, before: int, straddling: int, asked: int, taken: int) -> None:
    lengths = [10] * before + [straddling] + [10] * 500
    own = [Document((number + 1, 0), length) for number, length in enumerate(lengths)]
    runs = [write_run(tmp_path / "run", 0, own)]
    plan, index = plan_of(make_recipe([1], val_tokens=asked), runs)
    placed = place_documents(plan, runs, index)
    assert sum(item[3] for name, items in placed.items() if name[0] == "val" for item in items) == taken
    train = sum(item[3] for name, items in placed.items() if name[0] == "train" for item in items)
    assert train == sum(lengths) - taken
