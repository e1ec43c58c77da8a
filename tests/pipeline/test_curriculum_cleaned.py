"""A curriculum with every kind of cleaning on: the phases have their shares of what cleaning leaves."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from shards import ShardSet, open_set
from shards.__main__ import main as shards_main
from tests.support.builds import build_here, one_worker
from tests.support.cleaned_recipe import write_cleaned_recipe

WEIGHTS = {"main": {"prose": 5, "notes": 4, "code": 1}, "last": {"prose": 1, "notes": 1, "code": 8}}
SHARES = {"main": Fraction(9, 10), "last": Fraction(1, 10)}


def write_phases(plain: Path, main: str, last: str) -> Path:
    """Write the recipe with two phases next to the one without."""
    text = plain.read_text().replace("tokens = 20_000", "tokens = 3_000")
    for name, share in (("main", main), ("last", last)):
        text += f'[[mix.phases]]\nname = "{name}"\nshare = {share}\nweights = {json.dumps(WEIGHTS[name])}\n'.replace(
            '":', '" ='
        )
    path = plain.with_name(f"curriculum-{main}.toml")
    path.write_text(text)
    return path


def run(capsys: pytest.CaptureFixture[str], command: str, *arguments: str | Path) -> dict[str, Any]:
    capsys.readouterr()
    status = shards_main([*one_worker(command, *arguments), "--json"])
    output = capsys.readouterr()
    assert status == 0, output.out + output.err
    return json.loads(output.out)


def count_tokens(shard_set: ShardSet) -> dict[str, list[Counter[str]]]:
    """Return the tokens of each source in each shard of each phase, from the document tables alone."""
    counted: dict[str, list[Counter[str]]] = defaultdict(list)
    for shard in shard_set.splits["train"]:
        held: Counter[str] = Counter()
        for row in shard.documents(["source", "length"]).to_pylist():
            held[row["source"]] += row["length"]
        assert shard.entry.phase is not None
        counted[shard.entry.phase].append(held)
    return counted


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Build the cleaned set without phases, then with them, then with a moved border, in one work folder. Read only."""
    folder = tmp_path_factory.mktemp("cleaned")
    recipe = write_cleaned_recipe(folder, code_chars=1500)  # a module is longer than a shard's part of it
    out = folder / "set"
    plain = build_here(recipe, out)
    moved = build_here(write_phases(recipe, "0.8", "0.2"), out)
    phases = build_here(write_phases(recipe, "0.9", "0.1"), out)
    return {"out": out, "plain": plain, "moved": moved, "phases": phases, "folder": folder}


def test_every_phase_and_shard_has_its_shares_of_what_cleaning_leaves(built: dict[str, Any]) -> None:
    shard_set = open_set(built["out"])
    rows = [row for shard in shard_set.splits["train"] for row in shard.documents().to_pylist()]
    longest = {source: max(row["length"] for row in rows if row["source"] == source) for source in WEIGHTS["main"]}
    requested = shard_set.manifest.splits["train"].requested_tokens
    counted = count_tokens(shard_set)
    assert {name: len(shards) > 1 for name, shards in counted.items()} == {"main": True, "last": True}
    for name, shards in counted.items():
        for source, weight in WEIGHTS[name].items():
            target = SHARES[name] * requested * weight / sum(WEIGHTS[name].values())
            assert weight < 4 or target / len(shards) > longest[source], "the bound says something"
            assert abs(sum(held[source] for held in shards) - target) <= longest[source] + 2
            for held in shards:
                assert abs(held[source] - target / len(shards)) <= longest[source] + 2
    assert len({row["hash"] for row in rows}) == len(rows), "a document is in one phase only, and once"


def test_cleaning_drops_the_same_documents_with_phases_and_without(built: dict[str, Any]) -> None:
    plain, phases = ({one["name"]: one for one in built[name]["sources"]} for name in ("plain", "phases"))
    reasons = {reason for source in phases.values() for reason in source["dropped"]}
    assert {reason.partition(":")[0] for reason in reasons} >= {"gopher", "c4", "fineweb", "code", "near-duplicate"}
    assert "holds an item of dropped" in reasons
    for name, source in phases.items():
        assert source["dropped"] == plain[name]["dropped"]
        assert source["tokens_available"] == plain[name]["tokens_available"]
    # To give a set phases and to move their border mixes and assembles, no more.
    for name in ("moved", "phases"):
        assert {stage for stage, tasks in built[name]["ran"].items() if tasks} == {"mix", "assemble"}


def test_no_text_of_a_phase_holds_a_dropped_item(built: dict[str, Any]) -> None:
    shard_set, folder = open_set(built["out"]), built["folder"]
    tokenizer = shard_set.tokenizer()
    text = "".join(tokenizer.decode(shard.read().tolist()) for shard in shard_set.shards)
    items = {
        name: [json.loads(line)["question"] for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("dropped", "reported")
    }
    assert not [item for item in items["dropped"] if item in text]
    assert [item for item in items["reported"] if item in text]


def test_validation_audit_and_report_say_what_the_phases_hold(
    built: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = built["out"]
    manifest = open_set(out).manifest
    counted = count_tokens(open_set(out))
    totals = {name: sum(shards, Counter[str]()) for name, shards in counted.items()}
    assert run(capsys, "validate", out)["problems"] == []

    audit = run(capsys, "audit", out, "--out", tmp_path / "audit")
    (check,) = [check for check in audit["checks"] if check["name"] == "phases"]
    assert {row["phase"]: row["tokens"] for row in check["rows"]} == {
        name: total.total() for name, total in totals.items()
    }

    report = run(capsys, "report", out, "--audit", tmp_path / "audit", "--out", tmp_path / "report")
    assert [(phase["name"], phase["shards"]) for phase in report["phases"]] == [
        (name, len(shards)) for name, shards in counted.items()
    ]
    for phase in report["phases"]:
        assert {row["source"]: row["achieved_tokens"] for row in phase["mix"]} == totals[phase["name"]]
    dropped = {
        source.name: {why: count for why, count in source.dropped.items() if count} for source in manifest.sources
    }
    assert {source["name"]: source["dropped"] for source in report["sources"]} == dropped
    page = (tmp_path / "report/index.html").read_text()
    for name, total in totals.items():
        _, begun, group = page.partition(f'<th scope="rowgroup" rowspan="3">{name}</th>')
        assert begun
        shown = re.findall(
            r'<th scope="row" class="left">(\w+)</th>.*<td>([\d,]+)</td>', group.partition("</tbody>")[0]
        )
        assert dict(shown) == {source: f"{tokens:,}" for source, tokens in total.items()}
    assert "holds an item of dropped" in page
