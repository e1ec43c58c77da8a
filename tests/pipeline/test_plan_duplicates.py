"""A plan does not count a document twice, and ends as the build would."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder import python_api
from pipeline.estimate import duplicates
from pipeline.estimate.estimate import Estimate
from tests.support.builds import build_here, real_documents
from tests.support.recipes import source, write_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two sources of which more than half are copies: within the first, and in the second of the first's."""
    folder = tmp_path_factory.mktemp("twice")
    texts = real_documents()[::2]
    half = len(texts) // 2
    for name, own in (("first", texts[:half] * 3), ("second", texts[half:] + texts[: half // 2])):
        random.Random(name).shuffle(own)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in own))
    sources = [source(name, f"{name}.jsonl", weight=weight) for name, weight in (("first", 60), ("second", 40))]
    sizes = {"split": {"val_tokens": 1000}, "shards": {"tokens": 50_000}}
    return write_recipe(folder / "r.toml", *sources, tokenizer={"vocab_size": 600}, **sizes)


@pytest.fixture(scope="module")
def built(recipe: Path) -> dict[str, Any]:
    return build_here(recipe, recipe.with_name("set"))


def test_duplicates_within_and_across_sources_are_not_planned(recipe: Path, built: dict[str, Any]) -> None:
    found = python_api.plan_set(recipe)
    trained = built["splits"]["train"]["requested_tokens"]
    assert abs(found.train_tokens / trained - 1) < 0.1
    for planned, entry in zip(found.sources, built["sources"], strict=True):
        assert abs(planned.tokens / entry["tokens_available"] - 1) < 0.1
        assert planned.ratios.distinct.basis == "all text"
    assert found.sources[0].ratios.distinct.duplicates == pytest.approx(2 / 3, abs=0.01)
    assert found.sources[1].ratios.distinct.elsewhere == pytest.approx(1 / 3, abs=0.01)
    assert found.refusal == ""
    assert found.scarcest == "first"


@pytest.mark.parametrize("too_many", ["--tokens=150_000", "--set=split.val_tokens=150_000"])
def test_a_plan_that_is_sure_ends_as_the_build(recipe: Path, run_cli: Any, tmp_path: Path, too_many: str) -> None:
    build = run_cli("build", str(recipe), "--out", str(tmp_path / "set"), "--workers", "1", too_many)
    plan = run_cli("plan", str(recipe), too_many)
    assert (build.returncode, plan.returncode) == (2, 2), plan.stdout + plan.stderr
    assert plan.stderr.splitlines()[-1].partition(":")[0] == build.stderr.splitlines()[-1].partition(":")[0]
    assert "training and" in plan.stdout, "the plan is printed all the same"
    as_json = run_cli("plan", str(recipe), too_many, "--json")
    assert as_json.returncode == 2
    assert json.loads(as_json.stdout)["problems"]


def test_the_plan_says_what_is_counted(recipe: Path, run_cli: Any) -> None:
    assert "duplicates are not counted" in run_cli("plan", str(recipe), "--no-probe").stdout
    printed = run_cli("plan", str(recipe)).stdout
    assert "limited by first: at these weights the sources allow" in printed
    assert "66.7%" in printed
    refused = run_cli("plan", str(recipe), "--no-probe", "--count-duplicates")
    assert refused.returncode == 2
    assert "Give one of them" in refused.stderr


def test_a_large_source_is_counted_on_request(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(found: Estimate) -> list[tuple[float, float]]:
        return [(own.ratios.distinct.duplicates, own.ratios.distinct.elsewhere) for own in found.sources]

    exact = shares(python_api.plan_set(recipe))
    monkeypatch.setattr(duplicates, "COUNTED_BYTES", 0)
    sampled = python_api.plan_set(recipe)
    assert {own.ratios.distinct.basis for own in sampled.sources} == {"sample"}
    assert all(seen <= all_text for seen, all_text in zip(sum(shares(sampled), ()), sum(exact, ()), strict=True))
    counted = python_api.plan_set(recipe, duplicates="in all text")
    assert {own.ratios.distinct.basis for own in counted.sources} == {"all text"}
    assert shares(counted) == exact
