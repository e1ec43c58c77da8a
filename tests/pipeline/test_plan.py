"""The plan: counts from footers, safe estimates, and a disk that is too small is refused with the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import make_recipe

from pipeline import plan
from pipeline.plan import DiskError, check_disk, estimate, resolve_units
from pipeline.recipe import Recipe
from pipeline.sources.base import SourceError


@pytest.fixture
def make(tmp_path: Path, write_parquet: Any, documents: list[str]) -> Any:
    """Return `make(**keys)`: a recipe of two sources, `documents` as parquet and half of them as text."""
    write_parquet(tmp_path / "a.parquet", documents)
    (tmp_path / "b.txt").write_text("\n--\n".join(documents[::2]), encoding="utf-8", newline="")

    def make_one(weights: list[float] | None = None, **keys: Any) -> Recipe:
        recipe = make_recipe(weights or [3, 1], **keys)
        paths = [{"paths": [str(tmp_path / "a.parquet")]}, {"paths": [str(tmp_path / "b.txt")], "separator": "\n--\n"}]
        sources = [source.model_copy(update=more) for source, more in zip(recipe.sources, paths, strict=True)]
        return recipe.model_copy(update={"sources": sources})

    return make_one


def test_counts(make: Any, documents: list[str], tmp_path: Path) -> None:
    recipe = make(tokens=10_000, val_tokens=500, shard_tokens=3000)
    found = estimate(recipe, resolve_units(recipe))
    first, second = found.sources
    size = sum(len(text.encode()) for text in documents)
    assert (first.files, first.units, first.documents) == (1, 1, len(documents))
    assert size <= first.text_bytes <= 1.05 * size + 2000
    assert (second.documents, second.text_bytes) == (None, (tmp_path / "b.txt").stat().st_size)
    assert (found.train_tokens, found.val_tokens, found.shards) == (10_000, 500, 5)
    assert json.loads(json.dumps(found.to_dict()))["sources"][0]["name"] == "s0"


def test_tokens_by_when_short(make: Any) -> None:
    units = resolve_units(make())
    most = estimate(make(tokens="max"), units).train_tokens
    assert estimate(make(tokens=10**9), units).train_tokens == 10**9
    assert estimate(make(tokens=10**9, when_short="shrink"), units).train_tokens == most
    repeated = estimate(make(tokens="max", when_short="repeat", max_epochs=3), units).train_tokens
    assert abs(repeated - 3 * most) <= 3
    assert estimate(make(weights=[1e300, 1e-300], tokens="max"), units).train_tokens > 0


def test_every_source_is_reported(make: Any, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"broken")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(SourceError) as caught:
        resolve_units(make())
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["source 's0'", "source 's1'"]


def test_validation_that_no_source_can_give(make: Any) -> None:
    with pytest.raises(SourceError) as caught:
        resolve_units(make(val_tokens=10**9))
    lines = str(caught.value).splitlines()
    assert "asks for 750000000 tokens of 's0', which has at most" in lines[0]
    assert "asks for 250000000 tokens of 's1', which has at most" in lines[1]


def test_a_source_of_no_documents(make: Any, tmp_path: Path, write_parquet: Any) -> None:
    write_parquet(tmp_path / "a.parquet", [])
    with pytest.raises(SourceError, match="source 's0': its files hold no document"):
        resolve_units(make())


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    check_disk([("scratch", folder, 1000), ("the set", tmp_path, 0)])
    with pytest.raises(DiskError) as caught:
        check_disk([("scratch", folder, 2 * 10**18), ("the set", tmp_path, 10**18)])
    message = str(caught.value)
    assert "disk: needs 3000000000.00 GB (2000000000.00 GB for scratch in" in message
    assert f"1000000000.00 GB for the set in {tmp_path})" in message
    assert "GB are free" in message
    # Two folders of one file system share its space.
    free = 10**6

    class Usage:
        def __init__(self) -> None:
            self.free = free

    monkeypatch.setattr(plan.shutil, "disk_usage", lambda path: Usage())
    check_disk([("scratch", folder, free), ("the set", tmp_path, 0)])
    with pytest.raises(DiskError):
        check_disk([("scratch", folder, free), ("the set", tmp_path, 1)])


def test_the_command_refuses_a_small_disk(run_cli: Any, make: Any, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(make(tokens=10**15).to_json())
    result = run_cli("plan", "recipe.json")
    assert result.returncode == 2
    assert "error: disk: needs" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_command_prints_the_plan(run_cli: Any, make: Any, tmp_path: Path, documents: list[str]) -> None:
    (tmp_path / "recipe.json").write_text(make(tokens=10_000).to_json())
    before = sorted(tmp_path.iterdir())
    result = run_cli("plan", "recipe.json", "--json", "--set", "mix.tokens=5_000")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["train_tokens"], data["sources"][0]["documents"]) == (5000, len(documents))
    assert "about 10,000 training and 0 validation tokens" in run_cli("plan", "recipe.json").stdout
    assert sorted(tmp_path.iterdir()) == before
