"""A curriculum built from text: the shards and the manifest, and what moving its border runs again."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.__main__ import main as pipeline_main
from shards import open_set
from shards.__main__ import main as shards_main
from shards.convert.export import export_set
from shards.validation.validate import validate
from tests.support.builds import build_here, digests, one_worker, recipe_text, run_build, write_corpus

WEIGHTS = {"main": {"prose": 60, "docs": 30, "code": 10}, "last": {"prose": 10, "docs": 30, "code": 60}}


def write_recipe(folder: Path, border: str, **changes: str) -> Path:
    path = folder / "recipe.toml"
    rest = str(1 - Decimal(border))
    text = recipe_text(folder / "corpus", shard_tokens="3_000", **changes)
    for name, share in (("main", border), ("last", rest)):
        weights = ", ".join(f"{source} = {weight}" for source, weight in WEIGHTS[name].items())
        text += f'[[mix.phases]]\nname = "{name}"\nshare = {share}\nweights = {{ {weights} }}\n'
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Build a 90/10 curriculum, then move its border."""
    folder = tmp_path_factory.mktemp("curriculum")
    write_corpus(folder / "corpus")
    out = folder / "set"
    first = build_here(write_recipe(folder, "0.9"), out)
    manifest = open_set(out).manifest
    longest: Counter[str] = Counter()
    for shard in open_set(out).shards:
        for row in shard.documents(["source", "length"]).to_pylist():
            longest[row["source"]] = max(longest[row["source"]], row["length"])
    kept = digests(out)
    moved = build_here(write_recipe(folder, "0.75"), out)
    return {
        "folder": folder,
        "first": first,
        "manifest": manifest,
        "digests": kept,
        "moved": moved,
        "out": out,
        "longest": longest,
    }


def test_each_phase_has_its_shares_in_all_its_shards(built: dict[str, Any]) -> None:
    manifest = built["manifest"]
    assert built["first"]["problems"] == []
    assert manifest.format_version == 2
    assert [phase.name for phase in manifest.phases] == ["main", "last"]
    total = manifest.splits["train"].requested_tokens
    assert [phase.requested_tokens for phase in manifest.phases] == [total * 9 // 10, total - total * 9 // 10]
    train = [shard for shard in manifest.shards if shard.split == "train"]
    longest = built["longest"]
    for phase in manifest.phases:
        own = [shard for shard in train if shard.phase == phase.name]
        weights = WEIGHTS[phase.name]
        for row in phase.mix:
            assert row.requested == pytest.approx(weights[row.source] / 100)
            assert abs(row.achieved_tokens - row.requested_tokens) <= longest[row.source] + 2
            for shard in own:
                held = shard.sources[row.source].tokens if row.source in shard.sources else 0
                assert abs(held - row.requested_tokens / len(own)) <= longest[row.source] + 2
        assert sum(shard.tokens for shard in own) == phase.tokens
    assert [shard.phase for shard in train] == sorted((shard.phase for shard in train), reverse=True)
    assert all(shard.phase is None for shard in manifest.shards if shard.split == "val")
    sidecars = [json.loads((built["out"] / f"{name}-00000.json").read_text()) for name in ("train", "val")]
    assert [(one["format_version"], one.get("phase")) for one in sidecars] == [(2, "main"), (1, None)]


def test_moving_the_border_mixes_and_assembles_again_and_no_more(built: dict[str, Any]) -> None:
    ran = built["moved"]["ran"]
    assert {name for name, count in ran.items() if count} == {"mix", "assemble"}
    manifest = open_set(built["out"]).manifest
    assert [phase.share for phase in manifest.phases] == [0.75, 0.25]
    assert built["moved"]["problems"] == []


def test_an_export_says_where_each_phase_lies(built: dict[str, Any]) -> None:
    folder = built["folder"]
    run_build(write_recipe(folder, "0.9"), folder / "exported")
    shard_set = open_set(folder / "exported")
    phase_of = {
        row["hash"].hex(): shard.entry.phase for shard in shard_set.shards for row in shard.documents().to_pylist()
    }
    for layout in ("nanogpt", "parquet"):
        export = export_set(shard_set, folder / layout, layout=layout)
        phases = json.loads((folder / layout / "export.json").read_text())["phases"]
        assert [phase["name"] for phase in phases] == ["main", "last"]
        assert phases[0]["tokens"][0] == 0
        assert phases[0]["tokens"][1] == phases[1]["tokens"][0] == shard_set.manifest.phases[0].tokens
        assert phases[1]["tokens"][1] == export.splits["train"]["tokens"]
        assert phases[1]["documents"][1] == export.splits["train"]["documents"]
    tables = {path.name[:5]: pq.read_table(path) for path in sorted((folder / "parquet/data").glob("*.parquet"))}
    for table in tables.values():
        found = dict(zip(table["hash"].to_pylist(), table["phase"].to_pylist(), strict=True))
        assert found == {name: phase_of[name] for name in found}
    assert set(tables["val-0"]["phase"].to_pylist()) == {None}


def test_two_workers_give_the_same_bytes(built: dict[str, Any]) -> None:
    folder = built["folder"]
    run_build(write_recipe(folder, "0.9"), folder / "again", "--workers", "2")
    assert digests(folder / "again") == built["digests"]


def test_cleaning_acts_before_the_phases_are_cut(built: dict[str, Any]) -> None:
    """Of what limits and near-duplicates leave, each phase has its shares; a border still moves alone."""
    folder = built["folder"]
    clean = "[clean.gopher]\nmax_dropped = 1\nmin_words = 20\nmin_stop_words = 1\n"
    clean += "[clean.near_duplicates]\nmax_dropped = 1\n"
    moved: dict[str, Any] = {}
    for border in ("0.9", "0.75"):
        recipe = write_recipe(folder, border)
        recipe.write_text(recipe.read_text() + clean)
        moved = build_here(recipe, folder / "cleaned")
        assert moved["problems"] == []  # the full validation knows the shares of every phase and shard
    assert {name for name, count in moved["ran"].items() if count} == {"mix", "assemble"}
    whole, cleaned = (open_set(path).manifest for path in (built["out"], folder / "cleaned"))
    assert cleaned.splits["train"].documents < whole.splits["train"].documents
    assert [phase.share for phase in cleaned.phases] == [0.75, 0.25]


def test_validation_finds_what_is_wrong_with_phases(built: dict[str, Any], tmp_path: Path) -> None:
    def problems_of(change: Any) -> list[str]:
        manifest = json.loads((built["out"] / "manifest.json").read_text())
        change(manifest)
        for path in built["out"].iterdir():
            (tmp_path / path.name).unlink(missing_ok=True)
            (tmp_path / path.name).symlink_to(path)
        (tmp_path / "manifest.json").unlink()
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        return [str(problem) for problem in validate(tmp_path).problems]

    def has(change: Any, words: str) -> None:
        found = problems_of(change)
        assert any(words in problem for problem in found), found

    assert problems_of(lambda manifest: None) == []
    has(lambda m: m.update(format_version=1), "format_version 1; expected 2")
    has(lambda m: m.pop("phases"), "format_version 2; expected 1")
    has(lambda m: m["phases"].reverse(), "expected ['last', 'main'], one after the other")
    has(lambda m: m["shards"][0].update(phase="last"), "the training shards are of the phases ['last', 'main', 'last']")
    has(lambda m: m["shards"][0].pop("phase"), "disagrees with the manifest on format_version: 2, not 1; phase: main")
    has(lambda m: m["phases"][0].update(share=0.5), "expected numbers above 0 that add up to 1")
    has(lambda m: m["phases"][0].update(tokens=5), "phase 'main': 5 tokens in")
    has(lambda m: m["phases"][0].update(requested_tokens=5), "the phases' requested_tokens add up to")
    has(lambda m: m["phases"][0]["mix"][0].update(achieved_tokens=5), "phase 'main', source 'prose': achieved_tokens 5")
    has(lambda m: m["phases"][0]["mix"].pop(), "phase 'main' lists ['prose', 'docs']; expected the sources in order")
    has(lambda m: m["mix"][0].update(requested=0.6), "mix, source 'prose': requested 0.6; its weight's share is")
    has(lambda m: m["shards"][-1].update(phase="main"), "expected none outside the training split")


def run(capsys: pytest.CaptureFixture[str], command: str, *arguments: str | Path, expect: int = 0) -> str:
    """Run a command of the whole way, and return what it prints on stdout."""
    capsys.readouterr()
    main = pipeline_main if command == "plan" else shards_main
    status = main(one_worker(command, *arguments))
    output = capsys.readouterr()
    assert status == expect, output.err
    return output.out


def test_plan_says_the_phases_and_refuses_a_small_one(
    built: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(built["folder"], "0.9")
    plan = json.loads(run(capsys, "plan", recipe, "--json"))
    main, last = plan["phases"]
    assert (main["name"], main["share"], last["sources"]) == ("main", 0.9, {"prose": 0.1, "docs": 0.3, "code": 0.6})
    assert main["tokens"] + last["tokens"] == plan["train_tokens"]
    assert main["shards"] + last["shards"] + 2 == plan["shards"]  # and two of validation
    printed = run(capsys, "plan", recipe, "--no-probe")
    assert any(line.split()[:2] == ["last", "10.00%"] for line in printed.splitlines()), printed
    for probe in ((), ("--no-probe",)):
        small = run(capsys, "plan", recipe, "--set", "shards.tokens=20_000", "--json", *probe, expect=2)
        assert "mix.phases.last: 0.1 of" in json.loads(small)["problems"][0]


@pytest.mark.long
def test_inspect_trace_audit_and_report_know_phases(
    built: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = built["out"]
    described = json.loads(run(capsys, "inspect", out, "--json"))
    assert [phase["name"] for phase in described["phases"]] == ["main", "last"]
    phases = {shard["name"]: shard["phase"] for shard in described["shards"]}
    lines = [line.split() for line in run(capsys, "inspect", out).splitlines()]
    assert ["train-00000", "main"] in [line[:2] for line in lines]
    assert len([line for line in lines if line[:2] == ["last", "25.0000%"]]) == 3

    found = json.loads(run(capsys, "trace", out, "--text", "the", "--limit", "0", "--json"))
    assert {one["phase"] for one in found["shown"] if "phase" in one} == {"main", "last"}
    assert all(one.get("phase") == phases[one["shard"]] for one in found["shown"])
    assert "phase main, source" in run(capsys, "trace", out, "--shard", "train-00000", "--offset", "5")

    audit = json.loads(run(capsys, "audit", out, "--out", tmp_path / "audit", "--json"))
    (check,) = [check for check in audit["checks"] if check["name"] == "phases"]
    tokens = {phase["name"]: phase["tokens"] for phase in described["phases"]}
    assert {row["phase"]: row["tokens"] for row in check["rows"]} == tokens
    assert check["rows"][0]["ids_first_seen"] > check["rows"][1]["ids_first_seen"] > 0

    report = json.loads(run(capsys, "report", out, "--out", tmp_path / "report", "--json"))
    assert [(phase["name"], phase["tokens"]) for phase in report["phases"]] == list(tokens.items())
    page = (tmp_path / "report/index.html").read_text()
    assert "this set has 2 phases" in page
    assert page.count('<th scope="rowgroup" rowspan="3">last</th>') == 1
    card = (tmp_path / "report/README.md").read_text()
    assert card.count("| `last` | 25.00") == 3
