"""The contract of a file format, and the table of all formats.

A format is a module with the functions of `FormatModule`, and a line of `FORMATS`. No other code of this folder asks
for a format by its name. `FormatName` in `pipeline/recipe/key_values.py` lists the names that a recipe may give.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from pipeline.sources.base import Columns, Span, TextBatch

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

_COLUMNS = ("text", "keep", "carry")
_RECORDS = (*_COLUMNS, "encoding")
_OF_MEMBERS = ("members", "keep", "carry", "encoding")


class FormatModule(Protocol):
    """The functions of a format's module."""

    def cut_file(self, source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
        """Cut a file into spans of up to `unit_bytes` of text; none if it holds no record.

        Args:
            source: the source, whose columns are checked as far as the file's head or footer has them.
            whole: the file as one span of all its bytes, with an estimate of its text; its version is known.
            unit_bytes: the most text in a span, if the format allows it.

        Raises:
            SourceError: the file is broken, or lacks a column.
            OSError, ValueError: the file cannot be opened or decompressed.
        """
        ...

    def read_span(self, source: SourceRecipe, span: Span, carried: Columns = ()) -> Iterator[TextBatch]:
        """Stream a span that `cut_file` made, with the columns to carry; rows count from 0 in each span.

        Raises:
            SourceError: a record is malformed, or the file is broken.
            OSError, ValueError: the file cannot be opened or decompressed.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileFormat:
    """What is known of a format before its module is imported, which takes up to 0.1 s."""

    module: str
    """The module's name in this folder, with dots."""
    keys: tuple[str, ...] = ()
    """The keys of a source that only some formats use, and this one does."""
    required: tuple[str, ...] = ()
    """Those of `keys` that a source must give."""
    endings: tuple[str, ...] = ()
    """Endings of names, in lower case, that tell the format, without that of a compression."""
    magic: tuple[bytes, ...] = ()
    """First bytes that tell the format of a file whose name does not."""
    magic_at: int = 0
    """Where in the file those bytes stand."""

    def load(self) -> FormatModule:
        """Return the format's module."""
        return _load(self.module)


@functools.cache
def _load(module: str) -> FormatModule:
    return cast("FormatModule", importlib.import_module(f"pipeline.sources.formats.{module}"))


FORMATS = {
    "parquet": FileFormat("tables.parquet", _COLUMNS, endings=(".parquet",), magic=(b"PAR1",)),
    "arrow": FileFormat(
        "tables.arrow_ipc", _COLUMNS, endings=(".arrow", ".feather"), magic=(b"ARROW1", b"\xff\xff\xff\xff")
    ),
    "jsonl": FileFormat("jsonl", _RECORDS, endings=(".jsonl", ".ndjson")),
    "text": FileFormat("text", ("separator", "encoding"), required=("separator",), endings=(".txt",)),
    "csv": FileFormat("tables.csv_table", (*_RECORDS, "delimiter"), endings=(".csv", ".tsv", ".tab", ".psv")),
    "json": FileFormat("json_array", _RECORDS),
    "file": FileFormat("whole_file", ("encoding",)),
    "tar": FileFormat("archives.tar", _OF_MEMBERS, endings=(".tar",), magic=(b"ustar",), magic_at=257),
    "webdataset": FileFormat("archives.webdataset", _OF_MEMBERS),
    "zip": FileFormat("archives.zip", _OF_MEMBERS, endings=(".zip",)),
    "warc": FileFormat("archives.warc", ("keep", "carry", "encoding"), endings=(".warc", ".wet"), magic=(b"WARC/1.",)),
}
"""All formats, by their names in recipes."""


def list_formats_with(key: str) -> str:
    """Return the names of the formats that use a key of a source, for messages."""
    *others, last = [name for name, format_ in FORMATS.items() if key in format_.keys]
    return f"{', '.join(others)} or {last}" if others else last
