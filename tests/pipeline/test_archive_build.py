"""A set of members of archives and of web pages: every document once, with its place; the same bytes by any workers."""

# pyright: basic
from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main as pipeline_main
from shards import open_set
from shards.__main__ import main as shards_main
from shards.format.document_table import read_bytes
from shards.validation.validate import validate
from tests.support.archives import warc_record, write_tar, write_zip
from tests.support.builds import build_here, call_here, digests, real_documents, run_build

SOURCES = {
    "tar": ("a.tar.xz", ["member"]),
    "zip": ("a.zip", ["member"]),
    "samples": ("a-*.tar", ["__key__", "n"]),
    "web": ("*.wet.gz", ["url", "date"]),
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recipe with a source of each format of archives, whose texts are `texts_of`'s."""
    folder = tmp_path_factory.mktemp("archives")
    texts = {name: texts_of(name) for name in SOURCES}
    write_tar(folder / "a.tar.xz", [(f"d/{n}.md", text) for n, text in enumerate(texts["tar"])], "w:xz")
    write_zip(folder / "a.zip", [(f"d/{n}.txt", text) for n, text in enumerate(texts["zip"])])
    samples = texts["samples"]
    for part in range(2):
        numbers = range(part, len(samples), 2)
        members = [
            entry
            for n in numbers
            for entry in ((f"{n:04}.json", json.dumps({"n": n}).encode()), (f"{n:04}.txt", samples[n]))
        ]
        write_tar(folder / f"a-{part}.tar", members)
    pages = [warc_record(text, url=f"https://example.org/{n}") for n, text in enumerate(texts["web"])]
    (folder / "a.warc.wet.gz").write_bytes(b"".join(map(gzip.compress, pages)))
    tables = [
        f'[[sources]]\nname = "{name}"\npaths = ["{paths}"]\ncarry = {json.dumps(carry)}\nweight = 1\n'
        for name, (paths, carry) in SOURCES.items()
    ]
    rest = '[tokenizer]\nvocab_size = 600\n[mix]\ntokens = "max"\nwhen_short = "shrink"\n[split]\nval_tokens = 2_000\n'
    path = folder / "recipe.toml"
    path.write_text("\n".join(['name = "archives"', *tables, rest, "[shards]\ntokens = 20_000\n"]))
    return path


def texts_of(name: str) -> list[bytes]:
    """Return the texts of a source: a quarter of the documents."""
    return [text.encode() for text in real_documents()[list(SOURCES).index(name) :: 4]]


@pytest.fixture(scope="module")
def built(recipe: Path) -> Path:
    """Return the recipe's set, built by one process."""
    build_here(recipe, recipe.parent / "set")
    return recipe.parent / "set"


def test_every_document_is_there_with_its_place(built: Path) -> None:
    shards = open_set(built)
    found: dict[str, dict[int | str, bytes]] = {name: {} for name in SOURCES}
    for shard in shards.shards:
        for row in shard.documents().to_pylist():
            own = {"tar": row["member"], "zip": row["member"], "samples": row["n"], "web": row["url"]}[row["source"]]
            text = read_bytes(shard, row["start"], row["start"] + row["length"] - 1, vocabulary=shards.vocabulary)
            found[row["source"]][own] = text
    names = {"tar": "d/{}.md", "zip": "d/{}.txt", "web": "https://example.org/{}"}
    for name in SOURCES:
        texts = texts_of(name)
        kept = found[name]
        assert len(kept) > len(texts) // 3, "the mix has equal shares of all sources"
        by_place = {(names[name].format(n) if name in names else n): text for n, text in enumerate(texts)}
        assert kept.items() <= by_place.items()


def test_documents_lead_back_to_their_members(built: Path) -> None:
    report = validate(built, level="quick", against_sources=200)
    assert report.problems == []
    assert report.not_run == []
    assert report.compared_documents == 200
    done = call_here(shards_main, "trace", built, "--where", "url=https://example.org/5", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "a.warc.wet.gz@" in json.dumps(found)


def test_a_plan_says_how_archives_are_read(recipe: Path) -> None:
    done = call_here(pipeline_main, "plan", recipe)
    assert done.returncode == 0, done.stderr
    for name, format_ in {"tar": "tar", "zip": "zip", "samples": "webdataset", "web": "warc"}.items():
        assert f"files of {name}: {2 if name == 'samples' else 1} as {format_}" in done.stdout


@pytest.mark.long
def test_three_workers_give_the_same_bytes(recipe: Path, built: Path, tmp_path: Path) -> None:
    run_build(recipe, tmp_path / "set", "--work", str(tmp_path / "work"), "--workers", "3")
    assert digests(tmp_path / "set") == digests(built)


def test_a_dropped_member_is_shown(recipe: Path, tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "b.tar", [*((f"{n}.txt", text) for n, text in enumerate(texts_of("tar"))), ("x.png", bytes(99))]
    )
    text = recipe.read_text().replace("a.tar.xz", str(path))
    (recipe.parent / "other.toml").write_text(text)
    result: dict[str, Any] = build_here(recipe.parent / "other.toml", tmp_path / "set", expect=2)
    assert "member" in result["stderr"]
    assert "x.png: holds binary data, not text. Leave it out by `members`; or allow some" in result["stderr"]
