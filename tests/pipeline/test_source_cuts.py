"""Units cover every document exactly once, wherever blocks, units and separators happen to end."""

# pyright: reportUnknownMemberType=false
import csv
import io
import itertools
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.sources import files
from pipeline.sources.formats import byte_io as blocks
from pipeline.sources.formats import contract, parquet
from pipeline.sources.formats import text as text_files
from tests.support.builds import temporary_folder
from tests.support.file_bytes import to_csv
from tests.support.reading import files_source, list_spans_of, rows_of, texts_of

SIZES = st.integers(1, 40)
SEPARATORS = st.text("ab\n", min_size=1, max_size=5)


@pytest.fixture(scope="module")
def sizes() -> Generator[Any]:
    """Return a function that sets the sizes of blocks and units."""
    patch = pytest.MonkeyPatch()

    def set_sizes(batch_bytes: int, unit_bytes: int) -> None:
        for module in (blocks, parquet):
            patch.setattr(module, "BATCH_BYTES", batch_bytes)
        patch.setattr(contract, "UNIT_BYTES", unit_bytes)
        patch.setattr(blocks, "_WINDOW_BYTES", batch_bytes)

    yield set_sizes
    patch.undo()


def split(text: str, separator: str) -> list[str]:
    documents = text.split(separator)
    return documents[:-1] if documents[-1] == "" else documents


def read_cut(path: Path, **keys: Any) -> tuple[list[str], int]:
    """Return the texts of all spans in order, and the number of spans; rows count from 0 in each."""
    recipe = files_source(path, **keys)
    spans = list_spans_of(recipe)
    assert spans[0].start == 0
    assert all(a.stop == b.start for a, b in itertools.pairwise(spans))
    texts: list[str] = []
    for span in spans:
        batches = [*files.read_span(recipe, span)]
        texts += texts_of(batches)
        rows = rows_of(batches)
        assert rows == list(range(len(rows)))
    return texts, len(spans)


@settings(max_examples=120)
@given(st.text("ab\né", min_size=1, max_size=200), SEPARATORS, SIZES, SIZES)
@example("x\n\n\ny", "\n\n", 40, 40)
@example("xaaay", "aa", 2, 40)
@example("x\n\n\ny\n\nz", "\n\n", 3, 3)
@example("aaaaaaaa", "aa", 1, 1)
@example("abababa", "aba", 2, 1)
def test_text(sizes: Any, text: str, separator: str, batch_bytes: int, unit_bytes: int):
    sizes(batch_bytes, unit_bytes)
    with temporary_folder() as folder:
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode())
        texts, _ = read_cut(path, separator=separator)
        assert texts == split(text, separator)


@settings(max_examples=200)
@given(st.text("ab\n", min_size=1, max_size=300), st.sampled_from(["\n\n", "\n", "ab"]), SIZES, st.integers(1, 16))
@example("a\n\n\n" * 30, "\n\n", 3, 5)
@example("a" * 60 + "\n\nb\n\nc", "\n\n", 4, 5)
def test_joined_parts(sizes: Any, text: str, separator: str, batch_bytes: int, least: int):
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "JOIN_CELL_BYTES", 16)
        path = Path(folder, "a.txt")
        path.write_text(text)
        found: list[list[str]] = []
        for unit_bytes in (16, 48, 1 << 20):
            sizes(batch_bytes, unit_bytes)
            found.append(read_cut(path, separator=separator, join_bytes=least)[0])
    documents = found[-1]
    # However the file is cut, and nothing of it is lost.
    assert found[0] == found[1] == documents
    assert separator.join(split(text, separator)) == separator.join(documents)
    # A short document is the last one, or the first of a cell, after a part that reaches far into it.
    begins = [0, *itertools.accumulate(len(document) + len(separator) for document in documents)]
    for before, (begin, end) in zip([-1, *begins], itertools.pairwise(begins[:-1]), strict=False):
        assert end - begin >= least or (before // 16 != begin // 16 and begin % 16 + least > 16)


TEXTS = st.text('ab",\\[]{}\n\u00e9 ', max_size=9)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"]', max_size=2), inner, max_size=2),
    max_leaves=6,
)
Rows = list[dict[str, Any]]


def as_lines(rows: Rows, odd: bool) -> str:
    return "\n".join([*(json.dumps(row, ensure_ascii=odd) for row in rows), *([""] if odd else [])])


def as_array(rows: Rows, odd: bool) -> str:
    return json.dumps(rows, ensure_ascii=odd, indent=1 if odd else None)


def as_csv(rows: Rows, odd: bool) -> str:
    return to_csv(rows, end="\r\n" if odd else "\n").decode()


@pytest.mark.parametrize(("name", "write"), [("a.jsonl", as_lines), ("a.json", as_array), ("a.csv", as_csv)])
@settings(max_examples=70)
@given(st.lists(st.tuples(TEXTS, VALUES), min_size=1, max_size=15), SIZES, SIZES, st.booleans())
@example([('a "quote"\n', ""), ("", "\n\n"), ('"', '""')], 3, 1, False)
def test_records(
    sizes: Any, name: str, write: Any, rows: list[tuple[str, Any]], batch_bytes: int, unit_bytes: int, odd: bool
):
    sizes(batch_bytes, unit_bytes)
    records: Rows = [{"text": text, "other": other} for text, other in rows]
    data = write(records, odd)
    if name == "a.csv":
        records = list(csv.DictReader(io.StringIO(data, newline="")))  # without records that are empty lines
    with temporary_folder() as folder:
        path = Path(folder, name)
        path.write_bytes(data.encode())
        found, spans = read_cut(path)
    assert found == [record["text"] for record in records]
    assert name != "a.jsonl" or spans >= min(len(found), 2) or unit_bytes > 10
