"""Arrow arrays around existing buffers, without a copy and without pandas; ranges of numbers.

`pa.array` loads pandas to find out whether its argument is a pandas object: 0.2 to 0.4 s in each worker, measured.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa

from shards.format.arrays import Bools, Int64s, Integers, Rows

_Item = TypeVar("_Item")


def wrap_numbers(kind: pa.DataType, values: Rows, valid: Bools | None = None) -> Any:
    """Wrap the rows of a numpy array as a fixed-width Arrow array, `(len(values),)`; null where they are not valid."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").data)
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values).data)])


def wrap_mask(mask: Bools) -> Any:
    """Wrap a numpy mask as a boolean Arrow array, which `filter` expects."""
    bits = np.packbits(mask, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(bits.data)])


def unwrap_mask(values: Any) -> Bools:
    """Turn a boolean Arrow array without nulls into a numpy mask."""
    if not len(values):
        return np.zeros(0, bool)
    bits = np.frombuffer(values.buffers()[1], np.uint8)
    return np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :].view(bool)


def wrap_texts(kind: pa.DataType, texts: Sequence[bytes | memoryview]) -> Any:
    """Join a few texts into an Arrow array of strings or bytes; offsets have 32 bits, or 64 bits for large kinds."""
    # Offsets and bytes: the buffers of an Arrow array without nulls.
    large = kind in (pa.large_binary(), pa.large_string())
    offsets = np.array([0, *itertools.accumulate(map(len, texts))], np.int64 if large else np.int32)
    data = texts[0] if len(texts) == 1 else b"".join(texts)
    return wrap_slices(kind, offsets, data)


def wrap_slices(kind: pa.DataType, offsets: Integers, data: Any) -> Any:
    """Wrap the texts between offsets in a buffer as an Arrow array of strings or bytes, `(len(offsets) - 1,)`."""
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets.data), pa.py_buffer(data)])


def text_offsets(text: Any) -> Int64s:
    """Return where each text of an Arrow array with offsets of 64 bits begins, and the last ends, `(texts + 1,)`."""
    if not len(text):
        return np.zeros(1, np.int64)
    return np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]


def text_bytes(text: Any) -> memoryview:
    """Return the bytes of the texts of an Arrow array with offsets of 64 bits, one after the other."""
    offsets = text_offsets(text)
    return memoryview(text.buffers()[2] or b"")[offsets[0] : offsets[-1]]


def as_large_binary(column: pa.Array[Any]) -> pa.LargeBinaryArray:
    """Return an Arrow array of text of any type as large_binary; string data is not copied, only its offsets are."""
    if column.type == pa.large_binary():
        return cast("pa.LargeBinaryArray", column)  # a cast takes 5 µs, which counts for small files
    return cast("pa.LargeBinaryArray", column.cast(pa.large_binary()))


def spread(begins: Int64s, sizes: Int64s) -> Int64s:
    """Return the numbers of ranges that begin at `begins` and have `sizes` numbers each, one after the other."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(begins - (ends - sizes), sizes)


def gather(items: Iterable[_Item], size_of: Callable[[_Item], int], least: int) -> Iterator[list[_Item]]:
    """Yield items in lists of at least a size together; the last list may be smaller."""
    gathered: list[_Item] = []
    size = 0
    for item in items:
        gathered.append(item)
        size += size_of(item)
        if size >= least:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def split_by_size(sizes: Integers, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of neighbours whose sizes are at most `most` together, or of a single larger one."""
    ends = np.cumsum(sizes, dtype=np.int64)
    first = done = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, done + most, "right")))
        yield first, last
        first, done = last, int(ends[last - 1])
