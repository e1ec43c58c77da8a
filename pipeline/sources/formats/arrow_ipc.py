"""Arrow IPC, file and stream: folders of `datasets.save_to_disk`, the `datasets` cache, Feather. Cut by record batches.

A file has a footer that says where its batches are. A local stream is walked once, batch by batch, over a memory map
of which only the batches' heads are touched. A stream on another file system, or one with dictionaries, which a batch
shares with those before it, is one span. Memory: one record batch, as in the file.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import contextlib
import itertools
from collections.abc import Generator, Iterable, Iterator
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa

from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import Group, SourceError, Span, TextBatch, join_groups
from pipeline.sources.formats.byte_io import compression_of, is_local, open_file
from pipeline.sources.formats.columns import (
    RAW_TYPES,
    check_columns,
    measure_rows,
    replace_types,
    split_rows,
    top_names,
)
from pipeline.sources.formats.span_reader import SpanReader

_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Check the schema of an Arrow IPC file, and cut it into spans of whole record batches of up to `unit_bytes`."""
    if compression_of(whole.name):
        raise SourceError(f"{whole.name}: Arrow IPC compressed as a whole is not read. Decompress the file.")
    with _open(whole, mapped=True) as file:
        in_file = is_file(file)
        if not in_file:
            _check_stream(file, whole)
        schema = (pa.ipc.open_file(file) if in_file else pa.ipc.open_stream(file)).schema
        check_columns(schema, source, whole.name)
        # A file has a list of its batches; a stream is walked, if it is local and each batch stands alone.
        if in_file:
            return join_groups(whole, _measure_batches(source, whole, file), unit_bytes)
        if is_local(whole.url) and (offsets := _walk(whole.url, whole.version)):
            return join_groups(whole, _measure_messages(source, file, schema, offsets), unit_bytes)
    return [whole]


@contextlib.contextmanager
def _open(span: Span, *, mapped: bool = False) -> Generator[Any]:
    """Open a file for Arrow IPC; a local one as a memory map if asked for, which costs memory for each byte read."""
    if is_local(span.url):
        with pa.memory_map(span.url) if mapped else pa.OSFile(span.url, mode="r") as file:
            yield file
        return
    with open_file(span) as raw, pa.PythonFile(cast("Any", raw), mode="r") as file:
        yield file


def is_file(file: Any) -> bool:
    """Say whether an IPC file is open, rather than a stream, whose messages begin at once."""
    head = file.read(len(_FILE_MAGIC))
    file.seek(0)
    return head == _FILE_MAGIC


def _check_stream(file: Any, whole: Span) -> None:
    """Refuse a file that is not Arrow IPC, and a stream that was cut short between two batches.

    Raises:
        SourceError: it is such a file.
    """
    # A stream that was cut between two batches lacks only its end mark.
    head = file.read(8)
    file.seek(max(0, whole.stop - 8))
    tail = file.read(8)
    file.seek(0)
    if not head.startswith(_END_OF_STREAM[:4]):
        raise SourceError(f"{whole.name}: starts with {head!r}; expected Arrow IPC. Correct `format`.")
    if tail != _END_OF_STREAM:
        raise SourceError(f"{whole.name}: the stream has no end mark, so it was cut short. Write or restore it whole.")


def _open_columns(file: Any, columns: Iterable[str]) -> pa.ipc.RecordBatchFileReader:
    """Open an IPC file of which some columns are read, given by dotted paths."""
    fields = _read_fields(pa.ipc.open_file(file).schema, columns)
    return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))


def _measure_batches(source: SourceRecipe, whole: Span, file: Any) -> Iterator[Group]:
    """Measure the record batches of an IPC file; from another file system, only their number is read."""
    reader = _open_columns(file, source.columns)
    count = reader.num_record_batches
    for index in range(count):
        if is_local(whole.url):
            batch = reader.get_batch(index)
            yield batch.num_rows, _text_bytes(source, batch), batch.nbytes
        else:
            yield None, whole.text_bytes // count, whole.stop // count


def _text_bytes(source: SourceRecipe, batch: pa.RecordBatch) -> int:
    return int(measure_rows(batch, source.text_columns).sum())


@lru_cache(maxsize=32)  # a sample reads many batches of one stream
def _walk(url: str, version: str) -> list[int]:
    """Return where an Arrow stream's record batches start, and where the last one ends; none of one with
    dictionaries."""
    with pa.memory_map(url) as file:
        pa.ipc.read_message(file)  # the schema
        offsets = [file.tell()]
        while True:
            try:
                message = pa.ipc.read_message(file)
            except EOFError:
                return offsets
            if message.type != "record batch":
                return []
            offsets.append(file.tell())


def _measure_messages(source: SourceRecipe, file: Any, schema: pa.Schema, offsets: list[int]) -> Iterator[Group]:
    file.seek(offsets[0])
    for start, stop in itertools.pairwise(offsets):
        batch = _read_batch(file, schema)
        yield batch.num_rows, _text_bytes(source, batch), stop - start


def _read_batch(file: Any, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.ipc.read_message(file), schema)


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the record batches of an Arrow IPC span, a few megabytes of text at a time."""
    span = reader.span
    with _open(span) as file:
        reader.raw = file
        for number, batch in enumerate(_read_batches(file, span, reader.columns), span.start):
            reader.part = f"record batch {number}"
            _validate(batch, reader.columns)
            # A record batch is as large as its writer made it: its text is given on in parts.
            for part in split_rows(batch, reader.columns):
                yield reader.make_batch(part, reader.number_rows(part.num_rows))


def _read_batches(file: Any, span: Span, columns: list[str]) -> Iterator[pa.RecordBatch]:
    if is_file(file):
        reader = _open_columns(file, columns)
        yield from (reader.get_batch(index) for index in range(span.start, span.stop))
        return
    if span.kind == "b":
        yield from pa.ipc.open_stream(file, options=pa.ipc.IpcReadOptions(use_threads=False))
        return
    schema = pa.ipc.read_schema(file)
    file.seek(_walk(span.url, span.version)[span.start])
    yield from (_read_batch(file, schema) for _ in range(span.start, span.stop))


def _read_fields(schema: pa.Schema, columns: Iterable[str]) -> list[int]:
    """Return the places of the fields of an Arrow IPC schema that hold some columns, given by dotted paths."""
    names = top_names(schema.names, columns)
    return [index for index, name in enumerate(schema.names) if name in names]


def _validate(batch: pa.RecordBatch, columns: list[str]) -> None:
    """Refuse an IPC batch whose offsets lead outside its text; whether text is UTF-8 is tested where it is cleaned."""
    for index in _read_fields(batch.schema, columns):
        column: Any = batch.column(index)
        column.view(replace_types(column.type, RAW_TYPES)).validate(full=True)
