"""Cleaning before anything is built: what `plan` foresees of it, and what the tokenizer's sample is drawn from."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.builder.checked_recipe import load_checked_recipe
from tests.support import recipes
from tests.support.builds import build_here, digests
from tests.support.recipes import write_recipe

RunCli = Callable[..., subprocess.CompletedProcess[str]]


def write_words(folder: Path, **limits: Any) -> Path:
    """Write a recipe of 400 documents, of which 100 are one long line of a word that no other document has."""
    rng = random.Random(5)
    words = ["alpha", "beta", "gamma", "delta", "words", "stand", "here", "that", "differ", "often"]
    texts = ["".join(" ".join(rng.choices(words, k=8)) + "\n" for _ in range(rng.randint(8, 16))) for _ in range(300)]
    texts += [f"{number} " + "zqxjkv " * 180 for number in range(100)]
    rng.shuffle(texts)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    own = recipes.source("s", "a.jsonl", clean={"code": {"max_mean_line_bytes": "off"} | limits})
    return write_recipe(folder / "recipe.toml", own, tokenizer={"vocab_size": 290})


@pytest.mark.parametrize("when", ["mix", "encode"])
def test_a_plan_says_what_presets_take(when: str, tmp_path: Path, run_cli: RunCli) -> None:
    recipe = write_words(tmp_path, when=when, max_dropped=0.2)
    said = run_cli("plan", recipe).stdout
    assert "dropped from s: 25.0% (code: max_longest_line_bytes)" in said
    assert "warning: clean.code drops 25.0% of s, more than its max_dropped = 0.2: the build would stop" in said
    allowed = "sources.s.clean.code.max_dropped=0.25"
    assert "warning:" not in run_cli("plan", recipe, "--set", allowed).stdout
    planned = json.loads(run_cli("plan", recipe, "--set", allowed, "--json").stdout)["sources"][0]
    built = build_here(recipe, tmp_path / "set", "--set", allowed)["sources"][0]
    assert built["documents_available"] == 300
    assert planned["tokens"] == pytest.approx(built["tokens_available"], rel=0.05)
    assert planned["documents"] * planned["left_documents"] == pytest.approx(300)
    code = planned["drops"]["steps"]["code"]
    assert code["every"]["documents"] == 0.25 * code["came"]["documents"] > 0
    assert code["before_encoding"] == (when == "encode")


def test_a_plan_refuses_what_leaves_nothing(tmp_path: Path, run_cli: RunCli) -> None:
    recipe = write_words(tmp_path, max_longest_line_bytes=1, max_dropped=1)
    done = run_cli("plan", recipe)
    assert done.returncode == 2
    assert "source 's': no document is left to mix, `clean` drops all of the sample" in done.stdout + done.stderr
    assert "warning: of the sample of s no document is left; see `keep`, `clean`" in done.stdout


def test_a_plan_of_all_text_drops_what_the_build_drops(cleaned: Path, expected_cleaned: dict[str, str]) -> None:
    built = build_here(cleaned, cleaned.parent / "set")
    assert digests(cleaned.parent / "set") == expected_cleaned
    planned = pipeline.plan_set(load_checked_recipe(cleaned), workers=2)
    for source, own in zip(planned.sources, built["sources"], strict=True):
        read = own["documents_available"] + sum(own["dropped"].values())
        left_out = ("duplicate of another source", "in block list block.txt")  # which a plan does not look for
        expected = {reason: count / read for reason, count in own["dropped"].items() if reason not in left_out}
        near, found = expected.pop("near-duplicate", 0.0), dict(source.ratios.dropped)
        assert found.pop("near-duplicate", 0.0) == pytest.approx(near, abs=0.01)  # the plan's tokenizer is its own
        not_taken = "not taken: take = 0.9"  # of few documents about a tenth
        assert found.pop(not_taken, 0.0) == pytest.approx(expected.pop(not_taken, 0.0), abs=0.04)
        assert found == pytest.approx(expected)
    assert {reason for source in planned.sources for reason in source.ratios.dropped} >= {
        "near-duplicate",
        "holds an item of dropped",
    }
    assert planned.time is not None
    assert planned.time.near_duplicates_s > 0


def test_a_plan_says_where_the_build_would_stop(cleaned: Path, run_cli: RunCli) -> None:
    strict = [
        "clean.near_duplicates.max_dropped=0.02",
        "evaluations.dropped.max_dropped=0.001",
        "sources.notes.clean.language.max_dropped=0.01",
    ]
    arguments = [part for key in strict for part in ("--set", key)]
    lines = [line for line in run_cli("plan", cleaned, *arguments).stdout.splitlines() if "build would stop" in line]
    said = "\n".join(line[: line.index(", more than")] for line in lines)
    assert re.fullmatch(
        r"warning: clean.near_duplicates drops [\d.]+% of the sample of prose\n"
        r"warning: [\d.]+% of the sample of prose holds an item of the evaluation set 'dropped'\n"
        r"warning: clean.language drops 3.4% of notes\n"
        r"warning: clean.near_duplicates drops [\d.]+% of the sample of notes\n"
        r"warning: [\d.]+% of the sample of notes holds an item of the evaluation set 'dropped'",
        said,
    ), said
    reported = ["--set", "clean.near_duplicates.action=report", "--set", "clean.near_duplicates.max_dropped=0"]
    said = run_cli("plan", cleaned, *reported).stdout
    assert "build would stop" not in said
    assert re.search(r'near-duplicates of prose: at least [\d.]+%, which stay \(action = "report"\)', said)
    assert re.search(r"[\d.]+% of notes holds an item of reported, and stays", said)


def test_a_plan_without_near_duplicates_takes_no_time_for_them(tmp_path: Path) -> None:
    recipe = load_checked_recipe(write_words(tmp_path, max_dropped=1))
    planned = pipeline.plan_set(recipe)
    assert planned.time is not None
    assert planned.time.near_duplicates_s == 0


def garbage(folder: Path) -> list[str]:
    """Return the entries that only the documents of a few words can have taught."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return [entry for entry in vocabulary if 1 < len(entry) < 9 and set(entry) & set("zqxjkv")]


def test_what_falls_never_becomes_an_entry(tmp_path: Path) -> None:
    recipe = write_words(tmp_path, max_dropped=1)
    build_here(recipe, tmp_path / "set")
    assert not garbage(tmp_path / "set")
    before = digests(tmp_path / "set")["tokenizer.json"]
    # A limit that moves keeps the tokenizer; a preset that is switched off trains another.
    build_here(recipe, tmp_path / "set", "--set", "sources.s.clean.code.max_longest_line_bytes=off")
    assert digests(tmp_path / "set")["tokenizer.json"] == before
    build_here(recipe, tmp_path / "set", "--set", "sources.s.clean.code.when=off")
    assert garbage(tmp_path / "set")
    early = ["--set", "sources.s.clean.code.when=encode", "--set", "sources.s.clean.code.max_longest_line_bytes=9000"]
    build_here(recipe, tmp_path / "set", *early)
    assert garbage(tmp_path / "set")


def test_the_build_says_what_the_sample_lost(tmp_path: Path) -> None:
    recipe = write_words(tmp_path, max_dropped=1)
    text = (tmp_path / "a.jsonl").read_text()
    lines = [line for line in text.splitlines() if "zqxjkv" in line] * 3 + text.splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    said = build_here(recipe, tmp_path / "set")["stderr"]
    assert "clean leaves 57.14% of what was read of s out of the sample" in said


def test_a_sample_of_which_nothing_is_left(tmp_path: Path) -> None:
    recipe = write_words(tmp_path, max_longest_line_bytes=10, max_dropped=1)
    count = len((tmp_path / "a.jsonl").read_text().splitlines())
    refused = build_here(recipe, tmp_path / "set", expect=2)["stderr"]
    lost = f"source 's': {count} of {count} records are dropped (code: max_longest_line_bytes: {count})"
    assert f"{lost}.\ntokenizer: no text is left to train on. Correct " in refused
