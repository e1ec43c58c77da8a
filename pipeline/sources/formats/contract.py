"""The contract of a file format, the table of all formats, and files cut and read by their format.

A format is a line of `FORMATS`, and a module with two functions:

- `cut_file(source, whole, unit_bytes)` returns the spans of a file, of up to `unit_bytes` of text if the format allows
  it; none if the file has no record. `whole` is the file as one span of all its bytes, with an estimate of its text. It
  checks the source's columns as far as the file's head or footer has them.
- `read_span(reader)` yields the `TextBatch`es of a span that `cut_file` made; rows count from 0 in each span. A batch
  has about `BATCH_BYTES` of text, or one document, however small the file is in which it is stored.

Both raise `SourceError` if the file is broken, a record is malformed, or a column is not there; `OSError` or
`ValueError` if the file cannot be opened or decompressed.

No other code of this folder asks for a format by its name. `FormatName` in `pipeline/recipe/key_values.py` lists the
names that a recipe may give. Keys of a source that a file's format does not use are refused. At most a batch, or one
row group's column chunk, is in memory.
"""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import UNIT_BYTES, File, SourceError, Span, TextBatch, describe_place
from pipeline.sources.formats.byte_io import TEXT_PER_STORED_BYTE, compression_of
from pipeline.sources.formats.columns import measure_texts, without_path_columns
from pipeline.sources.formats.encodings import UTF8
from pipeline.sources.formats.span_reader import SpanReader, too_long
from shards.errors import plural

_COLUMNS = ("text", "keep")
_RECORDS = (*_COLUMNS, "encoding")
GROWTH = 100
"""A file may hold this many bytes of text for each stored byte, or a source's `max_document_bytes` if that is more."""
_CONTENT_PER_LINE_BYTE = 25  # a line of 200 bytes names a source file of 5,000; only for estimates


@dataclass(frozen=True, slots=True)
class FileFormat:
    """What is known of a format before its module is imported, which takes up to 0.1 s."""

    module: str
    """The module's name in this folder."""
    keys: tuple[str, ...] = ()
    """The keys of a source that only some formats use, and this one does."""
    endings: tuple[str, ...] = ()
    """Endings of names, in lower case, that tell the format, without that of a compression."""
    magic: tuple[bytes, ...] = ()
    """First bytes that tell the format of a file whose name does not."""

    def load(self) -> Any:
        """Return the module of a format of the table."""
        return importlib.import_module(f"pipeline.sources.formats.{self.module}")


FORMATS = {
    "parquet": FileFormat("parquet", _COLUMNS, endings=(".parquet",), magic=(b"PAR1",)),
    "arrow": FileFormat("arrow_ipc", _COLUMNS, endings=(".arrow", ".feather"), magic=(b"ARROW1", b"\xff\xff\xff\xff")),
    "jsonl": FileFormat("jsonl", _RECORDS, endings=(".jsonl", ".ndjson")),
    "text": FileFormat("text", ("separator", "join_bytes", "encoding"), endings=(".txt",)),
    "csv": FileFormat("csv_table", (*_RECORDS, "delimiter", "quote"), endings=(".csv", ".tsv", ".tab", ".psv")),
    "json": FileFormat("json_array", _RECORDS),
    "html": FileFormat("whole_file", ("encoding",), endings=(".html", ".htm", ".xhtml")),
    "ipynb": FileFormat("whole_file", endings=(".ipynb",)),
    "file": FileFormat("whole_file", ("encoding",)),
}
"""All formats, by their names in recipes."""


def cut_file(source: SourceRecipe, file: File, format_: str, unit_bytes: int | None) -> list[Span]:
    """Cut a file by its format into spans of up to `unit_bytes` of text (`UNIT_BYTES` when None).

    Raises:
        SourceError: the file is broken, lacks a column, or has a format that does not use a key of the source.
    """
    name, source = file.name, without_path_columns(source, file.url)
    _refuse_unused(source, name, format_)
    # The stated text is an estimate: of a compressed file, by how much text compresses.
    size = int(file.version.partition(" ")[0])
    per_byte = _CONTENT_PER_LINE_BYTE if source.content == "software-heritage" else 1
    compression = TEXT_PER_STORED_BYTE if compression_of(name) else 1
    stored_per_character = {"utf-16": 2, "utf-32": 4}.get(source.encoding[:6], 1)
    text_bytes = int(size * compression * per_byte / stored_per_character)
    whole = Span(file.url, name, file.version, format_, "b", 0, size, text_bytes, None, size, file.revision)
    return FORMATS[format_].load().cut_file(source, whole, unit_bytes or UNIT_BYTES)


def _refuse_unused(source: SourceRecipe, name: str, format_: str) -> None:
    used = FORMATS[format_].keys
    if (source.keep or source.has_conversations) and "keep" not in used:
        key, others = "keep" if source.keep else "messages", [name for name in FORMATS if "keep" in FORMATS[name].keys]
        raise SourceError(f"{name}: is read as {format_} and has no columns; `{key}` needs one of {', '.join(others)}.")
    if source.encoding != UTF8 and "encoding" not in used:
        raise SourceError(
            f"{name}: is read as {format_}, which holds text in UTF-8; `encoding` is for text files. Leave it out, or "
            "give these files a source of their own."
        )


def read_rows(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream a span by its format.

    Raises:
        SourceError: a document is longer than `max_document_bytes`, or there is far more text than its file can hold.
    """
    span, most = reader.span, reader.source.max_document_bytes
    left = allowed = max(most, GROWTH * min(span.stored_bytes, span.file_bytes))
    for batch in FORMATS[span.format].load().read_span(reader):
        if batch.text.nbytes > most and (long := measure_texts(batch.text) > most).any():
            raise too_long(span, int(batch.rows[long.argmax()]), most)
        left -= max(0, batch.text.nbytes - 8 * len(batch.text))  # without the offsets
        if left < 0:
            raise SourceError(
                f"{describe_place(span, int(batch.rows[-1]))}: {plural(span.stored_bytes, 'stored byte')} become more "
                f"than {allowed:,} bytes of text here. If that is right, decompress the file, or raise the source's "
                "`max_document_bytes`; otherwise leave the file out."
            )
        yield batch
