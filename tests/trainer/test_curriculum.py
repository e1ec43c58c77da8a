"""Training on a set with phases: the order crosses each border between two windows, resumed and on other ranks too."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards import ShardSet, open_set
from shards.errors import InputError
from shards.format.order import WindowOrder, order_split
from tests.support.builds import build_here
from tests.support.given_windows import GivenWindows, note_given_windows
from tests.support.ranks import ReadLines, assert_near, run_ranks
from trainer.phases import pin_phases
from trainer.recipe import load_recipe
from trainer.run_folder import RECIPE_FILE

BATCH, STEPS = 8, 24
SOURCES = {"prose": "the mill turns a stream of words into flour", "code": "def grind ( grain ) : return [ stone ]"}

shards_of_phases = st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=4), min_size=1, max_size=4).filter(
    lambda phases: max(map(max, phases)) > 20
)


@settings(max_examples=100, deadline=None)
@given(
    sizes=shards_of_phases,
    seq_len=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2),
    count=st.integers(1, 30),
)
def test_an_epoch_takes_the_phases_in_order_and_each_window_once(
    sizes: list[list[int]], seq_len: int, seed: int, epoch: int, count: int
):
    phases = [f"p{number}" for number, own in enumerate(sizes) for _ in own]
    flat = [size for own in sizes for size in own]
    order = WindowOrder(flat, seq_len=seq_len, seed=seed, phases=phases)
    first = epoch * order.per_epoch
    places = [order.locate(number) for number in range(first, first + order.per_epoch)]
    expected = {(shard, w * seq_len) for shard, size in enumerate(flat) for w in range(max(0, size - 1) // seq_len)}
    assert {(place.shard, place.start) for place in places} == expected
    assert len(places) == len(expected)

    # The phases in order, without a gap; what a reader of a phase finds there is all of it.
    assert [phase.name for phase in order.phases] == list(dict.fromkeys(phases))
    assert [order.phases[0].first, order.phases[-1].stop] == [0, order.per_epoch]
    assert all(before.stop == after.first for before, after in pairwise(order.phases))
    for phase in order.phases:
        assert {phases[place.shard] for place in places[phase.first : phase.stop]} <= {phase.name}
    assert sum(phase.cropped for phase in order.phases) == order.cropped

    # Any reader gets the same windows, from wherever it goes on.
    other = WindowOrder(flat, seq_len=seq_len, seed=seed, phases=phases)
    start = first + seed % order.per_epoch
    runs = [(visit, starts) for visit, starts in other.iter_visits(start, count)]
    found = [(visit.shard, token) for visit, starts in runs for token in starts.tolist()]
    assert found == [(place.shard, place.start) for place in map(order.locate, range(start, start + count))]


def test_one_phase_is_read_as_none():
    sizes = [100, 70, 120, 3, 50]
    orders = [WindowOrder(sizes, seq_len=7, seed=5, phases=phases) for phases in ((), ["all"] * 5)]
    places = [[order.locate(number) for number in range(100)] for order in orders]
    assert places[0] == places[1]
    assert orders[0].phases == ()


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    """A set of about 7,000 tokens, the last two fifths of them with more code. Read only."""
    folder = tmp_path_factory.mktemp("curriculum")
    rng = random.Random(5)
    for source, words in SOURCES.items():
        texts = [" ".join(rng.choices(words.split(), k=rng.randint(5, 40))) + f" {n}" for n in range(300)]
        lines = [json.dumps({"text": text}) for text in texts]
        (folder / f"{source}.jsonl").write_text("\n".join(lines) + "\n")
    sources = "".join(f'[[sources]]\nname = "{name}"\npaths = ["{name}.jsonl"]\nweight = 1\n' for name in SOURCES)
    (folder / "recipe.toml").write_text(
        'name = "curriculum"\n' + sources + "[tokenizer]\nvocab_size = 320\n"
        '[mix]\ntokens = 7_000\n[[mix.phases]]\nname = "main"\nshare = 0.6\nweights = { prose = 4 }\n'
        '[[mix.phases]]\nname = "last"\nshare = 0.4\nweights = { code = 4 }\n'
        "[split]\nval_tokens = 500\n[shards]\ntokens = 900\n"
    )
    build_here(folder / "recipe.toml", folder / "set")
    return open_set(folder / "set")


@pytest.fixture(scope="module")
def given(
    curriculum: ShardSet, trainer: Any, recipe_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, GivenWindows]:
    """A run that stopped at the end of `main` and went on with other micro-batches; what each step was given."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    arguments = ("train", recipe_file, "--shards", curriculum.path, "--run", folder, "--set", "eval.every_steps=100")
    stop = ("--set", "phases=[{name = 'grow', until_mix_phase = 'main', goal = 'loss < 0'}]")
    with note_given_windows() as rows:
        stopped = trainer.run(*arguments, *stop, "--set", "train.micro_batch=4")
        assert stopped.returncode == 3, stopped.stderr
        done = trainer.run(*arguments, "--set", "train.micro_batch=2")
        assert done.returncode == 0, done.stderr
    assert "resumed from" in done.stderr
    return folder, rows


def test_training_crosses_the_border_exactly_there(curriculum: ShardSet, given: tuple[Path, GivenWindows]):
    _, rows = given
    shards = curriculum.splits["train"]
    main, last = order_split(curriculum, seq_len=32, seed=1337).phases
    assert (main.stop % BATCH, last.first) != (0, 0)  # the border lies in a batch
    assert main.stop < BATCH * STEPS < last.stop
    # Where each window of the run lies in the set: the phase of the shards that hold its tokens.
    tokens = {phase: [shard.read() for shard in shards if shard.entry.phase == phase] for phase in ("main", "last")}
    seen: list[str] = []
    for step in range(1, STEPS + 1):
        for window in rows[step]:
            holders = [
                phase
                for phase, own in tokens.items()
                for text in own
                if (np.lib.stride_tricks.sliding_window_view(text, 33)[::32] == window).all(axis=1).any()
            ]
            assert len(set(holders)) == 1
            seen.append(holders[0])
    assert seen == ["main"] * main.stop + ["last"] * (BATCH * STEPS - main.stop)


@pytest.mark.long
def test_two_ranks_go_on_across_the_border_as_one_rank_throughout(
    curriculum: ShardSet, trainer: Any, recipe_file: Path, read_lines: ReadLines, tmp_path: Path
):
    whole, part = tmp_path / "whole", tmp_path / "part"
    done = trainer.run("train", recipe_file, "--shards", curriculum.path, "--run", whole)
    assert done.returncode == 0, done.stderr
    assert "phase 'main' of the mix: " in done.stderr
    arguments = ("train", recipe_file, "--shards", curriculum.path, "--run", part)
    stop = ("--set", "phases=[{name = 'grow', until_mix_phase = 'main', goal = 'loss < 0'}]")
    assert trainer.run(*arguments, *stop).returncode == 3
    end = order_split(curriculum, seq_len=32, seed=1337).phases[0].stop // BATCH
    (pinned,) = load_recipe(part / RECIPE_FILE).phases
    assert (pinned.until_mix_phase, pinned.until_step) == ("main", end)
    resumed = run_ranks(*arguments, "--set", "train.micro_batch=1")
    assert resumed.returncode == 0, resumed.stderr
    lines = [line for line in read_lines(part) if "val_loss" not in line or line["step"] % 4 == 0]
    (part / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_near(part, whole, read_lines)


def test_the_torch_datasets_take_the_phases_in_order_on_any_ranks(curriculum: ShardSet):
    from shards.torch import TokenStream, TokenWindows

    windows = TokenWindows(curriculum, seq_len=32)
    shards, order = curriculum.splits["train"], order_split(curriculum, seq_len=32, seed=1337)
    places = [order.locate(number) for number in range(len(windows))]
    assert [shards[place.shard].entry.phase for place in places] == [
        phase.name for phase in order.phases for _ in range(phase.stop - phase.first)
    ]
    tokens = [shard.read() for shard in shards]
    for number, place in enumerate(places):
        expected = tokens[place.shard][place.start : place.start + 32].tolist()
        assert windows[number]["input_ids"].tolist() == expected

    # One rank until shortly before the border, then three ranks until after it.
    whole = [window["input_ids"].tolist() for window in TokenStream(curriculum, seq_len=32, rank=0, world_size=1)]
    stop = order.phases[0].stop - 4
    state = TokenStream(curriculum, seq_len=32, rank=0, world_size=1).state_dict() | {"samples": stop}
    parts: list[list[list[int]]] = []
    for rank in range(3):
        stream = TokenStream(curriculum, seq_len=32, rank=rank, world_size=3)
        stream.load_state_dict(state)
        parts.append([window["input_ids"].tolist() for window in stream])
    rest = whole[stop:]
    assert sorted(map(tuple, rest)) == sorted(tuple(row) for part in parts for row in part)
    assert all(part[:2] == [rest[rank], rest[3 + rank]] for rank, part in enumerate(parts))


def test_a_phase_is_pinned_to_the_last_batch_before_the_border(curriculum: ShardSet, recipe_file: Path):
    order = order_split(curriculum, seq_len=32, seed=1337)

    def pin(phases: str) -> list[tuple[str, int]]:
        return [(one.name, one.until_step) for one in pin_phases(load_recipe(recipe_file, [phases]), order).phases]

    end, all_ = (phase.stop // BATCH for phase in order.phases)
    both = "phases=[{name='a', until_mix_phase='main'}, {name='b', until_mix_phase='last'}]"
    assert pin(both) == [("a", end), ("b", all_)]
    assert pin(f"phases=[{{name='a', until_mix_phase='main', until_step={end}}}]") == [("a", end)]
    for phases, fault in {
        "phases=[{name='a', until_mix_phase='web'}]": "phases.a.until_mix_phase = 'web': expected one of main, last",
        "phases=[{name='a', until_mix_phase='main', until_step=3}]": f"until_step = 3: 'main' ends at step {end} with",
        f"phases=[{{name='a', until_step={end}}}, {{name='b', until_mix_phase='main'}}]": "expected more than",
    }.items():
        with pytest.raises(InputError, match=fault):
            pin(phases)
    with pytest.raises(InputError, match=r"until_step: required key is missing\. Give it, or until_mix_phase"):
        pin("phases=[{name='a'}]")
    plain = WindowOrder([1000], seq_len=32, seed=1)
    with pytest.raises(InputError, match="the set's mix has no phases; give until_step"):
        pin_phases(load_recipe(recipe_file, [both]), plain)


def test_a_phase_without_a_window_is_refused(
    curriculum: ShardSet, trainer: Callable[..., Any], recipe_file: Path, tmp_path: Path
):
    most = max(shard.num_tokens for shard in curriculum.splits["train"] if shard.entry.phase == "last")
    options = ("--set", f"train.seq_len={most}", "--set", f"model.max_position_embeddings={most}")
    batch = ("--set", "train.global_batch=1", "--set", "train.micro_batch=1")
    done = trainer.run("train", recipe_file, "--shards", curriculum.path, "--run", tmp_path, *options, *batch)  # type: ignore[attr-defined]
    assert done.returncode == 2
    assert "no shard of phase 'last' has a window of" in done.stderr
