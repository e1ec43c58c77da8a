"""Many small files: few tasks, few batches, each file opened once to be planned, and never again until it changes."""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.build import BuildResult, build_set, load_recipe
from pipeline.clean.documents import DocumentStream
from pipeline.sources.base import Span, make_units, spans_to_json
from pipeline.sources.selection import SPANS_FILE, SpanCache, open_sources
from shards.stores.store import FolderStore
from tests.support.builds import digests
from tests.support.opened import record_opened
from tests.support.reading import files_source, list_spans_of

FILES = 400

WRITERS: dict[str, Callable[[Path, str], Any]] = {
    "md": lambda path, text: path.write_text(text),
    "jsonl": lambda path, text: path.write_text(json.dumps({"text": text}) + "\n"),
    "jsonl.gz": lambda path, text: path.write_bytes(gzip.compress(json.dumps({"text": text}).encode())),
}


def write_files(folder: Path, kind: str) -> Path:
    """Write `FILES` files of one document; return their glob."""
    for number in range(FILES):
        WRITERS[kind](folder / f"{number:04d}.{kind}", f"document {number}")
    return folder / f"*.{kind}"


@pytest.mark.parametrize("kind", WRITERS)
def test_a_small_file_is_opened_once_to_be_planned_and_cleaned_with_others(tmp_path: Path, kind: str):
    recipe = files_source(write_files(tmp_path, kind), min_bytes=len("document 10"))
    with record_opened() as opened:
        listed = list_spans_of(recipe)
    assert len(listed) == sum(path.endswith(f".{kind}") for path in opened) == FILES
    stream = DocumentStream(recipe, listed)
    [(spans, documents)] = list(stream)
    assert spans.tolist() == list(range(10, FILES)), "the ten shortest are dropped; the others keep their file"
    assert documents.rows.tolist() == [0] * (FILES - 10)
    assert [bytes(text).decode() for text in documents] == [f"document {number}" for number in range(10, FILES)]
    assert stream.tally.dropped == {"shorter than min_bytes": 10}


def recipe_of(*globs: Path) -> dict[str, Any]:
    """Return a recipe of a source for each glob."""
    return {
        "name": "small",
        "sources": [{"name": f"s{n}", "paths": [str(glob)], "weight": 1} for n, glob in enumerate(globs)],
        "tokenizer": {"vocab_size": 300, "sample_bytes": "1 MB"},
        "mix": {"when_short": "shrink"},
        "split": {} if len(globs) > 1 else {"val_tokens": 100},
    }


def build(glob: Path) -> BuildResult:
    return build_set(recipe_of(glob), out=glob.parent / "set", workers=1)


def opened_by_listing(folder: Path, *globs: Path) -> set[str]:
    """List globs as a build does; return the names of their files that it opens."""
    recipe, kept = load_recipe(recipe_of(*globs)), SpanCache(FolderStore(folder / "set.work"))
    with record_opened() as opened:
        open_sources(recipe, kept)
    kept.save()
    return {Path(path).name for path in opened if path.endswith(".md")}


def test_a_rerun_opens_the_changed_files_alone(tmp_path: Path):
    glob = write_files(tmp_path, "md")
    first = build(glob)
    assert opened_by_listing(tmp_path, glob) == set()
    again = build(glob)
    assert (again.tasks_run, again.manifest) == (0, first.manifest)
    # Another text of the same length, a file that is now JSON lines, one more, and one less.
    (tmp_path / "0100.md").write_text("DOCUMENT 100")
    (tmp_path / "0200.md").write_text('{"text": "a record"}\n{"text": "another one"}\n')
    (tmp_path / "0999.md").write_text("document 999")
    (tmp_path / "0300.md").unlink()
    assert opened_by_listing(tmp_path, glob) == {"0100.md", "0200.md", "0999.md"}
    assert build(glob).manifest.sources[0].documents_available == FILES + 1
    assert opened_by_listing(tmp_path, glob) == set()
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "0100.md", tmp_path / "other")
    for names in ({"0100.md"}, set()):  # the spans of files that have one name in two sources are kept for both
        assert opened_by_listing(tmp_path, glob, tmp_path / "other/*.md") == names
    found = digests(tmp_path / "set")
    shutil.rmtree(tmp_path / "set")
    shutil.rmtree(tmp_path / "set.work")
    build(glob)
    assert digests(tmp_path / "set") == found, "a first build gives the same set"
    # Kept spans that are damaged are not used.
    kept = tmp_path / "set.work" / SPANS_FILE
    whole = kept.read_bytes()
    kept.write_bytes(whole.replace(b'"file"', b'"text"', 1))
    assert build(glob).tasks_run == 0
    assert kept.read_bytes() == whole


def span_of(number: int, version: str = "1", size: int = 600) -> Span:
    """Return the span of a file."""
    return Span(f"/d/{number}", f"{number:06d}", version, "file", "file", 0, size, size, 1, size)


def test_one_changed_file_changes_the_units_of_its_group_alone():
    before = [span_of(number) for number in range(0, 60_000, 2)]
    units = make_units(0, before)
    assert 8 <= len(units) <= 40, "about one unit for 2,048 files"
    assert [span for unit in units for span in unit.spans] == before
    for after in (
        [*before[:3], span_of(6, "2"), *before[4:]],  # changed
        sorted([*before, span_of(7)], key=lambda span: span.name),  # added
        before[1:],  # removed
    ):
        found = make_units(0, after)
        assert [span for unit in found for span in unit.spans] == after
        assert len(set(found) - set(units)) <= 2


@pytest.mark.parametrize("name", ["a.md", 'a"b\\.md', "übung 日本\n\t\x7f\u2028.txt", ""])
def test_the_json_of_a_span_has_all_its_fields(name: str):
    spans = [
        Span(f"/d/{name}", name, "1 bytes", "file", "file", 0, 7, 8, 1, 9),
        Span(f"hf://{name}", name, "etag", "parquet", "rg", 3, 4, 1 << 40, None, 0, "0" * 40),
        Span(f"/d/{name}", name, "v", "documents", "b", 0, 1, 1, 1, 1, name),
    ]
    expected = [asdict(span) | ({"url": ""} if span.format == "documents" else {}) for span in spans]
    text = json.dumps(expected, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert spans_to_json(spans) == text


def test_units_of_small_files_and_large_ones():
    spans = [span_of(index, size=size) for index, size in enumerate([5 << 20] * 7 + [300 << 20, 0])]
    units = make_units(3, spans)
    assert [span for unit in units for span in unit.spans] == spans
    assert [len(unit.spans) for unit in units] == [3, 3, 1, 1, 1]
    assert {unit.source for unit in units} == {3}
