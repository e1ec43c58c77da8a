"""Builds with every kind of cleaning on: moved limits, workers, a bucket and kills in every stage change no byte.

# pyright: basic

Ray and Slurm build the same recipe in `test_ray.py` and `test_slurm.py`.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from shards import open_set
from tests.support.builds import build_here, digests, digests_in, run_build
from tests.support.cleaned_recipe import language_model
from tests.support.started import attempts, kill_in

pytestmark = pytest.mark.long


EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
STAGES = ("evaluations", "tokenizer", "encode", "bands", "pairs", "similar", "mix", "assemble")
NOT_RUN = dict.fromkeys(STAGES[:-2], 0)
"""What a moved limit of the mix does not run again."""
MOVED = [
    "clean.gopher.min_words=30",
    "clean.gopher.max_words=300",
    "clean.gopher.min_stop_words=off",
    "clean.c4.max_curly_brackets=off",
    "clean.code.max_longest_line_bytes=400",
    "sources.notes.clean.fineweb.min_punctuated_lines=0.2",
    "clean.near_duplicates.min_jaccard=0.9",
    "evaluations.dropped.action=report",
    "evaluations.reported.action=drop",
    "evaluations.reported.max_dropped=1",
]


def overrides(keys: list[str]) -> list[str]:
    return [part for key in keys for part in ("--set", key)]


@pytest.fixture(scope="module")
def built(cleaned: Path, expected_cleaned: dict[str, str]) -> dict[str, Any]:
    """Return the result of the build, for which nothing is left to do."""
    result = build_here(cleaned, cleaned.parent / "set")
    assert result["tasks_run"] == 0
    assert digests(cleaned.parent / "set") == expected_cleaned
    return result


def test_every_kind_of_cleaning_is_at_work_and_a_column_is_carried(built: dict[str, Any], cleaned: Path) -> None:
    reasons = {reason for source in built["sources"] for reason in source["dropped"]}
    steps = {reason.partition(":")[0] for reason in reasons}
    assert steps >= {"gopher", "c4", "fineweb", "code", "near-duplicate", "duplicate of another source"}
    assert ("language" in steps) == (language_model() is not None)
    assert "holds an item of dropped" in reasons
    assert built["masked"].keys() == {"prose", "notes", "code"}
    assert built["ran"].keys() == set(STAGES)
    urls = [
        url for shard in open_set(cleaned.parent / "set").shards for url in shard.documents(["url"])["url"].to_pylist()
    ]
    assert None in urls
    assert len({url for url in urls if url is not None and url.startswith("https://a.example/")}) > 50


def test_two_workers_and_a_bucket_change_no_byte(cleaned: Path, expected_cleaned: dict[str, str], bucket: str) -> None:
    run_build(cleaned, f"{bucket}/set", "--workers", "2")
    assert digests_in(f"{bucket}/set") == expected_cleaned


def test_moved_limits_mix_and_assemble_again_and_nothing_else(
    cleaned: Path, expected_cleaned: dict[str, str], tmp_path: Path
) -> None:
    for name in ("set", "set.work"):
        shutil.copytree(cleaned.parent / name, tmp_path / name)
    moved = build_here(cleaned, tmp_path / "set", *overrides(MOVED))
    assert moved["ran"] == NOT_RUN | {"mix": 1, "assemble": moved["ran"]["assemble"]}
    assert moved["ran"]["assemble"] > 0
    run_build(tmp_path / "set/recipe.json", tmp_path / "scratch", "--workers", "2")
    assert digests(tmp_path / "set") == digests(tmp_path / "scratch") != expected_cleaned
    before = build_here(cleaned, tmp_path / "set")
    assert digests(tmp_path / "set") == expected_cleaned
    assert before["ran"] == NOT_RUN | {"mix": 0, "assemble": 0}  # what the set published before used is kept


@pytest.mark.timeout(600)
def test_killed_in_every_stage_it_ends_with_the_same_bytes(
    cleaned: Path, expected_cleaned: dict[str, str], tmp_path: Path
) -> None:
    """Four kills; with `TOKENMILL_EXHAUSTIVE_TESTS` twenty, in all stages."""
    out, rng = tmp_path / "set", random.Random(12)
    stages = [*STAGES, *STAGES, *STAGES[2:6]] if EXHAUSTIVE else ["encode", "bands", "pairs", "similar"]
    for stage in sorted(stages, key=STAGES.index):
        while not kill_in(stage, cleaned, out, rng.uniform(0, 0.01)):
            shutil.rmtree(tmp_path / "set.work" / stage)  # its tasks had finished: they run again
    build_here(cleaned, out)
    assert digests(out) == expected_cleaned
    assert not attempts(*(tmp_path / "set.work" / stage for stage in STAGES), out)
