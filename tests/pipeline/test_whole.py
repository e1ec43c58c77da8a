"""One set with every feature on, built once: what each feature does to it, and that nothing else changes its bytes.

`test_same_bytes.py` builds it in other ways.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shards import ShardSet, open_set
from shards.convert.export import export_set
from shards.format.content_hash import hash_document
from tests.support.builds import Built, build_here, call_here, digests, read_json, run_build
from tests.support.cleaned_recipe import language_model
from tests.support.provenance import compare_with_sources
from tests.support.recipes import overrides

STAGES = ("evaluations", "tokenizer", "encode", "bands", "pairs", "similar", "mix", "assemble")


def rows_of(shard_set: ShardSet) -> list[dict[str, Any]]:
    return [row for shard in shard_set.shards for row in shard.documents().to_pylist()]


def run(command: str, *arguments: str | Path, expect: int = 0) -> Any:
    """Run a command, and return what it prints as JSON."""
    return call_here(command, *arguments, "--json", expect=expect).json


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


def test_every_feature_drops_or_masks_what_it_is_to(whole: Built):
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
    # Every document read is left or counted as dropped.
    prose = next(source for source in whole.result["sources"] if source["name"] == "prose")
    read = pq.read_metadata(whole.recipe.parent / "prose.parquet").num_rows
    assert prose["documents_available"] + sum(prose["dropped"].values()) == read


def test_documents_lead_back_to_rows_and_members(whole: Built):
    assert compare_with_sources(whole.out, 200) == (200, 0)


def test_the_query_of_the_page_joins_documents_with_their_rows(
    whole: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    page = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")
    query = page.partition("```sql\n")[2].partition("```")[0]
    (tmp_path / "crawl").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "crawl/prose.parquet").symlink_to(whole.recipe.parent / "prose.parquet")
    (tmp_path / "out/crawl").symlink_to(whole.out)
    monkeypatch.chdir(tmp_path)
    duckdb.sql(query.replace("source = 'crawl'", "source = 'prose'").replace("https://example.com/%", "%.example/1%"))
    texts = {row["url"]: row["text"] for row in pq.read_table("crawl/prose.parquet").to_pylist()}
    # Other documents were masked, so their hashes are not those of the rows' texts.
    wanted = {hash_document(text.encode()).hex() for url, text in texts.items() if "/1" in (url or "")}
    hashes = {row["hash"].hex() for row in rows_of(open_set(whole.out)) if row["source"] == "prose"}
    found = set(Path("removed.txt").read_text().split())
    assert found >= wanted & hashes
    assert len(wanted & hashes) > 10
    assert len(found) < len(hashes) / 2


def test_a_plan_foresees_phases_and_drops_and_refuses_a_small_phase(whole: Built):
    plan = run("plan", whole.recipe)
    first, last = plan["phases"]
    assert (first["name"], first["share"]) == ("main", 0.9)
    assert last["sources"] == {"prose": 0.1, "notes": 0.1, "code": 0.8, "chats": 0}
    assert first["tokens"] + last["tokens"] == plan["train_tokens"]
    for source, own in zip(plan["sources"], whole.result["sources"], strict=True):
        read = own["documents_available"] + sum(own["dropped"].values())
        expected = {reason: count / read for reason, count in own["dropped"].items()}
        not_taken = "not taken: take = 0.9"  # of few documents about a tenth
        assert source["dropped"].pop(not_taken, 0.0) == pytest.approx(expected.pop(not_taken, 0.0), abs=0.04)
        assert source["dropped"] == pytest.approx(expected)
    assert plan["seconds"]["near-duplicates"] > 0
    refused = call_here("plan", whole.recipe, *overrides("shards.tokens=100_000"), expect=2)
    assert "mix.phases.last: 0.1 of" in refused.stderr
    assert any(line.split()[:2] == ["last", "10.00%"] for line in refused.stdout.splitlines()), refused.stdout
    assert "1 arrow, 1 csv, 1 json, 1 jsonl" in refused.stdout


def test_report_inspect_and_trace_know_phases(whole: Built, tmp_path: Path):
    shard_set = open_set(whole.out)
    totals = {name: sum(shards, Counter[str]()) for name, shards in count_tokens(shard_set).items()}
    run("audit", whole.out, "--out", tmp_path / "audit")
    run("report", whole.out, "--audit", tmp_path / "audit", "--out", tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    for name, total in totals.items():
        _, begun, group = page.partition(f'<th scope="rowgroup" rowspan="4">{name}</th>')
        assert begun
        pattern = r'<th scope="row" class="left">(\w+)</th>.*<td>([\d,]+)</td>'
        shown = re.findall(pattern, group.partition("</tbody>")[0])
        assert dict(shown) == {source.name: f"{total[source.name]:,}" for source in shard_set.manifest.sources}
    assert "holds an item of dropped" in page
    assert "| `last` | 10.00" in (tmp_path / "report/README.md").read_text()

    described = run("inspect", whole.out)
    assert [phase["name"] for phase in described["phases"]] == ["main", "last"]
    row = shard_set.shards[0].documents().to_pylist()[3]
    found = run("trace", whole.out, "--hash", row["hash"].hex())
    assert {one["phase"] for one in found["places"]} == {"main"}


def test_an_export_has_phases(whole: Built, tmp_path: Path):
    shard_set = open_set(whole.out)
    for layout in ("nanogpt", "parquet"):
        export = export_set(shard_set, tmp_path / layout, layout=layout)
        main, last = read_json(tmp_path / layout / "export.json")["phases"]
        assert (main["name"], main["tokens"][0], main["tokens"][1]) == ("main", 0, last["tokens"][0])
        assert last["tokens"][1] == export["splits"]["train"]["tokens"]
        assert main["tokens"][1] == shard_set.manifest.phases[0].tokens
    table = pa.concat_tables(
        [pq.read_table(path) for path in sorted((tmp_path / "parquet/data").glob("*.parquet"))],
        promote_options="default",
    )
    expected = {row["hash"]: s.entry.phase for s in shard_set.shards for row in s.documents().to_pylist()}
    hashes = map(bytes.fromhex, table["hash"].to_pylist())
    assert dict(zip(hashes, table["phase"].to_pylist(), strict=True)) == expected


# What a change of the recipe runs again, and that the set is then the one of a build from nothing.

MIXED = {"mix", "assemble"}
MOVES: dict[str, tuple[list[str], set[str]]] = {
    "nothing": ([], set()),
    "a license": (['sources.prose.license="odc-by"'], set()),
    "another compression": (["shards.zstd_level=3"], {"assemble"}),
    "limits": (
        [
            "clean.gopher.min_words=30",
            "clean.gopher.min_stop_words=off",
            "sources.notes.clean.fineweb.min_punctuated_lines=0.2",
        ],
        MIXED,
    ),
    "near-duplicates that stay": (
        ["clean.near_duplicates.min_jaccard=0.9", "clean.near_duplicates.action=report"],
        MIXED,
    ),
    "near-duplicates that are not looked for": (["clean.near_duplicates.enabled=false"], MIXED),
    "items that are dropped": (
        ["evaluations.dropped.action=report", "evaluations.reported.action=drop", "evaluations.reported.max_dropped=1"],
        MIXED,
    ),
    "the block list": (["drop_hashes=[]"], MIXED),
    "phases and a weight": (["mix.phases=[]", "sources.notes.weight=3"], MIXED),
    "a share of the documents": (["sources.prose.take=0.9", "sources.code.take=1"], MIXED),
    "sizes": (["mix.tokens=60_000", "shards.tokens=5_000"], MIXED),
    "a pattern and a predicate": (
        ["drop_if_matches=[]", 'sources.prose.keep.score=">= 2"'],
        set(STAGES) - {"evaluations"},
    ),
    "nothing any more": ([], {"assemble"}),
}
"""What is changed of the recipe, one after the other, and the stages of which a task runs."""


@pytest.fixture(scope="module")
def moving(whole: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a copy of set and work folder to change the recipe of."""
    return whole.copy(tmp_path_factory.mktemp("moving"))


@pytest.mark.parametrize("name", MOVES)
def test_a_change_runs_again_what_depends_on_it_and_no_more(name: str, moving: Built, whole: Built):
    changes, expected = MOVES[name]
    moved = build_here(moving.recipe, moving.out, *overrides(*changes))
    assert {stage for stage, count in moved["ran"].items() if count} == expected
    assert moved["problems"] == []
    assert len(list(moving.out.glob("*.bin.zst"))) == moved["shards"], "no old shard is left"
    assert (digests(moving.out) == whole.digests) == (not changes)


@pytest.mark.long
def test_moved_limits_give_the_bytes_of_a_build_from_nothing(moving: Built, whole: Built, tmp_path: Path):
    changes = ["clean.gopher.max_words=300", "clean.c4.max_curly_brackets=off", "clean.code.max_longest_line_bytes=400"]
    changes += [*MOVES["limits"][0], "clean.near_duplicates.min_jaccard=0.9", *MOVES["items that are dropped"][0]]
    moved = build_here(moving.recipe, moving.out, *overrides(*changes))
    assert {stage for stage, count in moved["ran"].items() if count} == MIXED
    run_build(moving.out / "recipe.json", tmp_path / "scratch", "--workers", "2")
    assert digests(moving.out) == digests(tmp_path / "scratch") != whole.digests
