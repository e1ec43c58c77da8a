"""A work folder keeps what the set published before used: going back runs nothing again. `prune` removes it."""

# pyright: basic

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from shards.stores.files import lock_folder
from tests.support.builds import build_here, call_here, digests
from tests.support.small_recipe import write_small_recipe

OTHER = ("--set", "tokenizer.vocab_size=290")
THIRD = ("--set", "tokenizer.vocab_size=280")
STAGES = ("tokenizer", "encode", "mix", "assemble")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_small_recipe(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "set"


def tasks_in(out: Path) -> dict[str, set[str]]:
    """Return the tasks that the work folder holds, by stage."""
    work = out.with_name(f"{out.name}.work")
    return {stage: {path.name for path in (work / stage).iterdir() if path.is_dir()} for stage in STAGES}


def prune(out: Path, *options: str) -> dict[str, Any]:
    done = call_here(main, "prune", f"{out}.work", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_going_back_runs_nothing(recipe: Path, out: Path) -> None:
    first = build_here(recipe, out)
    before = digests(out)
    assert build_here(recipe, out, *OTHER)["tasks_run"] == first["tasks_run"]
    other = digests(out)
    for _ in range(2):
        dry = build_here(recipe, out, "--dry-run")
        assert dry["stages"] == []
        assert digests(out) == other
        back = build_here(recipe, out)
        assert (back["tasks_run"], back["problems"], digests(out)) == (0, [], before)
        assert "put the shards of 4 tasks back" in back["stderr"]
        forth = build_here(recipe, out, *OTHER)
        assert (forth["tasks_run"], forth["problems"], digests(out)) == (0, [], other)
    build_here(recipe, out)
    shutil.rmtree(out)
    build_here(recipe, out, *OTHER)
    assert digests(out) == other, "also into an output folder that was deleted"
    # What no other set has published since is compared with what is asked now.
    third = build_here(recipe, out, *THIRD, "--dry-run")
    assert third["stages"][0]["causes"] == ["tokenizer.vocab_size = 280 (was 290)"]


def test_only_the_set_before_is_kept(recipe: Path, out: Path) -> None:
    build_here(recipe, out)
    first = tasks_in(out)
    build_here(recipe, out, *OTHER)
    both = tasks_in(out)
    assert all(first[stage] < both[stage] for stage in STAGES)
    build_here(recipe, out, "--tokens", "1M", *THIRD, expect=2)  # publishes nothing, and removes nothing
    assert all(both[stage] <= tasks_in(out)[stage] for stage in STAGES)
    build_here(recipe, out, *THIRD)
    assert all(not first[stage] & tasks_in(out)[stage] for stage in STAGES)
    assert build_here(recipe, out, *THIRD)["tasks_run"] == 0  # the same set once more is not a set before it
    assert build_here(recipe, out, *OTHER)["tasks_run"] == 0


def test_shards_that_changed_meanwhile_are_not_put_back(recipe: Path, out: Path) -> None:
    build_here(recipe, out)
    before = digests(out)
    build_here(recipe, out, *OTHER)
    kept = next((out.with_name("set.work") / "assemble").glob("*/train-00001.bin.zst"))
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    back = build_here(recipe, out)
    assert back["ran"] == {"tokenizer": 0, "encode": 0, "mix": 0, "assemble": 1}
    assert digests(out) == before


def test_a_budget_of_nothing_keeps_nothing(recipe: Path, out: Path) -> None:
    build_here(recipe, out)
    first = tasks_in(out)
    other = build_here(recipe, out, *OTHER, "--keep", "0")
    assert all(not first[stage] & tasks_in(out)[stage] for stage in STAGES)
    (note,) = (note for note in other["notes"] if note.startswith("encode: the results of the set before are not kept"))
    assert re.search(r": [1-9][\d.]* kB, more than the 0 B that --keep leaves$", note)
    small = build_here(recipe, out, "--keep", "30 KB")
    assert not any(note.startswith("tokenizer:") for note in small["notes"] if "not kept" in note)


def test_prune_keeps_what_the_last_published_set_used(recipe: Path, out: Path) -> None:
    build_here(recipe, out)
    build_here(recipe, out, *OTHER)
    used = digests(out)
    build_here(recipe, out, "--tokens", "1M", *THIRD, expect=2)
    before = tasks_in(out)
    shown = prune(out, "--dry-run")
    assert tasks_in(out) == before
    assert {one["stage"]: one["tasks"] for one in shown["removed"]} == {
        "tokenizer": 2,
        "encode": 2,
        "mix": 2,
        "assemble": 4,
    }
    assert sum(one["bytes"] for one in shown["removed"]) > 10_000
    assert prune(out) == shown | {"dry_run": False}
    assert prune(out)["removed"] == []
    assert digests(out) == used
    assert build_here(recipe, out, *OTHER)["tasks_run"] == 0
    assert build_here(recipe, out)["ran"]["tokenizer"] == 1


def test_what_cannot_be_pruned_is_refused(recipe: Path, out: Path, tmp_path: Path) -> None:
    done = call_here(main, "prune", tmp_path / "nothing")
    assert (done.returncode, "no such folder" in done.stderr) == (2, True)
    build_here(recipe, out)
    with lock_folder(tmp_path / "set.work"):
        assert call_here(main, "prune", tmp_path / "set.work").returncode == 2
    (tmp_path / "set.work/stages.json").unlink()
    done = call_here(main, "prune", tmp_path / "set.work")
    assert (done.returncode, "no set is known" in done.stderr) == (2, True)


def test_a_bucket_keeps_all_but_the_shards(recipe: Path, bucket: str) -> None:
    first = build_here(recipe, f"{bucket}/set")
    assert build_here(recipe, f"{bucket}/set", *OTHER)["ran"] == first["ran"]
    assert build_here(recipe, f"{bucket}/set")["ran"] == {"tokenizer": 0, "encode": 0, "mix": 0, "assemble": 4}
    assert call_here(main, "prune", f"{bucket}/set.work").returncode == 0
    assert build_here(recipe, f"{bucket}/set")["tasks_run"] == 0
    assert build_here(recipe, f"{bucket}/set", *OTHER)["ran"] == first["ran"]
