"""`pipeline.build_set` and `pipeline.plan_set`: the commands' results and errors, without their side effects."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pipeline
from pipeline.sources.network import Network
from shards.errors import InputError
from shards.torch import TokenWindows
from tests.support.builds import build_here, call_here, digests, run_program
from tests.support.recipes import write_small_recipe


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small recipe, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return write_small_recipe(tmp_path)


def test_it_builds_what_the_command_builds(recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    build_here(recipe, tmp_path / "by-command")
    capfd.readouterr()
    before = dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    report = pipeline.build_set(recipe, out=tmp_path / "by-call", workers=2, network=Network(timeout_s=7))
    after = dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert before == after
    assert capfd.readouterr() == ("", "")
    assert digests(tmp_path / "by-call") == digests(tmp_path / "by-command")
    assert report.validation.problems == []
    assert report.manifest.name == "small"
    again = pipeline.build_set(str(recipe), out=str(tmp_path / "by-call"), progress=True)
    assert again.tasks_run == 0
    assert re.fullmatch(r"<BuildResult of 'small': train [0-9,]+ tokens in .*; 0 tasks run, 0 problems>", repr(again))
    assert dir(pipeline) == sorted(pipeline.__all__)
    assert "mix:" in capfd.readouterr().err
    pipeline.plan_set(recipe, overrides=["mix.tokens=2_000"], workers=1)
    assert capfd.readouterr() == ("", "")


def test_a_recipe_may_be_a_dict(recipe: Path):
    tables = tomllib.loads(recipe.read_text())
    assert pipeline.load_recipe(tables).to_json() == pipeline.load_recipe(recipe).to_json()
    with pytest.raises(InputError, match=r"recipe: tokenizer\.vocab_size: 9 is too small"):
        pipeline.load_recipe(tables, overrides=["tokenizer.vocab_size=9"])
    assert tables["tokenizer"]["vocab_size"] == 300


def test_rows_of_a_program_leave_no_path_and_do_not_hold_themselves(tmp_path: Path):
    tables = {"name": "n", "sources": [{"name": "s", "weight": 1}], "tokenizer": {"vocab_size": 300}}
    rows = [
        {"text": " ".join(f"word{number * place}" for place in range(60)), "n": {"deep": [(number,)]}}
        for number in range(40)
    ]
    for place in "ab":
        pipeline.build_set(tables, sources={"s": iter(rows)}, out=tmp_path / place / "set", workers=1)
    assert digests(tmp_path / "a/set") == digests(tmp_path / "b/set")
    assert str(tmp_path) not in (tmp_path / "a/set/recipe.json").read_text()
    loop: list[object] = []
    loop.append({"again": (loop,)})
    rows = [{"text": "a", "n": []}, {"text": "b", "n": loop}]
    with pytest.raises(InputError, match=r"sources\['s'\]: row 2: .* 100 deep in each other, or one is in itself"):
        pipeline.build_set(tables, sources={"s": rows}, out=tmp_path / "c", workers=1)


def test_a_variable_of_the_environment_names_no_folder_to_delete(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    names = ("TOKENMILL_FORK_SERVER_FOLDER", "XDG_CACHE_HOME")
    environment = os.environ | dict.fromkeys(names, str(tmp_path / "kept"))
    environment["TOKENMILL_NETWORK"] = json.dumps({"cache": str(tmp_path / "kept")})
    run_program("build", recipe, "--out", tmp_path / "set", "--workers", "2", env=environment, expect=0)
    assert (tmp_path / "kept/file").exists()


def test_a_build_does_not_replace_a_set_that_training_reads(recipe: Path, tmp_path: Path):
    out = tmp_path / "set"
    build_here(recipe, out)
    before = digests(out)
    with TokenWindows(out, seq_len=8) as windows:
        assert len(windows.read([0])["input_ids"])
        assert "checked: the names and sizes" in call_here("build", recipe, "--out", out, "--workers", "1").stdout
        again = build_here(recipe, out, "--set", "seed=5", expect=2)
        assert f"{out}: a training reads this set, which this build would change" in again["stderr"]
        assert digests(out) == before
    assert build_here(recipe, out, "--set", "seed=5")["tasks_run"]
    assert digests(out) != before


PROGRAM = """

import pipeline
print("runs")
report = pipeline.build_set("recipe.toml", out="set", workers=2)
print(report.manifest.splits["train"].documents, "documents,", report.tasks_run, "tasks")
"""


FORK_SERVER = """import multiprocessing
if __name__ == "__main__":
    worker = multiprocessing.get_context("forkserver").Process(target=print, args=("runs",))
    worker.start(); worker.join()
"""
"""A program may have started a fork server, with another environment, before it builds."""


@pytest.mark.parametrize("way", ["script", "fork server", "interactive"])
def test_a_program_needs_no_main_guard(recipe: Path, way: str):
    """Worker processes import the main module of a program again, unless they are kept from it."""
    (recipe.parent / "program.py").write_text(
        PROGRAM if way == "script" else FORK_SERVER + PROGRAM.replace("\n", "\n    ")
    )
    flags = ["-i", "-q"] if way == "interactive" else ["program.py"]
    done = subprocess.run(
        [sys.executable, *flags],
        input=PROGRAM if way == "interactive" else None,
        cwd=recipe.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[0].startswith("runs")
    assert lines[-1].startswith("40 documents, ")
    assert len(lines) == (3 if way == "fork server" else 2)
    assert "Traceback" not in done.stderr
