"""One set with every feature on, built once: what each feature does to it, and that nothing else changes its bytes.

Two more columns of the same table are elsewhere: Ray and Slurm build it in `test_clusters.py`, a plan of it is in
`test_clean_plan.py`.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.builder.clean_report.read import read_clean_report
from shards import ShardSet, open_set
from shards.convert.export import export_set
from shards.format.document_table import document_schema
from shards.validation.validate import validate
from tests.support.builds import Built, build_here, call_here, digests, digests_in, one_worker, run_build
from tests.support.cleaned_recipe import PHASES, language_model
from tests.support.faults import table
from tests.support.recipes import overrides
from tests.support.started import attempts, kill_in
from tokenmill.__main__ import main

EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
STAGES = ("evaluations", "tokenizer", "encode", "bands", "pairs", "similar", "mix", "assemble")
SHARES = {"main": Fraction(9, 10), "last": Fraction(1, 10)}
CARRIED = ["url", "score", "meta.lang", "good", "member"]


def rows_of(shard_set: ShardSet) -> list[dict[str, Any]]:
    return [row for shard in shard_set.shards for row in shard.documents().to_pylist()]


def run(program: Callable[[list[str]], int], command: str, *arguments: str | Path, expect: int = 0) -> Any:
    """Run a command, and return what it prints as JSON."""
    done = call_here(program, *one_worker(command, *arguments, "--json"))
    assert done.returncode == expect, done.stdout + done.stderr
    return json.loads(done.stdout)


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


# What each feature does.


def test_every_feature_drops_or_masks_what_it_is_to(whole: Built) -> None:
    dropped = {source["name"]: source["dropped"] for source in whole.result["sources"]}
    steps = {name: {reason.partition(":")[0] for reason in own} for name, own in dropped.items()}
    of_all = {"gopher", "c4", "fineweb", "near-duplicate", "holds an item of dropped"}
    assert steps["prose"] == of_all | {"matches ^Too few words", "not score >= 1", "in block list block.txt"}
    assert steps["notes"] - {"language"} == of_all | {"duplicate of another source"}
    assert ("language" in steps["notes"]) == (language_model() is not None)
    assert steps["code"] == {"code", "text is empty", "not taken"}
    assert whole.result["masked"].keys() == dropped.keys()
    assert whole.result["ran"].keys() == set(STAGES)
    assert whole.result["problems"] == []


def test_every_document_read_is_left_or_counted_as_dropped(whole: Built) -> None:
    prose = next(source for source in whole.result["sources"] if source["name"] == "prose")
    read = pq.read_metadata(whole.recipe.parent / "prose.parquet").num_rows
    assert prose["documents_available"] + sum(prose["dropped"].values()) == read


def test_no_text_of_the_set_holds_a_dropped_item(whole: Built) -> None:
    shard_set = open_set(whole.out)
    text = "".join(shard_set.tokenizer().decode(shard.read().tolist()) for shard in shard_set.shards)
    found: dict[str, list[bool]] = {}
    for name in ("dropped", "reported"):
        lines = (whole.recipe.parent / f"{name}.jsonl").read_text().splitlines()
        found[name] = [json.loads(line)["question"] in text for line in lines]
    assert (any(found["dropped"]), any(found["reported"])) == (False, True)


def test_every_document_has_the_values_of_its_row(whole: Built) -> None:
    table = pq.read_table(whole.recipe.parent / "prose.parquet").to_pylist()
    found = rows_of(open_set(whole.out))
    assert {row["source"] for row in found} == set(PHASES["main"])
    for row in found:
        values = {name: row[name] for name in CARRIED}
        expected = dict.fromkeys(CARRIED)
        if row["source"] == "prose":
            own = table[row["row"]]
            expected |= {"url": own["url"], "score": float(own["score"]), "good": own["good"]}
            expected |= {"meta.lang": own["meta"]["lang"]}
        elif row["source"] == "notes":
            expected["url"] = row["url"]
        else:
            expected["member"] = row["member"]
            assert row["member"].endswith(".txt")
        assert values == expected
    assert {row["url"] is None for row in found if row["source"] == "notes"} == {True, False}


def test_the_manifest_and_each_shard_say_phases_and_carried_columns(whole: Built) -> None:
    manifest = open_set(whole.out).manifest
    assert manifest.format_version == 3
    assert [(column.name, column.type, column.sources) for column in manifest.carried] == [
        ("url", "string", ["prose", "notes"]),
        ("score", "float64", ["prose"]),
        ("meta.lang", "string", ["prose"]),
        ("good", "bool", ["prose"]),
        ("member", "string", ["code"]),
    ]
    found = rows_of(open_set(whole.out))
    for name in CARRIED:
        values = sum(shard.carried_values[name] for shard in manifest.shards)
        assert values == sum(row[name] is not None for row in found) > 0
    for split, phase in (("train", "main"), ("val", None)):
        sidecar = json.loads((whole.out / f"{split}-00000.json").read_text())
        assert (sidecar["format_version"], sidecar.get("phase")) == (3, phase)
        assert [column["name"] for column in sidecar["carried"]] == CARRIED


def test_every_phase_and_shard_has_its_shares_of_what_cleaning_leaves(whole: Built) -> None:
    shard_set = open_set(whole.out)
    rows = [row for shard in shard_set.splits["train"] for row in shard.documents().to_pylist()]
    longest = {name: max(row["length"] for row in rows if row["source"] == name) for name in PHASES["main"]}
    requested = shard_set.manifest.splits["train"].requested_tokens
    counted = count_tokens(shard_set)
    assert {name: len(shards) > 1 for name, shards in counted.items()} == {"main": True, "last": True}
    for name, shards in counted.items():
        for source, weight in PHASES[name].items():
            target = SHARES[name] * requested * weight / sum(PHASES[name].values())
            assert abs(sum(held[source] for held in shards) - target) <= longest[source] + 2
            for held in shards:
                assert abs(held[source] - target / len(shards)) <= longest[source] + 2
    assert len({row["hash"] for row in rows}) == len(rows), "a document is in one phase only, and once"
    order = [shard.entry.phase for shard in shard_set.splits["train"]]
    assert order == sorted(order, reverse=True)


def test_documents_lead_back_to_rows_and_members(whole: Built) -> None:
    report = validate(whole.out, level="full", against_sources=200)
    assert (report.problems, report.not_run, report.compared_documents) == ([], [], 200)


def test_a_plan_says_phases_and_formats_and_refuses_a_small_phase(whole: Built) -> None:
    plan = run(main, "plan", whole.recipe)
    first, last = plan["phases"]
    assert (first["name"], first["share"]) == ("main", 0.9)
    assert last["sources"] == {"prose": 0.1, "notes": 0.1, "code": 0.8}
    assert main["tokens"] + last["tokens"] == plan["train_tokens"]
    printed = call_here(main, "plan", whole.recipe, "--no-probe").stdout
    assert any(line.split()[:2] == ["last", "10.00%"] for line in printed.splitlines()), printed
    for format_ in ("csv", "arrow", "json", "jsonl"):
        assert f"1 as {format_}" in printed
    large = run(main, "plan", whole.recipe, "--no-probe", *overrides("shards.tokens=100_000"), expect=2)
    assert "mix.phases.last: 0.1 of" in large["problems"][0]


def test_a_plan_prices_what_is_carried(whole: Built) -> None:
    without = overrides(*(f"sources.{name}.carry=[]" for name in PHASES["main"]))
    plans = [run(main, "plan", whole.recipe, *options) for options in ((), without)]
    runs = sum(path.stat().st_size for path in whole.out.with_name("set.work").glob("encode/*/carried*.bin"))
    assert plans[0]["scratch_bytes"] - plans[1]["scratch_bytes"] == pytest.approx(runs, rel=0.1)
    assert plans[0]["train_tokens"] == plans[1]["train_tokens"]
    assert plans[0]["output_bytes"] > plans[1]["output_bytes"]


def test_audit_report_inspect_and_trace_know_phases_and_carried_columns(whole: Built, tmp_path: Path) -> None:
    shard_set = open_set(whole.out)
    totals = {name: sum(shards, Counter[str]()) for name, shards in count_tokens(shard_set).items()}
    tokens = {name: total.total() for name, total in totals.items()}
    audit = run(main, "audit", whole.out, "--out", tmp_path / "audit")
    (check,) = [check for check in audit["checks"] if check["name"] == "phases"]
    assert {row["phase"]: row["tokens"] for row in check["rows"]} == tokens

    run(main, "report", whole.out, "--audit", tmp_path / "audit", "--out", tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    for name, total in totals.items():
        _, begun, group = page.partition(f'<th scope="rowgroup" rowspan="3">{name}</th>')
        assert begun
        pattern = r'<th scope="row" class="left">(\w+)</th>.*<td>([\d,]+)</td>'
        shown = re.findall(pattern, group.partition("</tbody>")[0])
        assert dict(shown) == {source: f"{held:,}" for source, held in total.items()}
    assert "holds an item of dropped" in page
    assert "| `last` | 10.00" in (tmp_path / "report/README.md").read_text()

    described = run(main, "inspect", whole.out)
    assert [phase["name"] for phase in described["phases"]] == ["main", "last"]
    assert [row["carried"] for row in described["carried"]] == CARRIED
    row = shard_set.shards[0].documents().to_pylist()[3]
    document = run(main, "inspect", whole.out, "--shard", "0", "--document", "3")
    assert document["carried"] == {name: row[name] for name in CARRIED}
    found = run(main, "trace", whole.out, "--hash", row["hash"].hex())
    assert found["places"][0]["carried"] == document["carried"]
    assert {one["phase"] for one in found["places"]} == {"main"}


def test_values_lead_to_documents_and_to_a_block_list(whole: Built, tmp_path: Path) -> None:
    rows = rows_of(open_set(whole.out))
    block = tmp_path / "block.txt"
    found = run(main, "trace", whole.out, "--where", "url^=https://a.example/1", "--out", block)
    expected = {row["hash"] for row in rows if (row["url"] or "").startswith("https://a.example/1")}
    assert found["documents"] == len(expected) > 20
    assert set(block.read_text().split()) >= {value.hex() for value in expected}
    both = run(main, "trace", whole.out, "--where", "score=3", "--where", "good=true")
    assert both["documents"] == sum(row["score"] == 3 and bool(row["good"]) for row in rows)
    shown = {
        limit: len(run(main, "trace", whole.out, "--where", "good=true", "--limit", limit)["shown"])
        for limit in ("0", "7")
    }
    assert shown == {"0": sum(bool(row["good"]) for row in rows), "7": 7}  # 0: all of them
    host = run(main, "trace", whole.out, "--where", r"url~=^https?://([^/]*\.)?a\.example(/|$)")
    assert set(host["sources"]) == {"prose", "notes"}


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("link=x", "carries no column 'link'; there are url (string), score (float64)"),
        ("url", "expected COLUMN=VALUE"),
        ("score^=1", "is for text, and the column is float64"),
        ("score=much", "does not fit"),
        ("url~=(", "does not fit"),
        ("url^=", "every text begins so"),
    ],
)
def test_wrong_conditions_are_refused(whole: Built, condition: str, message: str) -> None:
    done = call_here(main, "trace", whole.out, "--where", condition)
    assert done.returncode == 2
    assert message in done.stderr


def test_an_export_has_phases_and_carried_columns(whole: Built, tmp_path: Path) -> None:
    shard_set = open_set(whole.out)
    for layout in ("nanogpt", "parquet"):
        export = export_set(shard_set, tmp_path / layout, layout=layout)
        main, last = json.loads((tmp_path / layout / "export.json").read_text())["phases"]
        assert (main["name"], main["tokens"][0], main["tokens"][1]) == ("main", 0, last["tokens"][0])
        assert last["tokens"][1] == export.splits["train"]["tokens"]
        assert main["tokens"][1] == shard_set.manifest.phases[0].tokens
    table = pa.concat_tables(
        [pq.read_table(path) for path in sorted((tmp_path / "parquet/data").glob("*.parquet"))],
        promote_options="default",
    )
    expected = {
        row["hash"]: [shard.entry.phase, *(row[name] for name in CARRIED)]
        for shard in shard_set.shards
        for row in shard.documents().to_pylist()
    }
    columns = [table[name].to_pylist() for name in ("hash", "phase", *CARRIED)]
    assert {bytes.fromhex(own[0]): list(own[1:]) for own in zip(*columns, strict=True)} == expected


# What validation finds.


def copied(whole: Built, folder: Path) -> Path:
    for path in whole.out.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def with_values(column: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    def apply(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(column)
        field = table.schema.field(index)
        return table.set_column(index, field, pa.array(change(table[column].to_pylist()), field.type))

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_values("url", lambda values: [None if value else "x" for value in values]), "column 'url' has"),
        (with_values("member", lambda values: ["x"] * len(values)), "whose source does not carry it"),
        (lambda table: table.drop_columns(["good"]), "columns start"),
        (lambda t: t.set_column(7, pa.field("score", pa.float32()), t["score"].cast("float32")), "score: f"),
    ],
)
def test_validation_finds_what_is_wrong_with_carried_values(
    whole: Built, tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    table(change)(copied(whole, tmp_path))
    problems = [problem for problem in validate(tmp_path, level="full").problems if problem.kind == "document_table"]
    assert any(message in problem.message for problem in problems), problems


MANIFEST_FAULTS: list[tuple[str, Callable[[Any], Any]]] = [
    ("columns of their own", lambda m: m["carried"][0].update(name="hash")),
    ("in case alone", lambda m: m["carried"][0].update(name="SCORE")),
    ("not in the manifest", lambda m: m["carried"][0].update(sources=["nobody"])),
    ("expected of", lambda m: m["carried"].pop()),
    ("expected at most", lambda m: m["shards"][0]["carried_values"].update({"url": 10**6})),
    ("expected 3", lambda m: m.update(format_version=1)),
    ("format_version 3", lambda m: m.pop("carried")),
    ("expected ['last', 'main'], one after the other", lambda m: m["phases"].reverse()),
    ("the training shards are of the phases ['last', 'main', 'last']", lambda m: m["shards"][0].update(phase="last")),
    ("disagrees with the manifest on", lambda m: m["shards"][0].pop("phase")),
    ("expected numbers above 0 that add up to 1", lambda m: m["phases"][0].update(share=0.5)),
    ("phase 'main': 5 tokens in", lambda m: m["phases"][0].update(tokens=5)),
    ("the phases' requested_tokens add up to", lambda m: m["phases"][0].update(requested_tokens=5)),
    ("phase 'main', source 'prose': achieved_tokens 5", lambda m: m["phases"][0]["mix"][0].update(achieved_tokens=5)),
    ("phase 'main' lists ['prose', 'notes']; expected the sources in order", lambda m: m["phases"][0]["mix"].pop()),
    ("mix, source 'prose': requested 0.9; its weight's share is", lambda m: m["mix"][0].update(requested=0.9)),
    ("expected none outside the training split", lambda m: m["shards"][-1].update(phase="main")),
]


@pytest.mark.parametrize(("message", "change"), MANIFEST_FAULTS, ids=[message for message, _ in MANIFEST_FAULTS])
def test_validation_finds_what_is_wrong_in_the_manifest(
    whole: Built, tmp_path: Path, message: str, change: Callable[[Any], Any]
) -> None:
    for path in whole.out.iterdir():
        (tmp_path / path.name).symlink_to(path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    change(manifest)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    problems = [str(problem) for problem in validate(tmp_path).problems]
    assert any(message in problem for problem in problems), problems


# What a change of the recipe runs again, and that the set is then the one of a build from nothing.

MIXED = {"mix", "assemble"}
MOVES: dict[str, tuple[list[str], set[str]]] = {
    "nothing": ([], set()),
    "a limit": (["clean.gopher.min_words=30"], MIXED),
    "a limit turned off": (["clean.gopher.min_stop_words=off"], MIXED),
    "a limit of one source": (["sources.notes.clean.fineweb.min_punctuated_lines=0.2"], MIXED),
    "similarity": (["clean.near_duplicates.min_jaccard=0.9"], MIXED),
    "near-duplicates that stay": (["clean.near_duplicates.action=report"], MIXED),
    "items that are dropped": (
        ["evaluations.dropped.action=report", "evaluations.reported.action=drop", "evaluations.reported.max_dropped=1"],
        MIXED,
    ),
    "the block list": (["drop_hashes=[]"], MIXED),
    "phases": (["mix.phases=[]"], MIXED),
    "a weight": (["mix.phases=[]", "sources.notes.weight=3"], MIXED),
    "a share of the documents": (["sources.prose.take=0.9", "sources.code.take=1"], MIXED),
    "fewer tokens": (["mix.tokens=60_000"], MIXED),
    "a license": (['sources.prose.license="odc-by"'], set()),
    "the size of shards": (["shards.tokens=9_000"], MIXED),
    "carried columns": (
        [f"sources.{name}.carry=[]" for name in PHASES["main"]],
        {"encode", "bands", "pairs", "similar", *MIXED},
    ),
    "a pattern": (["drop_if_matches=[]"], set(STAGES) - {"evaluations"}),
    "a predicate": (['sources.prose.keep.score=">= 2"'], set(STAGES) - {"evaluations"}),
}


@pytest.fixture(scope="module")
def moving(whole: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a copy of set and work folder to change the recipe of."""
    folder = tmp_path_factory.mktemp("moving")
    for name in ("set", "set.work"):
        shutil.copytree(whole.out.with_name(name), folder / name)
    return Built(whole.recipe, folder / "set", whole.result)


@pytest.mark.parametrize("name", MOVES)
def test_a_change_runs_again_what_depends_on_it_and_no_more(name: str, moving: Built, whole: Built) -> None:
    changes, expected = MOVES[name]
    moved = build_here(moving.recipe, moving.out, *overrides(*changes))
    assert {stage for stage, count in moved["ran"].items() if count} == expected
    assert moved["problems"] == []
    assert len(list(moving.out.glob("*.bin.zst"))) == moved["shards"], "no old shard is left"
    if name == "carried columns":
        tables = [pq.read_schema(shard.documents_source()) for shard in open_set(moving.out).shards]
        assert all(table.equals(document_schema(), check_metadata=False) for table in tables)
        tokens = {file: digest for file, digest in whole.digests.items() if file.endswith((".bin.zst", "kenizer.json"))}
        assert tokens.items() <= digests(moving.out).items()
        refused = call_here(main, "trace", moving.out, "--where", "url=x").stderr
        assert 'Build it again with carry = ["url"]' in refused
    elif name != "nothing":
        assert digests(moving.out) != whole.digests
    back = build_here(moving.recipe, moving.out)
    assert digests(moving.out) == whole.digests
    assert not back["ran"].keys() - set(STAGES)


@pytest.mark.long
def test_moved_limits_give_the_bytes_of_a_build_from_nothing(moving: Built, whole: Built, tmp_path: Path) -> None:
    changes = ["clean.gopher.max_words=300", "clean.c4.max_curly_brackets=off", "clean.code.max_longest_line_bytes=400"]
    changes += [change for name in ("a limit", "similarity", "items that are dropped") for change in MOVES[name][0]]
    moved = build_here(moving.recipe, moving.out, *overrides(*changes))
    assert {stage for stage, count in moved["ran"].items() if count} == MIXED
    run_build(moving.out / "recipe.json", tmp_path / "scratch", "--workers", "2")
    assert digests(moving.out) == digests(tmp_path / "scratch") != whole.digests
    build_here(moving.recipe, moving.out)


# What changes no byte.


@pytest.mark.long
def test_two_workers_and_a_bucket_change_no_byte(whole: Built, bucket: str) -> None:
    run_build(whole.recipe, f"{bucket}/set", "--workers", "2")
    assert digests_in(f"{bucket}/set") == whole.digests
    reports = [read_clean_report(place) for place in (f"{bucket}/set.work", whole.out.with_name("set.work"))]
    assert reports[0]["sources"] == reports[1]["sources"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_killed_in_every_stage_it_ends_with_the_same_bytes(whole: Built, tmp_path: Path) -> None:
    """Five kills; with `TOKENMILL_EXHAUSTIVE_TESTS` twenty, in all stages."""
    out, rng = tmp_path / "set", random.Random(12)
    stages = [*STAGES, *STAGES, *STAGES[2:6]] if EXHAUSTIVE else ["encode", "bands", "pairs", "similar", "assemble"]
    for stage in sorted(stages, key=STAGES.index):
        while not kill_in(stage, whole.recipe, out, rng.uniform(0, 0.01)):
            shutil.rmtree(tmp_path / "set.work" / stage)  # its tasks had finished: they run again
    build_here(whole.recipe, out)
    assert digests(out) == whole.digests
    assert not attempts(*(tmp_path / "set.work" / stage for stage in STAGES), out)
