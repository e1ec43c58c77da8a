"""Builds that clean by limits: when a build stops over one, what moves with it, and what the report says.

That a limit that moves mixes again and no more, and that nothing else decides the bytes, is in `test_whole.py`.
"""

# pyright: basic

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.clean_report import ReportRow, render_page
from pipeline.recipe.presets import Gopher
from tests.support.builds import build_here, call_here, digests, real_documents
from tests.support.recipes import overrides, source, write_recipe, write_texts
from tokenmill.__main__ import main

pytestmark = pytest.mark.long


KEPT = ("min_words", "max_words", "max_mean_word_chars")
OTHERS_OFF = {key: "off" for key in Gopher.limit_keys() if key not in KEPT}
GOPHER = {"gopher": {"min_words": 15, "max_dropped": 1} | OTHERS_OFF}
MOVE = "sources.prose.clean.gopher.min_words"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of two sources of paragraphs, many of them short; 150 paragraphs are in both."""
    folder = tmp_path_factory.mktemp("clean of two")
    documents = real_documents()
    half = len(documents) // 2
    write_texts(folder / "prose.jsonl", [*documents[:half], "<script>alert(1)</script> a"])
    write_texts(folder / "more.jsonl", [*documents[half:], *documents[:150]])
    sources = [source("prose", "prose.jsonl", weight=6, clean=GOPHER), source("more", "more.jsonl", weight=3)]
    tokenizer = {"vocab_size": 400, "sample_bytes": "200 KB"}
    sizes = {"split": {"val_tokens": 3000}, "shards": {"tokens": 20_000}}
    write_recipe(folder / "recipe.toml", *sources, name="clean", tokenizer=tokenizer, **sizes)
    return folder


@pytest.fixture(scope="module")
def built(folder: Path) -> dict[str, Any]:
    return build_here(folder / "recipe.toml", folder / "set")


def test_a_moved_limit_keeps_the_sample_of_the_tokenizer_and_says_so(built: dict[str, Any], folder: Path) -> None:
    before = digests(folder / "set")
    moved = build_here(folder / "recipe.toml", folder / "set", *overrides(f"{MOVE}=25"))
    few, more = (result["sources"][0]["dropped"]["gopher: min_words"] for result in (built, moved))
    assert 5 < few < more
    assert any("on a sample with other limits (prose: gopher.min_words = 15.0, now 25.0)" in n for n in moved["notes"])
    build_here(folder / "recipe.toml", folder / "set", *overrides(f"{MOVE}=off"))
    limits = json.loads((folder / "set/recipe.json").read_text())["tokenizer"]["sample_limits"]
    assert limits == {"prose": {"gopher": Gopher().model_dump() | OTHERS_OFF | {"min_words": 15.0}}}
    build_here(folder / "recipe.toml", folder / "set")
    assert digests(folder / "set") == before


def report(place: Path, *options: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = call_here(main, "clean-report", place, *options)
    assert done.returncode == expect, done.stderr + done.stdout
    return done


def test_too_much_that_falls_stops_the_build_and_the_report_shows_the_last_mix(
    built: dict[str, Any], folder: Path
) -> None:
    work = folder / "set.work"
    texts = [json.loads(line)["text"] for line in (folder / "prose.jsonl").read_text().splitlines()]
    strict = overrides(f"{MOVE}=40", "sources.prose.clean.gopher.max_dropped=0.2")
    refused = build_here(folder / "recipe.toml", folder / "set", *strict, expect=2)["stderr"]
    assert "source 'prose': clean.gopher drops " in refused
    assert "more than max_dropped = 0.2 allows" in refused
    assert refused.count("gopher: min_words: words is ") == 10
    assert refused.count(", limit 40: ") == 10
    (line, *_) = [line for line in refused.splitlines() if "gopher: min_words: words is " in line]
    row = int(line.partition(" row ")[2].partition(":")[0])
    assert texts[row][:20].split("\n")[0] in line
    assert f"`tokenmill clean-report '{work}' --examples 10` shows more." in refused
    for minimum in (40, 15):
        if minimum == 15:  # a mix that was done before
            build_here(folder / "recipe.toml", folder / "set")
        found = json.loads(report(work, "--json", "--examples", "20").stdout)
        for entry in found["sources"]:
            rows = [row for row in found["rows"] if row["source"] == entry["name"]]
            assert all(row["documents"] for row in rows), "a limit that drops nothing has no line"
            for name in ("documents", "tokens"):
                gone = sum(row[name] for row in rows if row["tokens"] is not None)
                assert entry["read"][name] == entry["left"][name] + gone > 0
        assert found["sources"][0]["records"] == len(texts)
        (limit,) = (row for row in found["rows"] if row["reason"] == "gopher: min_words")
        assert (limit["source"], limit["limit"]) == ("prose", minimum)
        short = [text for text in texts if len(text.split()) < minimum]
        assert len(limit["alone"]) == 4
        assert dict(limit["alone"])[minimum] == len(short)
        for value, documents in limit["alone"]:
            assert documents == sum(len(text.split()) < value for text in texts)
        assert len(limit["examples"]) == 20
        for item in limit["examples"]:
            assert item["text"] == texts[item["row"]][:1500]
            assert item["value"] == len(texts[item["row"]].split()) < minimum
    shown = report(folder / "set", "--examples", "2").stdout
    assert shown.count("gopher: min_words") == 2
    assert "gopher: max_words" not in shown
    assert ", ".join(f"{documents:,} at {value:g}" for value, documents in limit["alone"]) in shown
    share = refused.partition("set max_dropped = ")[2].partition(" ")[0]
    allowed = overrides(f"{MOVE}=40", f"sources.prose.clean.gopher.max_dropped={share}")
    ran = build_here(folder / "recipe.toml", folder / "set", *allowed)["ran"]
    assert (ran["tokenizer"], ran["encode"], ran["mix"]) == (0, 0, 0)
    build_here(folder / "recipe.toml", folder / "set")


def test_a_page_shows_the_table_and_documents(built: dict[str, Any], folder: Path) -> None:
    page, work = folder / "pages/clean.html", folder / "set.work"
    assert "clean.html: " in report(work, "--html", str(page)).stdout
    written = page.read_bytes()
    report(work, "--html", str(page))
    assert page.read_bytes() == written, "an earlier page is replaced by the same bytes"
    found = json.loads(report(work, "--json", "--examples", "10").stdout)
    text = page.read_text()
    for row in found["rows"]:
        assert f"<td>{row['documents']:,}</td>" in next(
            line for line in text.splitlines() if f">{row['reason']}<" in line
        )
    assert text.count("<pre") == sum(len(row["examples"]) for row in found["rows"]) > 10
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")
    # A file of somebody else, and one in the set, are not written.
    (folder / "mine.html").write_text("mine")
    assert "not written by clean-report" in report(work, "--html", str(folder / "mine.html"), expect=2).stderr
    assert (folder / "mine.html").read_text() == "mine"
    assert report(folder / "set", "--html", str(folder / "set/clean.html"), expect=2).stderr


def test_foreign_text_stays_text() -> None:
    hostile = "<script>alert(1)</script>\x1b[2J\u202e"
    example = {"place": hostile, "row": 1, "text": hostile, "value": None}
    row = ReportRow("web", "matches", f"matches {hostile}", "", 3, 0.5, None, examples=[example])
    source = {"name": "web", "records": 6, "read": {"documents": 3, "tokens": 9}, "left": {"documents": 3, "tokens": 9}}
    found = {"work": hostile, "mix": "0", "unread": ["web"], "sources": [source], "rows": [row], "evaluations": []}
    page = render_page(found)
    assert "<script" not in page
    assert not {"\x1b", "\u202e"} & set(page)
    assert "&lt;script&gt;" in page


def test_a_folder_without_a_mix_that_cleaned_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path}: is empty. Give the work folder" in report(tmp_path, expect=2).stderr
    absent = tmp_path / "absent.work"
    assert f"{absent}: no such folder. Give the work folder" in report(absent, expect=2).stderr
    (tmp_path / "file").write_text("x")
    assert "If a step before encoding stopped the build, set its max_dropped" in report(tmp_path, expect=2).stderr


def test_a_damaged_work_folder_is_repaired_by_a_build_as_the_report_says(folder: Path, tmp_path: Path) -> None:
    work = tmp_path / "set.work"
    build_here(folder / "recipe.toml", tmp_path / "set")
    whole = json.loads(report(work, "--json").stdout)
    (evidence,) = work.glob("mix/*/evidence.parquet")
    for file in (evidence, work / "last-build.json"):
        file.write_bytes(file.read_bytes()[:-40])
        refused = report(work, expect=1).stderr
        assert f"{file}: " in refused
        assert "Run the build command again: it rebuilds what is missing or damaged." in refused
        build_here(folder / "recipe.toml", tmp_path / "set")
        assert json.loads(report(work, "--json").stdout) == whole


def test_a_unit_of_empty_documents_has_no_measures(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts.jsonl", real_documents()[:40])
    write_texts(tmp_path / "empty.jsonl", [""])
    texts, empty = (source(name, f"{name}.jsonl") for name in ("texts", "empty"))
    build_here(write_recipe(tmp_path / "first.toml", texts), tmp_path / "set")
    tokenizer = {"file": "set/tokenizer.json"}
    clean = {"gopher": {"max_dropped": 1.0}}
    recipe = write_recipe(tmp_path / "recipe.toml", texts, empty, tokenizer=tokenizer, clean=clean)
    assert "source 'empty'" in build_here(recipe, tmp_path / "none", expect=2)["stderr"]
