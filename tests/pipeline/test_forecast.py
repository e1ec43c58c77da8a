"""Before its first task a build says which tasks run again, how long they take, and which key or file is the cause."""

# pyright: basic

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.builder.records import find_changes, name_parts
from pipeline.engine.tasks import JsonText, make_task
from shards.stores.files import lock_folder
from tests.support.builds import build_here, call_here
from tests.support.small_recipe import write_small_recipe


def state_of(folder: Path) -> dict[str, Any]:
    """Return every file and folder below a folder, with its time and size."""
    found = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {str(path): (facts.st_mtime_ns, facts.st_size, facts.st_ino) for path, facts in found.items()}


def forecast(recipe: Path, out: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Return the stages that a dry run names; check that it changes no file."""
    before = state_of(recipe.parent)
    found = build_here(recipe, out, "--dry-run", *options)
    assert state_of(recipe.parent) == before
    return {stage["stage"]: stage for stage in found["stages"]}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_small_recipe(tmp_path)


def test_a_dry_run_of_a_first_build_writes_nothing(recipe: Path, tmp_path: Path) -> None:
    stages = forecast(recipe, tmp_path / "set")
    assert [(stage["stage"], stage["run"]) for stage in stages.values()] == [
        ("tokenizer", 1),
        ("encode", 1),
        ("mix", None),
        ("assemble", None),
    ]
    assert not (tmp_path / "set").exists()
    assert not (tmp_path / "set.work").exists()


def test_what_a_change_runs_again_and_why(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    first = build_here(recipe, out)
    assert " runs " not in first["stderr"]
    assert forecast(recipe, out) == {}

    for options, expected in {
        ("--set", "seed=5"): ("tokenizer", "seed = 5 (was 1337)"),
        ("--set", "tokenizer.vocab_size=290"): ("tokenizer", "tokenizer.vocab_size = 290 (was 300)"),
        ("--set", "sources.notes.min_bytes=9"): ("tokenizer", "sources.notes.min_bytes = 9 (was 1)"),
        ("--tokens", "3000"): ("mix", 'mix.tokens = 3000 (was "max")'),
        ("--set", "split.val_tokens=200"): ("mix", "split.val_tokens = 200 (was 0)"),
        ("--set", "shards.tokens=4000"): ("mix", "shards.tokens = 4000 (was 2000)"),
        ("--set", "clean.code.max_dropped=1"): ("tokenizer", "sources.notes.clean.code = "),
    }.items():
        stages = forecast(recipe, out, *options)
        assert next(iter(stages)) == expected[0], options
        assert any(cause.startswith(expected[1]) for cause in stages[expected[0]]["causes"]), stages
        later = [stage for stage in first["ran"] if stage not in ("tokenizer", "encode", expected[0])]
        for stage in later:
            assert stages[stage]["causes"] == [f"because {expected[0]} does"]
            assert stages[stage]["run"] == first["ran"][stage]
            assert stages[stage]["seconds"] is not None

    again = build_here(recipe, out, "--set", "seed=5", "--set", "tokenizer.vocab_size=290")
    lines = again["stderr"].splitlines()
    assert lines[0].endswith(": tokenizer.vocab_size = 290 (was 300); seed = 5 (was 1337)")
    assert lines[1].startswith("encode: runs 1 task, about ")
    assert f"in all up to {first['tasks_run']} tasks, about " in again["stderr"]
    assert again["stderr"].index("in all") < again["stderr"].index("tokenizer: 1 task in")
    for line in (
        ": tokenizer gives another result",
        ": encode gives another result",
        ": seed = 5 (was 1337); mix gives another result; tokenizer gives another result",
    ):
        assert line in again["stderr"]


def test_files_are_named(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    build_here(recipe, out)
    notes = tmp_path / "notes"
    (notes / "00.txt").unlink()
    (notes / "01.txt").write_text("another text of the first note, longer than a word")
    (notes / "zz.txt").write_text("a note that came later")
    (causes,) = (stage["causes"] for name, stage in forecast(recipe, out).items() if name == "tokenizer")
    assert causes == ["sources.notes: 1 file changed (01.txt), 1 file added (zz.txt), 1 file gone (00.txt)"]
    shown = call_here(main, "build", recipe, "--out", out, "--workers", "1", "--dry-run")
    assert shown.returncode == 0
    assert "tokenizer: runs 1 task, about 1 s or less: sources.notes: 1 file changed" in shown.stdout


def test_missing_results_and_other_versions_are_named(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    build_here(recipe, out)
    (out / "train-00001.bin.zst").unlink()
    stages = forecast(recipe, out)
    assert list(stages) == ["assemble"]
    assert (stages["assemble"]["run"], stages["assemble"]["tasks"]) == (1, 4)
    assert stages["assemble"]["causes"] == ["results are missing or unusable in the work or the output folder"]


def test_a_dry_run_takes_no_lock(recipe: Path, tmp_path: Path) -> None:
    build_here(recipe, tmp_path / "set")
    with lock_folder(tmp_path / "set.work"), lock_folder(tmp_path / "set"):
        assert forecast(recipe, tmp_path / "set", "--set", "seed=5")


def test_a_damaged_record_explains_nothing_and_stops_nothing(recipe: Path, tmp_path: Path) -> None:
    build_here(recipe, tmp_path / "set")
    (tmp_path / "set.work/stages.json").write_text("{}")
    assert forecast(recipe, tmp_path / "set", "--set", "seed=5")["tokenizer"]["causes"] == []
    assert build_here(recipe, tmp_path / "set")["tasks_run"] == 0
    assert json.loads((tmp_path / "set.work/stages.json").read_text())


def test_parts_of_tasks_are_joined_by_name() -> None:
    def parts(version: int, *files: str, **source: Any) -> dict[str, str]:
        tasks = [
            make_task(
                {
                    "code": {"tokenmill": 1, "numpy": f"2.{version}"},
                    "source": source,
                    "files": JsonText(json.dumps([{"name": name, "start": index} for name in files])),
                    "number": index,
                    "after.encode": "a" * 100,
                },
                None,
                1,
                names={"source": "sources.web", "files": "sources.web.files"},
            )
            for index in range(2)
        ]
        return name_parts(tasks)

    one = parts(1, "a.b", "c", clean={"gopher": {"min_words": 1}}, keep={})
    assert find_changes(one, one) == []
    other = parts(2, "a.b", "d", clean={"gopher": {"min_words": 2}})
    assert find_changes(one, other) == [
        "sources.web.clean.gopher.min_words = 2 (was 1)",
        "sources.web: 1 file added (d), 1 file gone (c)",
        'numpy is "2.2" (was "2.1")',
    ]
    assert all(len(value) < 62 for value in one.values())
    assert os.sep not in "".join(one)
