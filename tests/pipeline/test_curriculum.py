"""The phases of a mix: exact shares over each and in every shard, a document in one only; faults of recipes."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine.checksums import seal, unseal
from pipeline.mix.cuts import cut_sources
from pipeline.mix.index import Index
from pipeline.mix.mix_plan import MixPlan
from pipeline.recipe.schema import Recipe
from pipeline.recipe.shares import Demand
from shards.errors import InputError
from tests.support.builds import temporary_folder
from tests.support.runs import Document, corpus_of, keep_first, make_recipe, place_documents, write_runs

CORPORA = st.builds(corpus_of, st.integers(0, 1 << 32), st.integers(1, 3), st.integers(20, 150))
MAIN = {"name": "main", "share": 0.9}
LAST = {"name": "last", "share": 0.1, "weights": {"s0": 1, "s1": 9}}


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


def share_in(recipe: Recipe, phase: int) -> list[Fraction]:
    """Reference: the share of each source in a phase."""
    given = recipe.mix.phases[phase].weights
    weights = [Fraction(str(given.get(source.name, source.weight))) for source in recipe.sources]
    return [weight / sum(weights) for weight in weights]


@settings(max_examples=100, deadline=None)
@given(
    sources=CORPORA,
    phases=curricula(),
    when_short=st.sampled_from(["shrink", "repeat"]),
    tokens=st.one_of(st.just("max"), st.integers(50, 5000)),
    val_tokens=st.sampled_from([0, 30]),
    shard_tokens=st.integers(5, 300),
)
def test_every_phase_keeps_its_shares(
    sources: list[list[Document]],
    phases: list[dict[str, Any]],
    when_short: str,
    tokens: Any,
    val_tokens: int,
    shard_tokens: int,
) -> None:
    names = {f"s{index}" for index in range(len(sources))}
    phases = [{**one, "weights": {k: w for k, w in one["weights"].items() if k in names}} for one in phases]
    mix = {"tokens": tokens, "when_short": when_short, "max_epochs": 3, "phases": phases}
    recipe = make_recipe([5, 3, 2][: len(sources)], val_tokens=val_tokens, shard_tokens=shard_tokens, **mix)
    shares = [[Fraction(0)] * len(sources)] * len(phases)
    try:
        shares = [share_in(recipe, number) for number in range(len(phases))]
    except ZeroDivisionError:
        return  # a recipe that the checks refuse
    if not all(map(any, zip(*shares, strict=True))):
        return
    with temporary_folder() as folder:
        runs = write_runs(Path(folder), sources, [[7], [], []])
        index = Index(runs, len(sources))
        try:
            plan = cut_sources(recipe, index)
        except InputError:
            return
        placed = place_documents(plan, runs, index)
    assert unseal(seal(plan), MixPlan) == plan
    longest = Counter[int]()
    for items in placed.values():
        for source, _, _, length in items:
            longest[source] = max(longest[source], length)

    # The shards of a phase follow each other, and each phase has its shares: over all of it and in every shard.
    train = [shard for shard in plan.shards if shard.split == "train"]
    assert [shard.index for shard in train] == list(range(len(train)))
    assert list(dict.fromkeys(shard.phase for shard in train)) == [phase["name"] for phase in phases]
    ends = [0, *accumulate(Fraction(str(phase["share"])) * plan.train_tokens for phase in phases)]
    seen: set[Any] = set()
    for number, (begin, end) in enumerate(pairwise(ends)):
        own = [placed["train", shard.index] for shard in train if shard.phase == f"p{number}"]
        assert own
        assert all(own)
        for source, share in enumerate(shares[number]):
            held = [sum(length for of, _, _, length in items if of == source) for items in own]
            assert abs(sum(held) - share * (end - begin)) <= longest[source] + 2
            assert all(abs(tokens - share * (end - begin) / len(own)) <= longest[source] + 2 for tokens in held)
            assert share or not sum(held)
        documents = [(of, epoch, key) for items in own for of, epoch, key, _ in items]
        assert len(set(documents)) == len(documents)
        assert not seen & set(documents)
        seen |= set(documents)
    if when_short == "shrink":
        assert all(epoch == 0 for _, epoch, _ in seen)
        kept = keep_first(sources)
        if tokens == "max":
            used = [sum(1 for items in placed.values() for of, *_ in items if of == s) for s in range(len(kept))]
            assert any(used[s] == len(own) for s, own in enumerate(kept)), "some source binds, and all of it is used"


def test_what_phases_demand_of_the_sources() -> None:
    recipe = make_recipe([1, 1], val_tokens=1000, tokens=10_000, phases=[MAIN, LAST])
    demand = Demand(recipe)
    assert demand.shares.fractions == (Fraction("0.46"), Fraction("0.54"))
    assert [demand.val_tokens(source) for source in (0, 1)] == [460, 540], "validation has the shares of the whole set"
    assert demand.phase_tokens(10_000) == [9000, 1000]
    assert [demand.shares.of(source, 10_000) for source in (0, 1)] == [4600, 5400]
    fault = demand.grant([9000, 5000]).fault
    assert "source 's1': has 5,000 tokens for training; its share of 10,000 is 5,400" in fault
    recipe = make_recipe([1, 1], tokens=10_000, shard_tokens=1000, when_short="shrink", phases=[MAIN, LAST])
    assert Demand(recipe).grant([9000, 5400]).fault == ""
    fault = Demand(recipe).grant([9000, 2700]).fault
    assert fault.startswith("mix.phases.last: 0.1 of 5,000 training tokens is 500, less than a shard of 1,000")
    assert "Lower shards.tokens to at most 500" in fault
