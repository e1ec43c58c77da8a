"""Columns of the sources carried into the document tables: the same tokens, the right values, found again by them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.__main__ import main as pipeline_main
from shards import open_set
from shards.__main__ import main as shards_main
from shards.format.document_table import document_schema
from shards.validation.validate import validate
from tests.support.builds import build_here, digests, digests_in, one_worker, run_build
from tests.support.carried_corpus import carried_recipe, rows_of, write_carried_corpus
from tests.support.started import attempts, kill_in

NAMES = ["url", "score", "meta.lang", "good", "meta.id"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Build the same corpus without carried columns and with them, in one work folder."""
    folder = tmp_path_factory.mktemp("carried")
    write_carried_corpus(folder / "corpus")
    work = ("--work", str(folder / "work"))
    off = build_here(carried_recipe(folder, carry=False), folder / "off", *work)
    on = build_here(carried_recipe(folder), folder / "on", *work)
    return {"folder": folder, "off": off, "on": on}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for shard in open_set(folder).shards for row in shard.documents().to_pylist()]


def test_without_carry_the_tables_are_as_they_were(built: dict[str, Any]) -> None:
    manifest = json.loads((built["folder"] / "off/manifest.json").read_text())
    assert manifest["format_version"] == 1
    assert "carried" not in manifest
    assert "carried_values" not in manifest["shards"][0]
    assert "carry" not in (built["folder"] / "off/recipe.json").read_text()
    for shard in open_set(built["folder"] / "off").shards:
        assert pq.read_schema(shard.documents_source()).equals(document_schema(), check_metadata=False)


def test_tokens_are_the_same_bytes_with_carried_columns(built: dict[str, Any]) -> None:
    off, on = (digests(built["folder"] / name) for name in ("off", "on"))
    tokens = [name for name in off if name.endswith(".bin.zst") or name == "tokenizer.json"]
    assert len(tokens) > 3
    assert {name: off[name] for name in tokens} == {name: on[name] for name in tokens}
    assert off.keys() == on.keys()
    # The tokenizer is not trained again, and everything is encoded again.
    assert {name for name, count in built["on"]["ran"].items() if count} == {"encode", "mix", "assemble"}
    own = list(document_schema().names)
    for one, other in zip(
        open_set(built["folder"] / "off").shards, open_set(built["folder"] / "on").shards, strict=True
    ):
        assert one.documents().equals(other.documents(own))


def test_every_document_has_the_values_of_its_row(built: dict[str, Any]) -> None:
    rows = {source: rows_of(source) for source in ("prose", "docs")}
    sizes = {"prose-0.parquet": 0, "prose-1.parquet": len(rows["prose"]) // 2}
    found = read_rows(built["folder"] / "on")
    seen: set[str] = set()
    for row in found:
        seen.add(row["source"])
        values = {name: row[name] for name in NAMES}
        if row["source"] == "code":
            assert set(values.values()) == {None}
            continue
        first = sizes[row["unit"].partition("@")[0]] if row["source"] == "prose" else 0
        expected = rows[row["source"]][first + row["row"]]
        if row["source"] == "prose":
            lang = expected["meta"]["lang"]
            wanted = {"url": expected["url"], "score": float(expected["score"]), "meta.lang": lang}
            wanted |= {"good": expected["good"], "meta.id": None}
        else:
            wanted = {"url": expected["url"], "score": None, "meta.lang": None, "good": None}
            wanted |= {"meta.id": expected["meta"]["id"]}
        assert values == wanted
    assert seen == {"prose", "docs", "code"}


def test_the_manifest_and_each_shard_say_what_is_carried(built: dict[str, Any]) -> None:
    out = built["folder"] / "on"
    manifest = open_set(out).manifest
    assert manifest.format_version == 3
    assert [(column.name, column.type, column.sources) for column in manifest.carried] == [
        ("url", "string", ["prose", "docs"]),
        ("score", "float64", ["prose"]),
        ("meta.lang", "string", ["prose"]),
        ("good", "bool", ["prose"]),
        ("meta.id", "int64", ["docs"]),
    ]
    found = read_rows(out)
    for name in NAMES:
        values = sum(shard.carried_values[name] for shard in manifest.shards)
        assert values == sum(row[name] is not None for row in found) > 0
    sidecar = json.loads((out / "val-00000.json").read_text())
    assert sidecar["format_version"] == 3
    assert [column["name"] for column in sidecar["carried"]] == NAMES
    assert validate(out, level="full", against_sources=20).ok


def test_two_workers_and_a_killed_build_give_the_same_bytes(built: dict[str, Any]) -> None:
    folder = built["folder"]
    recipe = carried_recipe(folder)
    expected = digests(folder / "on")
    run_build(recipe, folder / "two", "--workers", "2")
    assert digests(folder / "two") == expected
    killed = folder / "killed"
    for stage in ("encode", "assemble"):
        while not kill_in(stage, recipe, killed, 0.005):
            shutil.rmtree(folder / "killed.work" / stage)  # its tasks had finished: they run again
    run_build(recipe, killed)
    assert not attempts(folder / "killed.work/encode", killed)
    assert digests(folder / "killed") == expected


def test_a_bucket_has_the_same_bytes(built: dict[str, Any], bucket: str) -> None:
    run_build(carried_recipe(built["folder"]), f"{bucket}/set", "--workers", "2")
    of_paths = ("manifest.json", "recipe.json")  # whose paths begin at the root
    found, expected = (
        {name: digest for name, digest in own.items() if name not in of_paths}
        for own in (digests_in(f"{bucket}/set"), digests(built["folder"] / "on"))
    )
    assert found == expected


def test_a_duplicate_has_the_values_of_the_document_that_is_kept(built: dict[str, Any]) -> None:
    """Ten documents are in both sources; the first source keeps them, with its own values."""
    rows = rows_of("docs")
    doubled = {row["text"] for row in rows[-10:]}
    kept = {row["text"]: row["url"] for row in rows_of("prose") if row["text"] in doubled and row["score"] >= 1}
    assert len(kept) > 4
    found = {row["url"] for row in read_rows(built["folder"] / "on") if row["source"] == "docs"}
    assert not {row["url"] for row in rows[-10:] if row["text"] in kept and row["url"]} & found


def run(capsys: pytest.CaptureFixture[str], command: str, *arguments: str, expect: int = 0) -> Any:
    status = shards_main([*one_worker(command, *arguments), "--json"])
    out, err = capsys.readouterr()
    assert status == expect, out + err
    return json.loads(out)


def test_a_url_leads_to_documents_and_to_a_block_list_that_removes_them(
    built: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = built["folder"]
    rows = read_rows(folder / "on")
    one = next(row for row in rows if row["url"])
    found = run(capsys, "trace", str(folder / "on"), "--where", f"url={one['url']}")
    assert found["documents"] == 1
    assert found["shown"][0]["hash"] == one["hash"].hex()
    assert found["shown"][0]["carried"]["url"] == one["url"]
    block = folder / "block.txt"
    begins = "https://a.example/prose/"
    found = run(capsys, "trace", str(folder / "on"), "--where", f"url^={begins}", "--out", str(block), "--workers", "2")
    expected = {row["hash"] for row in rows if (row["url"] or "").startswith(begins)}
    assert found["documents"] == len(expected) > 20
    assert found["sources"] == {"prose": {"documents": len(expected), "hits": len(expected)}}
    assert len(found["shown"]) == 20
    host = run(capsys, "trace", str(folder / "on"), "--where", r"url~=^https?://([^/]*\.)?a\.example(/|$)")
    assert set(host["sources"]) == {"prose", "docs"}
    both = ["--where", f"url^={begins}", "--where", "score=2", "--where", "good=true"]
    found = run(capsys, "trace", str(folder / "on"), *both)
    of_both = [row for row in rows if row["hash"] in expected and row["score"] == 2 and row["good"]]
    assert found["documents"] == len(of_both) > 0

    recipe = carried_recipe(folder)
    recipe.write_text(f'drop_hashes = ["{block}"]\n' + recipe.read_text())
    again = build_here(recipe, folder / "removed", "--work", str(folder / "work"))
    assert {name for name, count in again["ran"].items() if count} == {"mix", "assemble"}
    assert not expected & {row["hash"] for row in read_rows(folder / "removed")}


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
def test_wrong_conditions_are_refused(
    built: dict[str, Any], capsys: pytest.CaptureFixture[str], condition: str, message: str
) -> None:
    assert shards_main(["trace", str(built["folder"] / "on"), "--where", condition]) == 2
    assert message in capsys.readouterr().err
    assert shards_main(["trace", str(built["folder"] / "off"), "--where", "url=x"]) == 2
    assert 'Build it again with carry = ["url"]' in capsys.readouterr().err


def test_inspect_shows_carried_columns(built: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    out = str(built["folder"] / "on")
    described = run(capsys, "inspect", out)["carried"]
    assert [row["carried"] for row in described] == NAMES
    assert sum(described[0][key] for key in ("values", "null")) == len(read_rows(built["folder"] / "on"))
    document = run(capsys, "inspect", out, "--shard", "0", "--document", "3")
    row = open_set(out).shards[0].documents().to_pylist()[3]
    assert document["carried"] == {name: row[name] for name in NAMES}
    assert shards_main(["inspect", out, "--shard", "0", "--document", "3"]) == 0
    assert f"# url: {json.dumps(row['url'], ensure_ascii=False)}" in capsys.readouterr().out
    assert run(capsys, "inspect", str(built["folder"] / "off"))["carried"] == []
    found = run(capsys, "trace", out, "--hash", row["hash"].hex())
    assert found["places"][0]["carried"]["url"] == row["url"]


def test_an_export_to_parquet_has_them(built: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    out = built["folder"] / "exported"
    run(capsys, "export", str(built["folder"] / "on"), "--to", "parquet", "--out", str(out), "--verify")
    table = pa.concat_tables([pq.read_table(path) for path in sorted((out / "data").glob("*.parquet"))])
    assert table.schema.field("url").type == pa.string()
    own = {row["hash"].hex(): row["url"] for row in read_rows(built["folder"] / "on")}
    assert dict(zip(table["hash"].to_pylist(), table["url"].to_pylist(), strict=True)) == own
    assert pc.sum(pc.is_valid(table["meta.id"])).as_py() > 0


def damage(column: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    def apply(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(column)
        field = table.schema.field(index)
        return table.set_column(index, field, pa.array(change(table[column].to_pylist()), field.type))

    return apply


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage("url", lambda values: [None, *values[1:]] if values[0] else ["x", *values[1:]]), "column 'url' has"),
        (damage("meta.id", lambda values: [1] * len(values)), "whose source does not carry it"),
        (lambda table: table.drop_columns(["good"]), "columns start"),
        (
            lambda table: table.set_column(7, pa.field("score", pa.float32()), table["score"].cast("float32")),
            "score: f",
        ),
    ],
)
def test_validation_finds_what_is_wrong_with_carried_values(
    built: dict[str, Any], tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    from tests.support.faults import table

    for path in (built["folder"] / "on").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    table(change)(tmp_path)
    problems = [problem for problem in validate(tmp_path, level="full").problems if problem.kind == "document_table"]
    assert any(message in problem.message for problem in problems), problems


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["carried"][0].update(name="hash"), "columns of their own"),
        (lambda m: m["carried"][0].update(name="SCORE"), "in case alone"),
        (lambda m: m["carried"][0].update(sources=["nobody"]), "not in the manifest"),
        (lambda m: m["carried"].pop(), "expected of"),
        (lambda m: m["shards"][0]["carried_values"].update({"url": 10**6}), "expected at most"),
        (lambda m: m.update(format_version=1), "expected 3"),
        (lambda m: m.pop("carried"), "expected 1"),
    ],
)
def test_validation_finds_what_is_wrong_in_the_manifest(
    built: dict[str, Any], tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    for path in (built["folder"] / "on").iterdir():
        (tmp_path / path.name).symlink_to(path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    change(manifest)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    problems = validate(tmp_path).problems
    assert any(message in problem.message for problem in problems), problems


def test_a_plan_prices_what_is_carried(built: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    plans: dict[bool, Any] = {}
    for carry in (False, True):
        assert pipeline_main(["plan", str(carried_recipe(built["folder"], carry=carry)), "--json"]) == 0
        plans[carry] = json.loads(capsys.readouterr().out)
    for key in ("train_tokens", "val_tokens", "shards"):
        assert plans[False][key] == plans[True][key]
    work = built["folder"] / "work/encode"
    runs = sum(path.stat().st_size for path in work.rglob("carried*.bin"))
    assert runs > 10_000
    scratch = plans[True]["scratch_bytes"] - plans[False]["scratch_bytes"]
    assert math.isclose(scratch, runs, rel_tol=0.1)
    sizes = {
        name: sum(path.stat().st_size for path in (built["folder"] / name).glob("*.docs.parquet"))
        for name in ("on", "off")
    }
    output = plans[True]["output_bytes"] - plans[False]["output_bytes"]
    assert math.isclose(output, sizes["on"] - sizes["off"], rel_tol=0.35)
