"""Training on a set with phases: the order crosses each border between two windows, resumed and on other ranks too."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards import ShardSet, open_set
from shards.errors import InputError
from shards.format.windows.order import WindowOrder, order_split
from tests.support import recipes
from tests.support.builds import build_here
from tests.support.given_windows import GivenWindows, note_given_windows
from trainer.optim import learning_rate
from trainer.phases.pins import pin_to_mix
from trainer.recipe import TrainRecipe, load_train_recipe
from trainer.results.run_plot import draw_run
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
def test_an_epoch_takes_the_phases_in_order_and_each_window_once(sizes, seq_len, seed, epoch, count):
    phases = [f"p{number}" for number, own in enumerate(sizes) for _ in own]
    flat = [size for own in sizes for size in own]
    order = WindowOrder(flat, seq_len=seq_len, seed=seed, phases=phases)
    first = epoch * order.per_epoch
    places = [order.locate(number) for number in range(first, first + order.per_epoch)]
    begins = [order.find_offsets(shard, [epoch])[0] for shard in range(len(flat))]
    expected = {(shard, begins[shard] + w * seq_len) for shard, own in enumerate(order.windows) for w in range(own)}
    assert {(place.shard, place.start) for place in places} == expected
    assert len(places) == len(expected)

    # The phases in order, without a gap; what a reader of a phase finds there is all of it.
    assert [phase.name for phase in order.phases] == list(dict.fromkeys(phases))
    assert [order.phases[0].first, order.phases[-1].stop] == [0, order.per_epoch]
    assert all(before.stop == after.first for before, after in pairwise(order.phases))
    for phase in order.phases:
        assert {phases[place.shard] for place in places[phase.first : phase.stop]} <= {phase.name}

    # Any reader gets the same windows, from wherever it goes on.
    other = WindowOrder(flat, seq_len=seq_len, seed=seed, phases=phases)
    start = first + seed % order.per_epoch
    runs = other.group_by_visit(np.arange(start, start + count))
    found = [(visit.shard, token) for visit, _, starts in runs for token in starts.tolist()]
    assert found == [(place.shard, place.start) for place in map(order.locate, range(start, start + count))]


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory) -> ShardSet:
    """A set of about 7,000 tokens, the last two fifths of them with more code. Read only."""
    folder = tmp_path_factory.mktemp("curriculum")
    rng = random.Random(5)
    for source, words in SOURCES.items():
        texts = [" ".join(rng.choices(words.split(), k=rng.randint(5, 40))) + f" {n}" for n in range(300)]
        lines = [json.dumps({"text": text}) for text in texts]
        (folder / f"{source}.jsonl").write_text("\n".join(lines) + "\n")
    phases = [
        {"name": "main", "share": 0.6, "weights": {"prose": 4}},
        {"name": "last", "share": 0.4, "weights": {"code": 4}},
    ]
    recipe = recipes.write_recipe(
        folder / "recipe.toml",
        *(recipes.source(name, f"{name}.jsonl") for name in SOURCES),
        tokenizer={"vocab_size": 320},
        mix={"tokens": 7000, "phases": phases},
        split={"val_tokens": 500},
        shards={"tokens": 900},
    )
    build_here(recipe, folder / "set")
    return open_set(folder / "set")


@pytest.fixture(scope="module")
def given(curriculum, trainer, recipe_file, tmp_path_factory) -> tuple[Path, GivenWindows]:
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
    assert "of the mix begins, with row" not in stopped.stderr
    assert "phase 'last' of the mix begins, with row" in done.stderr
    return folder, rows


def test_training_crosses_the_border_exactly_there(curriculum, given):
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
                if (np.lib.stride_tricks.sliding_window_view(text, 33) == window).all(axis=1).any()
            ]
            assert len(set(holders)) == 1
            seen.append(holders[0])
    assert seen == ["main"] * main.stop + ["last"] * (BATCH * STEPS - main.stop)


def test_the_log_and_the_metrics_of_a_run_show_the_border(curriculum, given, read_lines, trainer, recipe_file):
    folder, _ = given
    main, _ = order_split(curriculum, seq_len=32, seed=1337).phases
    border = main.stop // BATCH + 1
    lines = read_lines(folder)
    steps = [line for line in lines if "loss" in line]
    assert [line["mix_phases"] for line in steps] == [
        *[[["main", BATCH]]] * (border - 1),
        [["main", main.stop % BATCH], ["last", BATCH - main.stop % BATCH]],
        *[[["last", BATCH]]] * (STEPS - border),
    ]
    # What a validation finds in the mix of each phase is the mean of the sources in the phase's shares.
    validation = [line for line in lines if "val_loss" in line][-1]
    weights = {phase.name: {row.source: row.achieved for row in phase.mix} for phase in curriculum.manifest.phases}
    for name, own in weights.items():
        mean = sum(share * validation["val_loss_by_source"][source] for source, share in own.items())
        assert validation["val_loss_by_mix"][name] == pytest.approx(mean)
    low, high = sorted(validation["val_bits_per_byte_by_source"].values())
    assert all(low < bits < high for bits in validation["val_bits_per_byte_by_mix"].values())

    # The same command again: nothing is left to do, and the outcome has a row for each phase of the mix.
    arguments = ("train", recipe_file, "--shards", curriculum.path, "--run", folder, "--set", "eval.every_steps=100")
    done = trainer.run(*arguments, "--set", "train.micro_batch=2", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["mix_phases"]
    assert [(row["mix_phase"], row["from_step"], row["to_step"]) for row in rows] == [
        ("main", 1, border),
        ("last", border, STEPS),
    ]
    assert rows[0]["val_loss_by_source"].keys() == SOURCES.keys()
    assert rows[1]["val_loss"] == validation["val_loss"]
    own = [line["loss"] for line in steps if line["mix_phases"] == [["last", BATCH]]]
    assert rows[1]["loss"] == pytest.approx(sum(own) / len(own))
    figure = draw_run(lines, load_train_recipe(folder / RECIPE_FILE).phases, title="run")
    axes = figure.axes
    assert [text.get_text() for text in axes[0].texts] == ["mix: main", "mix: last"]
    at = border - 1 + main.stop % BATCH / BATCH
    assert all(at in [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == "-."] for axis in axes)
    bits = next(axis for axis in axes if axis.get_ylabel().startswith("validation bits"))
    labels = {text.get_text()[7:] for text in bits.get_legend().get_texts()}
    assert labels == {*SOURCES, "in the mix of main", "in the mix of last"}


def pin(recipe_file: Path, order: WindowOrder, *overrides: str) -> tuple[TrainRecipe, list[str]]:
    """Return the recipe with its pins, and what is printed of them."""
    said: list[str] = []
    return pin_to_mix(load_train_recipe(recipe_file, list(overrides)), order, said.append), said


def test_a_phase_is_pinned_to_the_last_batch_before_the_border(curriculum, recipe_file):
    order = order_split(curriculum, seq_len=32, seed=1337)

    def ends(phases: str) -> list[tuple[str, int]]:
        return [(one.name, one.until_step) for one in pin(recipe_file, order, phases)[0].phases]

    end, all_ = (phase.stop // BATCH for phase in order.phases)
    both = "phases=[{name='a', until_mix_phase='main'}, {name='b', until_mix_phase='last'}]"
    assert ends(both) == [("a", end), ("b", all_)]
    assert ends("phases=[{name='a', until_mix_phase=1}, {name='b', until_mix_phase=2}]") == [("a", end), ("b", all_)]
    assert ends(f"phases=[{{name='a', until_mix_phase='main', until_step={end}}}]") == [("a", end)]
    for phases, fault in {
        "phases=[{name='a', until_mix_phase='main', until_step=3}]": f"until_step = 3: 'main' ends at step {end} with",
        f"phases=[{{name='a', until_step={end}}}, {{name='b', until_mix_phase='main'}}]": "expected more than",
    }.items():
        with pytest.raises(InputError, match=fault):
            pin(recipe_file, order, phases)
    with pytest.raises(InputError, match=r"until_step: required key is missing\. Give it, or until_mix_phase"):
        pin(recipe_file, order, "phases=[{name='a'}]")
    plain = load_train_recipe(recipe_file)
    assert pin_to_mix(plain, order, print) is plain


WSD = ("schedule.kind=wsd",)


def test_the_cool_down_begins_with_the_first_batch_that_crosses_the_border(curriculum, recipe_file):
    order = order_split(curriculum, seq_len=32, seed=1337)
    border = order.phases[0].stop
    for name in ("last", "2"):
        recipe, said = pin(
            recipe_file,
            order,
            *WSD,
            f"schedule.decay_from_mix_phase={name}",
            "train.steps=0",
            "train.until_mix_phase=last",
        )
        steps = order.phases[1].stop // BATCH
        assert (recipe.train.steps, recipe.schedule.decay_steps) == (steps, steps - border // BATCH)
        assert said[-1].endswith(f": from step {border // BATCH + 1} on")
        rates = [learning_rate(step, recipe) for step in range(steps)]
        # The step whose batch has the border is the first below the peak: step numbers count from 0 here.
        assert next(step for step in range(2, steps) if rates[step] < rates[2]) == border // BATCH
        assert rates[-1] == pytest.approx(0.1 * rates[2])
        # The recorded recipe says both, and is pinned to the same again.
        again = TrainRecipe.model_validate(recipe.model_dump())
        assert pin_to_mix(again, order, said.append) == recipe

    # A border between two batches: the next batch begins the cool-down.
    even = WindowOrder([33 * 33 + 1, 33 * 33 + 1], seq_len=33, seed=1, phases=["main", "last"])
    assert even.phases[0].stop == 32
    recipe, _ = pin(recipe_file, even, *WSD, "schedule.decay_from_mix_phase=last", "train.steps=8")
    assert recipe.schedule.decay_steps == 4

    # A run of more epochs gives the steps of its cool-down itself.
    recipe, _ = pin(recipe_file, even, *WSD, "schedule.decay_steps=4", "train.steps=16")
    assert (recipe.train.steps, recipe.schedule.decay_steps) == (16, 4)


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["schedule.decay_from_mix_phase=web"], "schedule.decay_from_mix_phase = 'web': expected one of main, last"),
        (["schedule.decay_from_mix_phase=3"], "= 3: expected one of main, last, or a number from 1 to 2."),
        (
            ["schedule.decay_from_mix_phase=last", "train.steps=10"],
            "begins in step 17, after the last one, train.steps",
        ),
        (
            ["schedule.decay_from_mix_phase=last", "train.steps=29"],
            "begins in step 17, and training ends after the epoch, train.steps = 29: step 29 has windows of 'main', of "
            "the next epoch. Lower steps to 28, or give decay_steps, the last steps of training, instead.",
        ),
        (
            ["schedule.decay_from_mix_phase=last", "schedule.warmup_steps=18"],
            "begins in step 17, before the end of the warm-up, schedule.warmup_steps = 18. Lower warmup_steps or name",
        ),
        (
            ["schedule.decay_from_mix_phase=last", "schedule.decay_steps=3"],
            "that is decay_steps = 8. Leave one of them",
        ),
        (
            ["train.until_mix_phase=main", "schedule.decay_steps=3"],
            "train.steps = 24: 'main' ends at step 16 with this",
        ),
        (
            ["train.until_mix_phase=main", "train.steps=0", "schedule.decay_steps=3", "schedule.warmup_steps=20"],
            "the warm-up must end within the training run. Lower warmup_steps or raise steps. With this set and batch, "
            "train.until_mix_phase = 'main' is train.steps = 16.",
        ),
    ],
)
def test_a_pin_that_cannot_hold_is_refused(recipe_file, overrides, fault):
    order = WindowOrder([32 * 135 + 1, 32 * 91 + 1], seq_len=32, seed=1, phases=["main", "last"])
    with pytest.raises(InputError) as caught:
        pin(recipe_file, order, *WSD, *overrides)
    (problem,) = caught.value.problems
    assert fault in str(problem)


def test_a_phase_without_a_window_is_refused(curriculum, trainer, recipe_file, tmp_path):
    most = max(shard.num_tokens for shard in curriculum.splits["train"] if shard.entry.phase == "last")
    options = ("--set", f"train.seq_len={most}", "--set", f"model.max_position_embeddings={most}")
    batch = ("--set", "train.global_batch=1", "--set", "train.micro_batch=1")
    done = trainer.run("train", recipe_file, "--shards", curriculum.path, "--run", tmp_path, *options, *batch)  # type: ignore[attr-defined]
    assert done.returncode == 2
    found = f"no shard of phase 'last' of the mix has a window: its longest has {most} tokens"
    assert f"{found}; expected at least seq_len + 1 = {most + 1}. Lower seq_len" in done.stderr
