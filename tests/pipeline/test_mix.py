"""The mix: dropped is what plain code drops, shares are exact, and no document is used twice, whatever the runs are."""

# pyright: basic
import random
from collections import Counter
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, assume, example, given, reject, settings
from hypothesis import strategies as st

from pipeline.clean.reasons import DUPLICATE, ELSEWHERE, NEAR_DUPLICATE, step_of
from pipeline.encode import run as run_module
from pipeline.encode.run import END_HASH, FIRST_HASH, Run
from pipeline.engine.checksums import seal, unseal
from pipeline.engine.receipts import CHECKSUMS_FILE, RECEIPT_FILE, TaskOutput
from pipeline.mix import index as index_module
from pipeline.mix import partitions as partitions_module
from pipeline.mix.cuts import cut_sources
from pipeline.mix.evidence import EVIDENCE_FILE, Evidence, find_reasons, read_evidence
from pipeline.mix.index import Axis, Index
from pipeline.mix.mix_plan import MixPlan
from pipeline.mix.partitions import Partitions
from pipeline.recipe.paths import RecipePath
from pipeline.recipe.presets import Preset
from pipeline.recipe.schema import Recipe
from shards.errors import InputError, RunError
from shards.format.manifest import block_list_reason
from shards.stores.store import FolderStore
from tests.support.builds import temporary_folder
from tests.support.runs import (
    Corpus,
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


def in_order(lengths: list[int]) -> list[Document]:
    """Return documents of these lengths in the order of their hashes."""
    return [Document((number, 0), length) for number, length in enumerate(lengths, 1)]


def plan_of(recipe: Recipe, runs: list[Run]) -> tuple[MixPlan, Index]:
    index = Index(runs, recipe)
    return cut_sources(index), index


def mix_sources(recipe: Recipe, sources: Corpus, cuts: list[list[int]]) -> tuple[Any, ...]:
    """Return a mix's plan, what it places in each shard, which documents it keeps, and what is in train and in val."""
    with temporary_folder() as folder:
        runs = write_runs(Path(folder), sources, cuts)
        try:
            plan, index = plan_of(recipe, runs)
        except InputError:
            reject()  # the sources are too small
        placed = place_documents(plan, runs, index)
    splits: dict[str, list[Placed]] = {"train": [], "val": []}
    for (split, _), items in placed.items():
        splits[split] += items
    return plan, placed, keep_first(sources), splits["train"], splits["val"]


# --- Shares ---


@st.composite
def curricula(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw phases with shares of at most three decimals, and weights from nothing to a hundred for three sources."""
    ends = sorted(draw(st.sets(st.integers(100, 900), min_size=1, max_size=3)))
    weight = st.sampled_from([0, 0.001, 1, 2, 3.5, 100])
    phases = []
    for number, (begin, end) in enumerate(pairwise([0, *ends, 1000])):
        weights = draw(st.dictionaries(st.sampled_from(["s0", "s1", "s2"]), weight, max_size=3))
        phases.append({"name": f"p{number}", "share": (end - begin) / 1000, "weights": weights})
    return phases


def list_shares(recipe: Recipe) -> list[tuple[str | None, Fraction, list[Fraction]]]:
    """Reference: of each phase its name, its share of the training tokens, and the share of each source in it."""
    found: list[tuple[str | None, Fraction, list[Fraction]]] = []
    for name, share, own in [(one.name, one.share, one.weights) for one in recipe.mix.phases] or [(None, 1, {})]:
        weights = [Fraction(str(own.get(source.name, source.weight))) for source in recipe.sources]
        assume(sum(weights))  # the checks refuse others
        found.append((name, Fraction(str(share)), [weight / sum(weights) for weight in weights]))
    assume(all(map(any, zip(*(shares for *_, shares in found), strict=True))))
    return found


@settings(max_examples=120, phases=[Phase.explicit, Phase.generate])  # to shrink an example takes minutes
@example(corpus_of(0, 3, 20), [1, 1, 3], [], [[], [], []], "shrink", "max", 30, 80, 1)
# Validation ends below its share by almost a document. The cut before is not above its own, nor behind the end.
@example(
    [in_order([200, 100, 800, 50, 800, 200, 200, 200, 800, 100, 50])], [1], [], [[]], "shrink", "max", 1780, 890, 1
)
@example([in_order([5, 800, 400])], [1], [], [[]], "shrink", "max", 612, 123, 1)
@given(
    sources=CORPORA,
    weights=WEIGHTS,
    phases=st.one_of(st.just([]), curricula()),
    cuts=CUTS,
    when_short=st.sampled_from(["shrink", "repeat"]),
    tokens=st.one_of(st.just("max"), st.integers(50, 5000)),
    val_tokens=st.sampled_from([0, 1, 30, 100]),
    shard_tokens=st.integers(5, 2000),
    max_epochs=st.integers(1, 4),
)
def test_properties_of_any_plan(
    sources: Corpus,
    weights: list[float],
    phases: list[dict[str, Any]],
    cuts: list[list[int]],
    when_short: str,
    tokens: Any,
    val_tokens: int,
    shard_tokens: int,
    max_epochs: int,
):
    names = {f"s{index}" for index in range(len(sources))}
    phases = [{**one, "weights": {k: w for k, w in one["weights"].items() if k in names}} for one in phases]
    mix = {"tokens": tokens, "when_short": when_short, "max_epochs": max_epochs, "phases": phases}
    recipe = make_recipe(weights[: len(sources)], val_tokens=val_tokens, shard_tokens=shard_tokens, **mix)
    shares = list_shares(recipe)
    plan, placed, kept, train, val = mix_sources(recipe, sources, cuts)
    assert unseal(seal(plan), MixPlan) == plan
    check_documents(plan, kept, train, val, max_epochs if when_short == "repeat" else 1)
    # The shards of a phase follow each other, and each phase has its shares.
    shards = [shard for shard in plan.shards if shard.split == "train"]
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert list(dict.fromkeys(shard.phase for shard in shards)) == [name for name, *_ in shares]
    longest = [max((n for s, _, _, n in (*train, *val) if s == source), default=0) for source in range(len(kept))]
    for name, share, own in shares:
        held = [placed["train", shard.index] for shard in shards if shard.phase == name]
        check_shares(held, own, share * plan.train_tokens, longest)
    weighed = [sum(share * own[s] for _, share, own in shares) for s in range(len(kept))]
    check_shares([placed[name] for name in placed if name[0] == "val"], weighed, Fraction(val_tokens), longest)
    if when_short == "shrink" and (tokens == "max" or plan.train_tokens < tokens):
        counts = Counter(source for source, *_ in (*train, *val))
        used = [counts[source] == len(own) for source, own in enumerate(kept)]
        assert any(used), "some source binds, and all of it is used"


@settings(max_examples=60, phases=[Phase.explicit, Phase.generate])
@given(CORPORA, CUTS, st.one_of(st.just("max"), st.integers(50, 5000)), st.sampled_from([0, 1, 30, 300]), st.booleans())
def test_without_weights_all_text_is_used_once(
    sources: Corpus, cuts: list[list[int]], tokens: Any, val_tokens: int, left_out: bool
):
    weights = [0 if left_out and source else None for source in range(len(sources))]
    recipe = make_recipe(weights, val_tokens=val_tokens, shard_tokens=200, tokens=tokens, when_short="shrink")
    sources = [own if weight is None else [] for weight, own in zip(weights, sources, strict=True)]
    plan, placed, kept, train, val = mix_sources(recipe, sources, cuts)
    check_documents(plan, kept, train, val, 1)
    have = [sum(document.length for document in own) for own in kept]
    held_out = [sum(length for of, _, _, length in val if of == source) for source in range(len(kept))]
    assert plan.weights == tuple(own - out for own, out in zip(have, held_out, strict=True))
    empty = [source for source, own in enumerate(have) if not own and weights[source] is None]
    assert [note for note in plan.notes if "gives the set nothing" in note] == [
        f"source 's{source}': cleaning left no documents. It gives the set nothing" for source in empty
    ]
    if tokens == "max" or plan.train_tokens < tokens:
        assert plan.train_tokens == sum(plan.weights)
        assert len(train) + len(val) == sum(map(len, kept))
    shares = [Fraction(weight) / int(sum(plan.weights)) for weight in plan.weights]
    longest = [max((document.length for document in own), default=0) for own in kept]
    check_shares([placed[name] for name in placed if name[0] == "train"], shares, Fraction(plan.train_tokens), longest)
    shares = [Fraction(own, sum(have)) for own in have]
    check_shares([placed[name] for name in placed if name[0] == "val"], shares, Fraction(val_tokens), longest)
    for own, out, share in zip(have, held_out, shares, strict=True):
        assert out <= max(own // 2, share * val_tokens)


def check_documents(plan: MixPlan, kept: Corpus, train: list[Placed], val: list[Placed], most: int) -> None:
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


def check_shares(shards: list[list[Placed]], shares: list[Any], total: Fraction, longest: list[int]) -> None:
    """Check that shards that follow each other have the shares of the sources, each of them and all so far."""
    assert total == 0 or all(shards)
    for source, share in enumerate(shares):
        held = [sum(length for of, _, _, length in items if of == source) for items in shards]
        assert share or not sum(held)
        for number, so_far in enumerate(accumulate(held), 1):
            assert abs(held[number - 1] - share * total / len(shards)) <= longest[source] + 2
            assert abs(so_far - share * total * number / len(shards)) <= longest[source] + 2


# --- What becomes of each document ---


def only(preset: str, **limits: float) -> dict[str, Any]:
    """Return the table of a preset with these limits alone."""
    (model,) = (one for one in Preset.__subclasses__() if one.name == preset)
    return dict.fromkeys(model.limit_keys(), "off") | limits


CLEAN: list[dict[str, Any]] = [
    {"gopher": only("gopher", min_words=0.5, max_words=2.25, max_mean_word_chars=1.5)},
    {"c4": only("c4")},  # measured alone
    {"gopher": only("gopher", min_words=0.5), "code": only("code", min_alphanumeric=0.125, max_longest_line_bytes=2.5)},
]


def recipe_of(takes: list[float], *, limits: bool) -> Recipe:
    plain = make_recipe([1] * len(takes), tokens="max").model_dump()
    for source, tables, take in zip(plain["sources"], CLEAN, takes, strict=False):
        source |= {"take": take, "clean": tables if limits else {}}
    return Recipe.model_validate(plain)


def list_broken(document: Document, recipe: Recipe, source: int) -> list[str]:
    """Reference: all limits of a source that a document breaks, in order."""
    broken: list[str] = []
    for limit in recipe.sources[source].clean.limits("mix"):
        value = document.measure(limit.measure)
        if value < limit.value if limit.is_lower else value > limit.value:
            broken.append(limit.reason)
    return broken


def decide(sources: Corpus, recipe: Recipe, lists: list[set[Any]], near: set[Any]) -> list[list[Any]]:
    """Reference: why each document is dropped, in the order given; None for a kept one."""
    owners: dict[Any, int] = {}
    reasons: list[list[Any]] = [[] for _ in sources]
    for number, documents in enumerate(sources):
        take = recipe.sources[number].take
        for document in documents:
            listed = [block_list_reason(f"{at}.txt") for at, own in enumerate(lists) if document.key in own]
            reason: str | None = next(iter(listed + list_broken(document, recipe, number)), None)
            if not reason and document.key in owners:
                reason = DUPLICATE + ELSEWHERE * (owners[document.key] != number)
            elif not reason:
                owners[document.key] = number
                if document.key in near:  # like one of the first source
                    reason = NEAR_DUPLICATE + ELSEWHERE * (number > 0)
                elif document.key[0] >= take * 2**64:
                    reason = f"not taken: take = {take}"
            reasons[number].append(reason)
    return reasons


def count(documents: list[Document]) -> dict[str, int]:
    return {"documents": len(documents), "tokens": sum(document.length for document in documents)}


@settings(max_examples=30, phases=[Phase.generate])
@given(
    sources=CORPORA,
    cuts=CUTS,
    takes=st.lists(st.sampled_from([1.0, 0.75, 0.5, 2.0**-63, 2.0**-64, 0.3]), min_size=3, max_size=3),
    limits=st.booleans(),
    seed=st.integers(0, 1 << 32),
    documents=st.sampled_from([4, 16, 1 << 24]),
    group=st.sampled_from([1, 9, 1 << 22]),
)
def test_an_index_is_what_plain_code_finds(
    sources: Corpus,
    cuts: list[list[int]],
    takes: list[float],
    limits: bool,
    seed: int,
    documents: int,
    group: int,
):
    rng = random.Random(seed)
    recipe = recipe_of(takes[: len(sources)], limits=limits)
    lengths = {document.key: document.length for own in sources for document in own}
    keys = sorted(lengths)
    lists = [{(1, 77), *rng.sample(keys, len(keys) // 8)} for _ in range(rng.choice([0, 2]))]
    near = set(rng.sample(keys, rng.choice([0, len(keys) // 4])))
    expected = decide(sources, recipe, lists, near)
    with pytest.MonkeyPatch.context() as patch, temporary_folder() as folder:
        patch.setattr(partitions_module, "PARTITION_DOCUMENTS", documents)
        patch.setattr(partitions_module, "GROUP_DOCUMENTS", group)
        patch.setattr(index_module, "BLOCK_DOCUMENTS", group)
        files = [RecipePath(f"{folder}/{number}.txt", f"{number}.txt") for number in range(len(lists))]
        for file, listed in zip(files, lists, strict=True):
            Path(file).write_text("".join(f"{hi:016x}{lo:016x}\n" for hi, lo in listed))
        runs = write_runs(Path(folder, "runs"), sources, cuts, [one.clean.mix_measures() for one in recipe.sources])
        index = Index(runs, recipe.with_values(drop_hashes=files))
        hi, lo = np.array(sorted(near), np.uint64).reshape(-1, 2).T
        places = np.stack(index.find(hi, lo))
        there = places[0] >= 0
        run, place = places[:, there]
        index.drop_near_duplicates(
            run, place, 0 * run, np.array([lengths[key] for key in sorted(near)])[there], report=False
        )
        assert (index.find(hi, lo)[0] == -1).all()
        index.drop_not_taken()
        write_index(Path(folder), index)
        evidence = read_evidence(FolderStore(Path(folder)), len(runs))
        for number, run in enumerate(runs):
            rows = run.read_documents(0, run.num_documents)
            reasons = [expected[run.source][row] for row in rows["row"].tolist()]
            for place in rng.sample(range(len(rows)), min(9, len(rows))):
                assert evidence.of(number, place)["dropped"] == reasons[place]
            first = rng.randrange(len(rows) + 1)
            last = rng.randrange(first, len(rows) + 1)
            for read in (partial(kept_of, index), evidence.kept):
                assert read(number, first, last).tolist() == [reason is None for reason in reasons[first:last]]
        for entry, listed in zip(index.block_lists(), lists, strict=True):
            assert (entry.hashes, entry.found) == (len(listed), len(listed) - 1)
            assert entry.documents == sum(reasons.count(block_list_reason(entry.file)) for reasons in expected)
        for source, reasons in enumerate(expected):
            check_drops(index, recipe, source, sources[source], reasons)
            for reason in {*reasons} - {None}:
                drawn = evidence.draw(runs, source, lambda rows, own=reason: find_reasons(rows, own.__eq__), 5)
                hashes = [document.key for document, own in zip(sources[source], reasons, strict=True) if own == reason]
                assert [runs[number].hash_key(place) for number, place, _ in drawn] == sorted(hashes)[:5]
            left = [document for document, reason in zip(sources[source], reasons, strict=True) if reason is None]
            check_axis(index, source, sorted(left, key=lambda document: document.key), rng)


def check_drops(index: Index, recipe: Recipe, source: int, documents: list[Document], reasons: list[Any]) -> None:
    """Check what is counted of a source, by reason and by step."""
    drops = index.drops[source]
    assert drops.dropped() == Counter(reason for reason in reasons if reason)
    left = [document for document, reason in zip(documents, reasons, strict=True) if reason is None]
    assert asdict(index.count_kept(source)) == count(left)
    assert index.longest[:, source].max() == max((document.length for document in left), default=0)
    decided = [one for one, reason in zip(documents, reasons, strict=True) if not (reason or "").startswith("in block")]
    for preset in recipe.sources[source].clean.presets("mix") if documents else ():
        own = [one for one in decided if any(step_of(why) == preset.name for why in list_broken(one, recipe, source))]
        if preset.limits():
            assert asdict(drops.steps[preset.name].decided) == count(decided)
            assert asdict(drops.steps[preset.name].found) == count(own)
    for step in drops.steps.values():
        for reason, counts in step.reasons.items():
            own = [document for document, why in zip(documents, reasons, strict=True) if why == reason]
            assert asdict(counts) == count(own)


def check_axis(index: Index, source: int, left: list[Document], rng: random.Random) -> None:
    edges = [0, *accumulate(document.length for document in left)]
    axis = Axis(index, source)
    assert axis.total == edges[-1]
    for target in rng.sample(range(edges[-1] + 2), min(20, edges[-1])):
        nearest = min(edges, key=lambda edge: (abs(edge - target), -edge))
        cut = axis.cut(target)
        assert cut.tokens == nearest
        assert sum(document.length for document in left if document.key < cut.key) == nearest


def test_evidence_that_a_later_attempt_wrote_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From a store with costly requests a process keeps it open; the mix may have run again since."""
    monkeypatch.setattr(FolderStore, "request_bytes", 1)
    store, runs = FolderStore(tmp_path), write_runs(tmp_path, corpus_of(3, 3, 100), [[], [], []])
    write_index(tmp_path, Index(runs, make_recipe([1, 1, 1])))
    expected = Evidence(TaskOutput(store), len(runs)).kept(0, 0, 30).tolist()
    assert read_evidence(store, len(runs)) is read_evidence(store, len(runs))
    # Another attempt has its files in a folder, and those of the first are gone.
    (tmp_path / "2").mkdir()
    for name in (EVIDENCE_FILE, CHECKSUMS_FILE):
        (tmp_path / name).rename(tmp_path / "2" / name)
    result = TaskOutput(store).result
    result.folder = "2"
    (tmp_path / RECEIPT_FILE).write_bytes(seal(result))
    assert read_evidence(store, len(runs)).kept(0, 0, 30).tolist() == expected


# --- Runs and cuts ---


@given(st.lists(KEYS, max_size=50), KEYS, KEYS)
def test_a_run_finds_the_documents_between_two_hashes(keys: list[Any], one: Any, other: Any):
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
            tokens = run.read_tokens(rows).tolist() if expected else []
            assert tokens == [token for k in expected for token in Document(k, 2).tokens]


def test_scratch_that_a_disk_changed_is_not_used(tmp_path: Path):
    partitions = Partitions(write_runs(tmp_path, [spread(100)], [[50]]))
    assert partitions.read(0).lengths.tolist() == [10] * 100
    file = partitions.scratch._file  # pyright: ignore[reportPrivateUsage]
    file.seek(1234)
    file.write(b"#")
    with pytest.raises(RunError, match=r"scratch file of the mix differs .* Check it"):
        partitions.read(0)


def spread(number: int, *, start: int = 0) -> list[Document]:
    """Return documents of ten tokens whose hashes are spread evenly."""
    return [Document(((start + i) * 0x9E3779B97F4A7C15 % (1 << 64), i), 10) for i in range(number)]


def test_repeat_is_exact(tmp_path: Path):
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
    assert plan.notes == ("3,000 training tokens: the most that 's0' allows in 3 epochs",)
    (note,) = plan_of(make_recipe([50, 50], tokens="max"), runs)[0].notes
    assert note.endswith("To use all, leave out every `weight`")
    phases = [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}]
    (note,) = plan_of(make_recipe([50, 50], tokens="max", phases=phases, shard_tokens=500), runs)[0].notes
    assert note.endswith("the most that 's0' allows")
    plan, _ = plan_of(make_recipe([50, 50], tokens=3000, when_short="shrink"), runs)
    assert plan.notes == ("1,000 training tokens, not 3,000: the most that 's0' allows",)


def test_a_source_that_no_phase_takes_is_left_out(tmp_path: Path):
    phases = [{"name": "a", "share": 0.5, "weights": {"s0": 0}}, {"name": "b", "share": 0.5, "weights": {"s0": 0}}]
    recipe = make_recipe([2, 1], tokens=400, phases=phases, shard_tokens=100)
    plan, _ = plan_of(recipe, write_runs(tmp_path, [[], spread(50)], [[], []]))
    assert plan.requested_tokens == (0, 400)


def test_a_document_longer_than_a_shard_has_one_of_its_own(tmp_path: Path):
    lengths = [10] * 100 + [5000] + [10] * 100
    runs = write_runs(tmp_path / "runs", [in_order(lengths), spread(700)], [[], []])
    for weights, tokens, found in (([1, 0.0001], [1000, 5000, 1000], 3), ([1.0, 1.0], [1700] * 7, 14)):
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
        (0, 500, 100, 500),  # a source that is asked for is left out
        (0, 6000, 100, 0),  # only where the document would be most of it
    ],
)
def test_validation_ends_near_its_share(tmp_path: Path, before: int, straddling: int, asked: int, taken: int):
    lengths = [10] * before + [straddling] + [10] * 500
    runs = [write_run(tmp_path / "run", 0, in_order(lengths))]
    plan, index = plan_of(make_recipe([1], val_tokens=asked), runs)
    placed = place_documents(plan, runs, index)
    assert sum(item[3] for name, items in placed.items() if name[0] == "val" for item in items) == taken
    train = sum(item[3] for name, items in placed.items() if name[0] == "train" for item in items)
    assert train == sum(lengths) - taken
    assert taken or plan.notes[0].endswith("because the next document would be most of the source: 100 of 's0'")
