"""From a training step to documents: a real run's batches, resumed and in other micro-batches, against the traced."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from shards import ShardSet
from tests.support.builds import read_json
from tests.support.given_windows import GivenWindows, note_given_windows
from tests.trainer.conftest import build_set

STEPS, BATCH = 13, 8


@pytest.fixture(scope="module")
def small_set(tmp_path_factory) -> ShardSet:
    """A set of about 60 windows, so that the run comes to a second epoch. Read only."""
    folder = tmp_path_factory.mktemp("sets") / "small"
    return build_set(folder, shard_tokens={"train": [700, 1_300], "val": [300]})


@pytest.fixture(scope="module")
def run(train, small_set, tmp_path_factory) -> tuple[Path, GivenWindows]:
    """A run that was stopped and went on with other micro-batches; and what the model was given in each step."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with note_given_windows() as given:
        for steps, size in ((5, 2), (STEPS, 4)):
            changes = ("eval.every_steps=100", f"train.steps={steps}", f"train.micro_batch={size}")
            done = train(folder, *changes, shards=small_set)
    assert "resumed from" in done.stderr
    assert {step: len(rows) for step, rows in given.items()} == dict.fromkeys(range(1, STEPS + 1), BATCH)
    return folder, given


@pytest.fixture
def copied_run(run, tmp_path) -> Path:
    """The run's folder, to be spoilt."""
    return shutil.copytree(run[0], tmp_path / "run")


@pytest.fixture
def trace(trainer) -> Callable[..., tuple[int, Any, str]]:
    """Return the function that runs `trace-step`: exit status, JSON, stderr."""

    def call(*arguments: object) -> tuple[int, Any, str]:
        done = trainer.run("trace-step", *arguments, "--json")
        return done.returncode, done.json, done.stderr

    return call


def test_steps_and_rows_lead_to_the_documents_that_were_in_the_batch(run, small_set, trace):
    folder, given = run
    decode = small_set.vocabulary.decode
    epochs: set[int] = set()
    for step, batch in given.items():
        status, found, err = trace(folder, "--step", step, "--limit", 0)
        assert (status, err, found["rows"]) == (0, "", BATCH)
        assert found["tokens"] == BATCH * 33 == sum(source["tokens"] for source in found["sources"].values())
        for row, window in enumerate(batch):
            tokens: list[int] = []
            for document in (shown for shown in found["shown"] if shown["batch_row"] == row):
                shard = small_set.shard(document["shard"])
                whole = shard.read(document["start"], document["start"] + document["tokens"]).tolist()
                first, last = document["position"], document["position"] + document["in_window"]
                assert xxhash.xxh3_128_hexdigest(decode(whole[:-1])) == document["hash"]
                assert document["hit"].encode() == decode(whole[first:last])
                assert decode(whole[:first]).endswith(document["before"].encode())
                assert decode(whole[last:-1]).startswith(document["after"].encode())
                assert whole.index(small_set.eos_id) == len(whole) - 1
                tokens += whole[first:last]
                epochs.add(document["epoch"])
            assert tokens == window
    assert epochs == {0, 1}


def test_block_list_and_counts_are_of_all_documents_whatever_is_shown(run, trace, tmp_path):
    _, whole, _ = trace(run[0], "--step", 2, "--limit", 0)
    _, found, _ = trace(run[0], "--step", 2, "--limit", 1, "--out", tmp_path / "block.txt")
    hashes = {document["hash"]: document["source"] for document in whole["shown"]}
    lines = (tmp_path / "block.txt").read_text().splitlines()
    assert lines[3:] == sorted(hashes)
    assert lines[2] == f"# found by tokenmill trace-step {run[0]} --step 2"
    assert found["hashes"] == found["documents"] == len(hashes) < found["parts"] == len(whole["shown"])
    by_source = {name: list(hashes.values()).count(name) for name in found["sources"]}
    assert {name: counts["documents"] for name, counts in found["sources"].items()} == by_source


def test_a_step_that_is_not_taken_yet_is_told(copied_run, trace):
    recipe = read_json(copied_run / "recipe.json")
    recipe["train"]["steps"] = STEPS + 1
    (copied_run / "recipe.json").write_text(json.dumps(recipe))
    status, found, err = trace(copied_run, "--step", STEPS + 1)
    assert (status, found["rows"]) == (0, BATCH)
    assert f"step {STEPS + 1} has not run yet" in err
    status, _, err = trace(copied_run, "--step", STEPS + 2)
    assert status == 2
    assert f"no step {STEPS + 2} in {copied_run}; its recipe has {STEPS + 1}" in err
    # A recipe that was shortened later does not hide steps that were taken.
    recipe["train"]["steps"] = 4
    (copied_run / "recipe.json").write_text(json.dumps(recipe))
    assert trace(copied_run, "--step", STEPS)[0] == 0


def test_a_set_that_has_moved_is_named_and_no_checkpoint_is_needed(copied_run, shard_set, small_set, trace, tmp_path):
    _, expected, _ = trace(copied_run, "--step", 1)
    shutil.rmtree(copied_run / "checkpoints")
    record = read_json(copied_run / "run.json")
    assert (record["shards"], record["manifest_sha256"]) == (str(small_set.path), small_set.manifest_sha256)
    (copied_run / "run.json").write_text(json.dumps(record | {"shards": str(tmp_path / "gone")}))
    status, _, err = trace(copied_run, "--step", 1)
    assert status == 2
    assert f"was trained on {tmp_path / 'gone'}, which is not there. Add --shards SET." in err
    assert trace(copied_run, "--step", 1, "--shards", small_set.path) == (0, expected, "")
    other = f"has the manifest sha256 {shard_set.manifest_sha256}; the run was trained on {small_set.manifest_sha256}"
    assert other in trace(copied_run, "--step", 1, "--shards", shard_set.path)[2]
