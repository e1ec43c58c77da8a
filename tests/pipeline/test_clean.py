"""Cleaning: each row dropped is counted with its reason, the others keep their rows and bytes."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.clean.reasons import EMPTY, LONG, NULL, SHORT
from pipeline.clean.steps import clean_batch
from pipeline.clean.tally import Tally
from pipeline.sources.base import TextBatch
from tests.support.reading import files_source

INVALID = "text is not valid UTF-8"


def clean(values: list[Any], type_: pa.DataType, **keys: Any) -> tuple[list[tuple[int, bytes]], dict[str, int]]:
    """Clean values that are the middle of an array; return (row, bytes) of what is left, and what was dropped."""
    around = [b"before \xff", None]
    whole = pa.array([*around, *values, *around], pa.binary())
    if type_ != pa.binary():
        whole = whole.view(pa.string()).cast(type_) if not pa.types.is_large_string(type_) else large(whole)
    batch = TextBatch(whole.slice(2, len(values)), np.arange(100, 100 + len(values), dtype=np.uint32))
    tally = Tally()
    tally.drops.count_rows({"not x > 1": 1})
    documents = clean_batch(files_source("x", **keys), batch, tally)
    assert documents.text.type == pa.large_string()
    assert documents.text.null_count == 0
    documents.text.validate(full=True)
    data, offsets = documents.data, documents.offsets.tolist()
    pieces = [bytes(data[start:stop]) for start, stop in itertools.pairwise(offsets)]
    assert [text.encode() for text in documents.text.to_pylist()] == pieces
    dropped = tally.dropped
    assert dropped.pop("not x > 1") == 1
    return list(zip(documents.rows.tolist(), pieces, strict=True)), dropped


def large(array: pa.Array) -> pa.Array:
    return array.cast(pa.large_binary()).view(pa.large_string())


TEXTS = st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace"))


@pytest.mark.parametrize("type_", [pa.binary(), pa.large_string(), pa.string()], ids=str)
@given(values=st.lists(st.one_of(st.none(), st.binary(max_size=6), TEXTS)))
@example(values=[b"fine", None, b"", b"\xff", b"s", "\u00e9".encode(), b"too long", None, "long \u00e9".encode()])
def test_every_row_is_kept_or_counted(type_: pa.DataType, values: list[bytes | None]):
    left, dropped = clean(values, type_, min_bytes=2, max_bytes=4)
    expected: list[tuple[int, bytes]] = []
    reasons: dict[str, int] = {}
    for row, value in enumerate(values, start=100):
        reason = reason_of(value)
        if reason is None and value is not None:
            expected.append((row, value))
        elif reason:
            reasons[reason] = reasons.get(reason, 0) + 1
    assert (left, dropped) == (expected, reasons)


def reason_of(value: bytes | None) -> str | None:
    if value is None:
        return NULL
    try:
        value.decode()
    except UnicodeDecodeError:
        return INVALID
    if not value:
        return EMPTY
    return SHORT if len(value) < 2 else LONG if len(value) > 4 else None
