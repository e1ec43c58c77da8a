"""Many small files: few tasks, few batches, each file opened once to be planned; what one changed file costs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.clean.documents import DocumentStream
from pipeline.sources.base import Span, Unit, make_units
from pipeline.sources.kinds import list_files, list_spans
from tests.support.opened import record_opened

FILES = 400

WRITERS: dict[str, Callable[[Path, str], Any]] = {
    "md": lambda path, text: path.write_text(text),
    "jsonl": lambda path, text: path.write_text(json.dumps({"text": text}) + "\n"),
    "jsonl.gz": lambda path, text: path.write_bytes(gzip.compress(json.dumps({"text": text}).encode())),
}


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes `FILES` files of one document, and gives their glob."""

    def write(kind: str) -> Path:
        for number in range(FILES):
            WRITERS[kind](tmp_path / f"{number:04d}.{kind}", f"document {number}")
        return tmp_path / f"*.{kind}"

    return write


@pytest.mark.parametrize("kind", WRITERS)
def test_planning_opens_a_file_once(files: Any, source: Any, kind: str) -> None:
    recipe = source(files(kind))
    with record_opened() as opened:
        spans = list_spans(recipe, list_files(recipe))
    assert len(spans) == FILES
    assert sum(path.endswith(f".{kind}") for path in opened) == FILES


@pytest.mark.parametrize("kind", WRITERS)
def test_small_files_are_cleaned_together(files: Any, source: Any, kind: str) -> None:
    recipe = source(files(kind), min_bytes=len("document 10"))
    stream = DocumentStream(recipe, list_spans(recipe, list_files(recipe)))
    [(spans, documents)] = list(stream)
    assert spans.tolist() == list(range(10, FILES)), "the ten shortest are dropped; the others keep their file"
    assert documents.rows.tolist() == [0] * (FILES - 10)
    assert [bytes(text).decode() for text in documents] == [f"document {number}" for number in range(10, FILES)]
    assert stream.dropped == {"shorter than min_bytes": 10}


def test_a_match_names_its_own_file(files: Any, source: Any) -> None:
    recipe = source(files("md"), drop_if_matches=[r"^document 17\d$"], max_dropped=1.0)
    stream = DocumentStream(recipe, list_spans(recipe, list_files(recipe)))
    [(spans, _)] = list(stream)
    assert sorted(set(range(FILES)) - set(spans.tolist())) == list(range(170, 180))
    assert [(match["span"], match["row"], match["hit"]) for match in stream.matches] == [
        (f"0{number}.md", 0, f"document {number}") for number in (170, 171, 172)
    ]


def small(number: int, version: str = "1") -> Span:
    """Return the span of a small file."""
    return Span(f"/d/{number}", f"{number:06d}", version, "file", "file", 0, 600, 600, 1, 600)


def test_one_changed_file_changes_the_units_of_its_group_alone() -> None:
    before = [small(number) for number in range(0, 60_000, 2)]
    units = make_units(0, before)
    assert 8 <= len(units) <= 40, "about one unit for 2,048 files"
    assert [span for unit in units for span in unit.spans] == before
    for after in (
        [*before[:3], small(6, "2"), *before[4:]],  # changed
        sorted([*before, small(7)], key=lambda span: span.name),  # added
        before[1:],  # removed
    ):
        found = make_units(0, after)
        assert [span for unit in found for span in unit.spans] == after
        assert len(set(found) - set(units)) <= 2


def test_large_files_are_units_of_their_own() -> None:
    spans = [Span(f"/d/{n}", str(n), "1", "jsonl", "b", 0, 12 << 20, 12 << 20, None, 12 << 20) for n in range(50)]
    assert make_units(0, spans) == [Unit(0, (span,)) for span in spans]
