"""Builds of a part: what is read, in which order, when more is taken, and that nothing but the recipe decides it."""

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.builder.build import BuildResult, build_set
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.recipe.schema import Recipe
from pipeline.sources import files, selection
from pipeline.sources.base import Span
from pipeline.sources.selection import Selection, open_sources
from shards.format.reader import open_set
from tests.support.provenance import compare_with_sources
from tests.support.reading import list_spans_of
from tests.support.recipes import source as make_source
from tests.support.recipes import write_recipe

FILES = 24
ROWS = 12
"""In a row group."""

TABLES = {
    "seed": 11,
    "tokenizer": {"vocab_size": 800, "sample_bytes": "100 KB"},
    "mix": {"tokens": 60_000},
    "split": {"val_tokens": 4000},
    "shards": {"tokens": 20_000},
}


def stdlib_documents() -> list[str]:
    """Return the standard library's top-level definitions: about 1,800 documents, 5.5 MB."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [*sorted(library.glob("*.py")), *sorted(library.glob("asyncio/*.py")), *sorted(library.glob("email/*.py"))]
    texts = [text for path in paths for text in path.read_text(encoding="utf-8").split("\n\n\n") if len(text) > 200]
    return [text[:8000] for text in dict.fromkeys(texts)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 parquet files of six row groups, and 24 text files: a source of many files, a part of which holds enough."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "code").mkdir()
    (folder / "notes").mkdir()
    documents = stdlib_documents()
    half = len(documents) // 2
    for number in range(FILES):
        texts = documents[number:half:FILES]
        table = pa.table({"text": texts, "score": [index % 10 for index in range(len(texts))]})
        pq.write_table(table, folder / "code" / f"part-{number:02d}.parquet", row_group_size=ROWS)
        notes = "\n--\n".join(documents[half + number :: FILES])
        (folder / "notes" / f"{number:02d}.txt").write_text(notes, encoding="utf-8", newline="")
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let megabytes behave as gigabytes do."""
    monkeypatch.setattr(selection, "WHOLE_BYTES", 20_000)
    monkeypatch.setattr(selection, "LEAST_PART_BYTES", 1 << 13)
    monkeypatch.setattr(selection, "FIRST_GROUP_FILES", 4)
    monkeypatch.setattr(selection, "SAMPLE_SPREAD", 2)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files whose spans are listed, as they are."""
    names: list[str] = []
    list_spans = files.list_spans_of_file

    def listing(source: Any, file: Any, unit_bytes: Any = None) -> list[Span]:
        names.append(f"{source.name}/{file.name}")
        return list_spans(source, file, unit_bytes)

    monkeypatch.setattr(files, "list_spans_of_file", listing)
    return names


@pytest.fixture
def load(corpus: Path, tmp_path: Path) -> Callable[..., Recipe]:
    """Return `load(*overrides)`."""

    def load_with(*overrides: str) -> Recipe:
        code = make_source("code", corpus / "code/*.parquet", weight=3)
        notes = make_source("notes", corpus / "notes/*.txt", separator="\n--\n")
        path = write_recipe(tmp_path / "recipe.toml", code, notes, **TABLES)
        return load_checked_recipe(path, overrides=list(overrides))

    return load_with


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., BuildResult]:
    """Return `run(recipe, name="set", workers=1)`: a build in this process, its workers in others."""
    return lambda recipe, name="set", workers=1: build_set(recipe, out=tmp_path / name, workers=workers)


def test_a_part_is_read_and_said_to_be_one(load: Any, run: Any, opened: list[str], tmp_path: Path, corpus: Path):
    report = run(load())
    assert report.validation.problems == []
    train, val = report.manifest.splits["train"], report.manifest.splits["val"]
    assert (train.requested_tokens, val.requested_tokens) == (60_000, 4000)
    assert max(opened.count(name) for name in opened) == 1
    for source, folder in zip(report.manifest.sources, ("code", "notes"), strict=True):
        unread = report.unread[source.name]
        assert 0 < len([name for name in opened if name.startswith(f"{folder}/")]) <= 12
        used = train.sources[source.name].tokens + val.sources[source.name].tokens
        assert used <= source.tokens_available <= 1.4 * used
        assert (source.unread_files, source.unread_bytes) == (unread.files, unread.bytes)
        assert FILES - 12 <= unread.files < FILES
        size = sum(path.stat().st_size for path in (corpus / folder).iterdir())
        assert 0.5 * size < unread.bytes < size
        (note,) = [note for note in report.notes if note.startswith(f"{source.name}: read in part")]
        assert f"{unread.files} of 24 files and {unread.parts} parts of others" in note

    # Its documents are found again, though the parts are others than the ones a whole build would make.
    compared, different = compare_with_sources(tmp_path / "set", 300)
    assert (compared > 50, different) == (True, 0)


def test_what_is_taken_further_leaves_what_was_taken(load: Any):
    source = load().sources[0]
    little = Selection(0, source, seed=11, tokens=5000)
    first = list(little.units)
    little.take(200_000)
    assert little.units[: len(first)] == first
    spans = [span for unit in little.units for span in unit.spans]
    assert len({(span.name, span.part) for span in spans}) == len(spans)
    assert 200_000 <= little.text_bytes <= 240_000
    # From another start, the same parts in the same order.
    other = Selection(0, source, seed=11, tokens=5000)
    other.take_for(71_000, 5000)
    assert [span for unit in other.units for span in unit.spans][: len(spans)] == spans
    other.take(10**12)
    assert not other.has_more
    assert other.unread() == selection.Unread(0, FILES, 0, 0)
    every = [span for unit in other.units for span in unit.spans]
    assert len({(span.name, span.part) for span in every}) == len(every)
    assert sum(span.rows or 0 for span in every) == sum(span.rows or 0 for span in list_spans_of(source))
    assert {span.name for span in every[:6]} != {span.name for span in sorted(every, key=lambda s: s.name)[:6]}


def test_a_small_source_and_a_whole_build_read_all_in_order(load: Any, monkeypatch: pytest.MonkeyPatch):
    recipe = load()
    whole = open_sources(load("mix.tokens=max"))
    assert [file.has_more for file in whole] == [False, False]
    assert whole[0].units == selection.make_units(0, list_spans_of(recipe.sources[0]))
    monkeypatch.setattr(selection, "WHOLE_BYTES", 1 << 30)
    assert [own.units for own in open_sources(recipe)] == [own.units for own in whole]


def test_when_short_applies_once_all_is_read(load: Any, run: Any):
    few = "sources.notes.max_bytes=260"
    with pytest.raises(match=r"the sources are too small.*\n.*'notes': has [\d,]+ tokens for training"):
        run(load(few), "error")
    repeated = run(load(few, "mix.when_short=repeat", "mix.max_epochs=100"), "repeat")
    assert repeated.validation.problems == []
    code, notes = repeated.manifest.sources
    assert code.unread_bytes > 0
    assert repeated.manifest.splits["train"].requested_tokens == 60_000
    assert (notes.unread_bytes, code.epochs) == (0, 1)
    assert notes.epochs > 1


def test_a_source_that_is_left_out_ends_no_reading(load: Any, run: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selection, "FIRST_BYTES_PER_TOKEN", 0.5)
    code = run(load("sources.notes.weight=0")).manifest.sources[0]
    assert code.unread_bytes > 0
    assert code.epochs == 1


def test_for_a_share_of_the_documents_more_is_read(load: Any, run: Any, opened: list[str], tmp_path: Path):
    whole, taken = load(), load("sources.code.take=0.25")
    for before, after in zip(open_sources(whole), open_sources(taken), strict=True):
        # What a build of all documents reads first is read first here too, in the same units.
        assert after.units[: len(before.units)] == before.units
        assert (after.text_bytes > 3.5 * before.text_bytes) == (after.source.name == "code")
    opened.clear()
    first = run(whole)
    listed = set(opened)
    opened.clear()
    report = run(taken)
    assert not listed & set(opened), "no file is listed again"
    assert report.validation.problems == []
    encoded = report.stages["encode"]
    assert 0 < encoded.ran <= len(encoded.results) - len(open_sources(whole)[0].units)
    code, notes = report.manifest.sources
    assert notes == first.manifest.sources[1]
    train, val = report.manifest.splits["train"], report.manifest.splits["val"]
    used = train.sources["code"].tokens + val.sources["code"].tokens
    assert train.requested_tokens == 60_000
    assert (code.epochs, code.unread_bytes > 0) == (1, True)
    assert used <= code.tokens_available <= 1.5 * used
    assert code.unread_bytes < first.manifest.sources[0].unread_bytes
    for shard in open_set(tmp_path / "set").shards:
        rows = shard.documents(["source", "hash"]).to_pylist()
        assert all(row["hash"][0] < 0x40 for row in rows if row["source"] == "code")
