"""Builds that clean: what a moved limit costs, when a build stops over one, and that nothing else decides the bytes."""

# pyright: basic

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.mix.drops.table import read_drops
from pipeline.recipe.presets import Gopher
from shards.__main__ import main as shards_main
from tests.support.builds import build_here, call_here, digests, real_documents, run_build

pytestmark = pytest.mark.long


RECIPE = """
name = "clean"
[[sources]]
name = "prose"
paths = ["prose*.jsonl"]
weight = 6
{prose}
[[sources]]
name = "more"
paths = ["more.jsonl"]
weight = 3
{more}
[tokenizer]
vocab_size = 400
sample_bytes = "200 KB"
[split]
val_tokens = 3_000
[shards]
tokens = 20_000
{rest}
"""


def write_lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of paragraphs, many of them short; 150 paragraphs are in both."""
    folder = tmp_path_factory.mktemp("clean")
    documents = real_documents()
    half = len(documents) // 2
    write_lines(folder / "prose.jsonl", [*documents[:half], "<script>alert(1)</script> a"])
    write_lines(folder / "more.jsonl", [*documents[half:], *documents[:150]])
    return folder


def write_recipe(folder: Path, name: str = "recipe.toml", *, prose: str = "", more: str = "", rest: str = "") -> Path:
    path = folder / name
    path.write_text(RECIPE.format(prose=prose, more=more, rest=rest))
    return path


KEPT = ("min_words", "max_words", "max_mean_word_chars")
OTHERS_OFF = "".join(f"\n{key} = 'off'" for key in Gopher.limit_keys() if key not in KEPT)
GOPHER = f"[sources.clean.gopher]\nmin_words = 15\nmax_dropped = 1{OTHERS_OFF}"
OFF_BUT_KEPT = Gopher().model_dump() | {key: "off" for key in Gopher.limit_keys() if key not in KEPT}
MOVE = "sources.prose.clean.gopher.min_words"


@pytest.fixture(scope="module")
def built(folder: Path) -> dict[str, Any]:
    return build_here(write_recipe(folder, prose=GOPHER), folder / "set")


def source(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in result["sources"] if entry["name"] == name)


def test_a_moved_limit_mixes_and_assembles_again_and_nothing_else(built: dict[str, Any], folder: Path) -> None:
    assert built["ran"]["encode"] == 2
    assert source(built, "prose")["dropped"]["gopher: min_words"] > 5
    before = digests(folder / "set")
    moved = build_here(folder / "recipe.toml", folder / "set", "--set", f"{MOVE}=25")
    assert moved["ran"] == moved["ran"] | {"tokenizer": 0, "encode": 0, "mix": 1}
    assert moved["ran"]["assemble"] > 0
    assert (
        source(moved, "prose")["dropped"]["gopher: min_words"] > source(built, "prose")["dropped"]["gopher: min_words"]
    )
    assert any("on a sample with other limits (prose: gopher.min_words = 15.0, now 25.0)" in n for n in moved["notes"])
    assert "same sample" not in moved["stderr"]
    run_build(folder / "set/recipe.json", folder / "scratch", "--workers", "2")
    assert digests(folder / "scratch") == digests(folder / "set") != before
    fresh = build_here(folder / "recipe.toml", folder / "fresh", "--set", f"{MOVE}=25")
    assert digests(folder / "fresh")["tokenizer.json"] != digests(folder / "set")["tokenizer.json"]
    assert not any("other limits" in note for note in fresh["notes"])
    off = build_here(folder / "recipe.toml", folder / "set", "--set", f"{MOVE}=off")
    assert (off["ran"]["tokenizer"], off["ran"]["encode"]) == (0, 0)
    assert "gopher: min_words" not in source(off, "prose")["dropped"]
    assert json.loads((folder / "set/recipe.json").read_text())["tokenizer"]["sample_limits"] == {
        "prose": {"gopher": {**OFF_BUT_KEPT, "min_words": 15.0}}
    }
    again = build_here(folder / "recipe.toml", folder / "set")
    assert (again["ran"]["tokenizer"], again["ran"]["encode"]) == (0, 0)
    assert digests(folder / "set") == before


def test_the_counts_add_up_to_the_documents_read(built: dict[str, Any], folder: Path) -> None:
    for name in ("prose", "more"):
        entry = source(built, name)
        lines = len((folder / f"{name}.jsonl").read_text().splitlines())
        assert entry["documents_available"] + sum(entry["dropped"].values()) == lines


def test_of_equal_documents_the_one_that_stays_is_kept(built: dict[str, Any], folder: Path) -> None:
    """`more` has no limits: it keeps the documents that fall in `prose`."""
    shared = [json.loads(line)["text"] for line in (folder / "prose.jsonl").read_text().splitlines()][:150]
    fall = [text for text in shared if len(text.split()) < 15]
    assert 0 < len(fall) < 150
    elsewhere = source(built, "more")["dropped"]["duplicate of another source"]
    assert elsewhere == 150 - sum(source_drops(text) for text in shared)


def source_drops(text: str) -> bool:
    """Reference: the limits of `prose`, in plain Python."""
    words = text.split()
    return len(words) < 15 or sum(map(len, words)) / len(words) > 10


def test_the_set_is_valid_and_has_a_report(built: dict[str, Any], folder: Path) -> None:
    for command in ("validate", "report"):
        options = ["--out", folder / "report"] if command == "report" else []
        done = call_here(shards_main, command, folder / "set", *options)
        assert done.returncode == 0, done.stderr + done.stdout
    assert "gopher: min_words" in next((folder / "report").glob("*.html")).read_text()
    manifest = json.loads((folder / "set/manifest.json").read_text())
    assert "gopher: min_words" in manifest["sources"][0]["dropped"]


def test_turning_a_preset_on_trains_and_encodes(built: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    on = build_here(folder / "recipe.toml", folder / "set", "--set", "clean.code.max_dropped=1")
    assert (on["ran"]["tokenizer"], on["ran"]["encode"]) == (1, 2)
    build_here(folder / "recipe.toml", folder / "set")


def test_an_empty_table_does_nothing(folder: Path, tmp_path: Path) -> None:
    plain = write_recipe(folder, "plain.toml")
    build_here(plain, tmp_path / "set")
    before = digests(tmp_path / "set")
    empty = write_recipe(folder, "empty.toml", prose="[sources.clean]", rest="[clean]")
    assert build_here(empty, tmp_path / "set")["tasks_run"] == 0
    assert digests(tmp_path / "set") == before
    build_here(empty, tmp_path / "anew")
    assert digests(tmp_path / "anew") == before
    assert '"clean":' not in (tmp_path / "set/recipe.json").read_text()
    assert not list((tmp_path / "set.work").glob("*/*/measures.bin"))
    assert not list((tmp_path / "set.work").glob("*/*/cleaning.json"))


def test_too_much_that_falls_when_mixing_stops_the_build(built: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    strict = ["--set", f"{MOVE}=40", "--set", "sources.prose.clean.gopher.max_dropped=0.2"]
    refused = build_here(folder / "recipe.toml", folder / "set", *strict, expect=2)["stderr"]
    assert "source 'prose': clean.gopher drops " in refused
    assert "more than max_dropped = 0.2 allows" in refused
    assert refused.count("gopher: min_words: words is ") == 10
    assert refused.count(", limit 40: ") == 10
    texts = [json.loads(line)["text"][:30] for line in (folder / "prose.jsonl").read_text().splitlines()]
    (line, *_) = [line for line in refused.splitlines() if "gopher: min_words: words is " in line]
    row = int(line.partition(" row ")[2].partition(":")[0])
    assert texts[row][:20].split("\n")[0] in line
    share = refused.partition("set max_dropped = ")[2].partition(" ")[0]
    allowed = build_here(
        folder / "recipe.toml", folder / "set", *strict[:3], f"sources.prose.clean.gopher.max_dropped={share}"
    )
    assert (allowed["ran"]["tokenizer"], allowed["ran"]["encode"], allowed["ran"]["mix"]) == (0, 0, 0)
    build_here(folder / "recipe.toml", folder / "set")


def test_the_alarm_comes_before_the_shortage_that_it_causes(built: dict[str, Any], folder: Path) -> None:
    strict = ["--set", f"{MOVE}=100000", "--set", "sources.prose.clean.gopher.max_dropped=0.9"]
    refused = build_here(folder / "recipe.toml", folder / "set", *strict, expect=2)["stderr"]
    assert "(100.00%), more than max_dropped = 0.9 allows" in refused
    assert "set max_dropped = 1.0 next to them, in [sources.clean.gopher] or" in refused
    refused = build_here(folder / "recipe.toml", folder / "set", *strict[:2], expect=2)["stderr"]
    assert "source 'prose': no document is left to mix (" in refused
    assert "Move the limits of `clean`" in refused
    assert build_here(folder / "recipe.toml", folder / "set")["ran"]["encode"] == 0


def test_too_much_that_falls_before_encoding_stops_the_build(folder: Path, tmp_path: Path) -> None:
    early = "[sources.clean.gopher]\nmin_words = 40\nwhen = 'encode'"
    recipe = write_recipe(folder, "early.toml", prose=early)
    refused = build_here(recipe, tmp_path / "set", expect=2)["stderr"]
    assert "source 'prose': clean.gopher drops " in refused
    assert refused.count("gopher: min_words: words is ") == 10
    recipe = write_recipe(folder, "early.toml", prose=early + "\nmax_dropped = 1")
    built = build_here(recipe, tmp_path / "set")
    assert (built["ran"]["tokenizer"], built["ran"]["encode"]) == (0, 0)
    assert source(built, "prose")["dropped"]["gopher: min_words"] > 100
    assert not list((tmp_path / "set.work").glob("*/*/measures.bin"))
    late = write_recipe(folder, "late.toml", prose=early.replace("encode", "mix") + "\nmax_dropped = 1")
    mixed = build_here(late, tmp_path / "late")
    assert source(mixed, "prose")["dropped"] == source(built, "prose")["dropped"]
    everything = write_recipe(folder, "all.toml", prose=early.replace("40", "50_000") + "\nmax_dropped = 1")
    refused = build_here(everything, tmp_path / "none", expect=2)["stderr"]
    assert "source 'prose': no document is left: " in refused


def flip(path: Path) -> None:
    """Change one bit in the middle of a file and keep its time, as a disk that fails does."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_damaged_measures_are_measured_again(built: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    build_here(folder / "recipe.toml", tmp_path / "set", "--set", f"{MOVE}=25")
    expected = digests(tmp_path / "set")
    build_here(folder / "recipe.toml", tmp_path / "set", "--keep", "0")  # so that going back mixes again
    (measures,) = (tmp_path / "set.work/encode").glob("*/measures.bin")
    flip(measures)
    again = build_here(folder / "recipe.toml", tmp_path / "set", "--set", f"{MOVE}=25", "--keep", "0")
    assert f"{measures}: damaged" in again["stderr"]
    assert f"the encode task {measures.parent.name} runs again" in again["stderr"]
    assert digests(tmp_path / "set") == expected
    (found,) = (tmp_path / "set.work/mix").glob("*/cleaning.json")
    flip(found)
    again = build_here(folder / "recipe.toml", tmp_path / "set", "--set", f"{MOVE}=25")
    assert f"the mix task {found.parent.name} runs again" in again["stderr"]
    assert digests(tmp_path / "set") == expected


def test_a_kept_tokenizer_and_a_moved_limit_encode_what_is_new(folder: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, prose=GOPHER)
    for name in ("prose.jsonl", "more.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    build_here(recipe, tmp_path / "set")
    write_lines(tmp_path / "prose-2.jsonl", [f"{n} words " * (n % 30 + 1) for n in range(100)])
    kept = build_here(recipe, tmp_path / "set", "--keep-tokenizer", "--set", f"{MOVE}=25")
    assert (kept["ran"]["tokenizer"], kept["ran"]["encode"]) == (0, 1)
    assert source(kept, "prose")["dropped"]["gopher: min_words"] > 30


def report(place: Path, *options: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = call_here(main, "clean-report", place, *options)
    assert done.returncode == expect, done.stderr + done.stdout
    return done


def test_the_report_shows_the_last_mix_also_one_that_stopped_the_build(built: dict[str, Any], folder: Path) -> None:
    work = folder / "set.work"
    texts = [json.loads(line)["text"] for line in (folder / "prose.jsonl").read_text().splitlines()]
    strict = ["--set", f"{MOVE}=40", "--set", "sources.prose.clean.gopher.max_dropped=0.2"]
    refused = run_build(folder / "recipe.toml", folder / "set", *strict, expect=2)["stderr"]
    assert f"`python -m pipeline clean-report {work}` shows what falls at each limit." in refused
    for minimum, options in ((40, []), (15, None)):
        if options is None:  # a mix that was done before
            build_here(folder / "recipe.toml", folder / "set")
        found = json.loads(report(work, "--json").stdout)
        (source,) = found["sources"]
        tables = read_drops([entry["drops"] for entry in found["steps"]])
        for drops in tables:
            for name in ("documents", "tokens"):
                gone = [getattr(step.first, name) for step in drops.steps.values() if not step.before_encoding]
                assert getattr(drops.read, name) == getattr(drops.left, name) + sum(gone) > 0
        assert tables[0].records == len(texts)
        assert asdict(tables[0].steps["gopher"].reasons["gopher: min_words"].first) == source["limits"][0]["first"]
        limit = source["limits"][0]
        assert (source["name"], limit["reason"], limit["value"]) == ("prose", "gopher: min_words", minimum)
        short = [text for text in texts if len(text.split()) < minimum]
        assert limit["every"]["documents"] == len(short)
        for other in limit["others"]:
            assert other["documents"] == sum(len(text.split()) < other["value"] for text in texts)
        assert {item["text"] for item in limit["random"]} <= {text[:1500] for text in short}
        for item in (*limit["random"], *limit["fallen"], *limit["left"]):
            assert item["text"] == texts[item["row"]][:1500]
            assert item["value"] == len(texts[item["row"]].split())
        assert all(item["value"] >= minimum for item in limit["left"])
    shown = report(folder / "set", "--examples", "2").stdout
    assert f"prose: {len(texts):,} documents measured, {source['left']['documents']:,} left" in shown
    assert shown.count("gopher: min_words = 15 drops ") == 1
    assert shown.count(": words is ") >= 2
    still = [limit["reason"] for limit in source["limits"] if not limit["every"]["documents"]]
    assert still == ["gopher: max_words"]
    assert "gopher: max_words" not in shown
    assert "1 limit left out, each of which drops nothing" in shown
    assert "1 limit left out, each of which would drop nothing at these values either" in shown
    assert ", ".join(f"{other['documents']:,} at {other['value']:g}" for other in limit["others"]) in shown


def test_a_limit_that_drops_one_document_says_so(built: dict[str, Any], folder: Path) -> None:
    texts = {json.loads(line)["text"] for line in (folder / "prose.jsonl").read_text().splitlines()}
    *_, most, longest = sorted(len(text.split()) for text in texts)
    assert most < longest
    limit = f"sources.prose.clean.gopher.max_words={most}"
    build_here(folder / "recipe.toml", folder / "set", "--set", limit)
    shown = report(folder / "set", "--examples", "1").stdout
    assert f"gopher: max_words = {most} drops 1 document\n" in shown
    build_here(folder / "recipe.toml", folder / "set")


def test_the_report_of_a_given_tokenizer(built: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    given = f'tokenizer={{file = "{folder}/set/tokenizer.json"}}'
    build_here(folder / "recipe.toml", tmp_path / "set", "--set", given)
    found, expected = (json.loads(report(place, "--json").stdout) for place in (tmp_path / "set", folder / "set"))
    for source in (*found["sources"], *expected["sources"]):
        for item in (
            item for limit in source["limits"] for name in ("random", "fallen", "left") for item in limit[name]
        ):
            item.pop("run")
    assert found["sources"] == expected["sources"]


def test_a_folder_without_a_mix_that_cleaned_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path}: is empty. Give the work folder" in report(tmp_path, expect=2).stderr
    absent = tmp_path / "absent.work"
    assert f"{absent}: no such folder. Give the work folder" in report(absent, expect=2).stderr
    (tmp_path / "file").write_text("x")
    assert "no build here has mixed" in report(tmp_path, expect=2).stderr


def test_a_damaged_work_folder_is_repaired_by_a_build_as_the_report_says(folder: Path, tmp_path: Path) -> None:
    work = tmp_path / "set.work"
    run_build(folder / "recipe.toml", tmp_path / "set")
    whole = json.loads(report(work, "--json").stdout)
    (cleaning,) = work.glob("mix/*/cleaning.json")
    for file in (cleaning, work / "last-build.json"):
        file.write_bytes(file.read_bytes()[:-40])
        refused = report(work, expect=1).stderr
        assert f"{file}: " in refused
        assert "Run the build command again: it repairs what is missing or damaged." in refused
        run_build(folder / "recipe.toml", tmp_path / "set")
        assert json.loads(report(work, "--json").stdout) == whole
