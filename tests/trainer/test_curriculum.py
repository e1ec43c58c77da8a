"""Training on a set with phases: the order crosses each border between two windows, resumed and on other ranks too."""

import random

import numpy as np
import pytest

from shards import ShardSet, open_set
from shards.format.windows.packed import order_split
from tests.support import recipes
from tests.support.builds import build_here
from tests.support.given_windows import GivenWindows, note_given_windows

BATCH, STEPS = 8, 24
SOURCES = {"prose": "the mill turns a stream of words into flour", "code": "def grind ( grain ) : return [ stone ]"}


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory) -> ShardSet:
    """A set of about 7,000 tokens, the last two fifths of them with more code. Read only."""
    folder = tmp_path_factory.mktemp("curriculum")
    rng = random.Random(5)
    for source, words in SOURCES.items():
        texts = [" ".join(rng.choices(words.split(), k=rng.randint(5, 40))) + f" {n}" for n in range(300)]
        recipes.write_texts(folder / f"{source}.jsonl", texts)
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
def given(curriculum, train, tmp_path_factory) -> GivenWindows:
    """A run that stopped at the end of `main` and went on with other micro-batches; what each step was given."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    end = order_split(curriculum, seq_len=32, seed=1337).phases[0].stop // BATCH
    stop = f"phases=[{{name = 'grow', until_step = {end}, goal = 'loss < 0'}}]"
    with note_given_windows() as rows:
        train(folder, "eval.every_steps=100", "train.micro_batch=4", stop, shards=curriculum, status=3)
        done = train(folder, "eval.every_steps=100", "train.micro_batch=2", shards=curriculum)
    assert "resumed from" in done.stderr
    row = order_split(curriculum, seq_len=32, seed=1337).phases[0].stop % BATCH - 1
    assert "phase 'main' of the mix: " in done.stderr
    assert f"its last window is row {row} of step {end + 1}" in done.stderr
    return rows


def test_training_crosses_the_border_exactly_there(curriculum, given):
    shards = curriculum.splits["train"]
    main, last = order_split(curriculum, seq_len=32, seed=1337).phases
    assert (main.stop % BATCH, last.first) != (0, 0)  # the border lies in a batch
    assert main.stop < BATCH * STEPS < last.stop
    # Where each window of the run lies in the set: the phase of the shards that hold its tokens.
    tokens = {phase: [shard.read() for shard in shards if shard.entry.phase == phase] for phase in ("main", "last")}
    seen: list[str] = []
    for step in range(1, STEPS + 1):
        for window in given[step]:
            holders = [
                phase
                for phase, own in tokens.items()
                for text in own
                if (np.lib.stride_tricks.sliding_window_view(text, 33) == window).all(axis=1).any()
            ]
            assert len(set(holders)) == 1
            seen.append(holders[0])
    assert seen == ["main"] * main.stop + ["last"] * (BATCH * STEPS - main.stop)


def test_a_phase_without_a_window_is_refused(curriculum, train, tmp_path):
    most = max(shard.num_tokens for shard in curriculum.splits["train"] if shard.entry.phase == "last")
    changes = (f"train.seq_len={most}", f"model.max_position_embeddings={most}")
    changes += ("train.global_batch=1", "train.micro_batch=1")
    done = train(tmp_path, *changes, shards=curriculum, status=2)
    found = f"no shard of phase 'last' of the mix has a window: its longest has {most} tokens"
    assert f"{found}; expected at least seq_len + 1 = {most + 1}. Lower seq_len" in done.stderr
