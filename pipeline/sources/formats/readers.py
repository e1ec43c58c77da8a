"""A file's format cuts it into spans and streams them: `pipeline.sources.formats.contract` has the formats.

Keys of the source that the format does not use are refused here. At most a batch, or one row group's column chunk, is
in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.sources.base import UNIT_BYTES, Columns, SourceError, Span, TextBatch
from pipeline.sources.formats.byte_io import TEXT_PER_STORED_BYTE, is_compressed
from pipeline.sources.formats.contract import FORMATS, list_formats_with
from pipeline.sources.formats.encodings import UTF8, text_per_byte

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

_CONTENT_PER_LINE_BYTE = 25  # a line of 200 bytes names a source file of 5,000; only for estimates


def cut_file(
    source: SourceRecipe, url: str, name: str, version: str, format_: str, unit_bytes: int | None = None
) -> list[Span]:
    """Cut a file by its format into spans of up to `unit_bytes` of text (`UNIT_BYTES` when None).

    Raises:
        SourceError: the file is broken, lacks a column, or has a format that does not use a key of the source.
    """
    _refuse_unused(source, name, format_)
    # The stated text is an estimate: of a compressed file, by how much text compresses.
    size = int(version.partition(" ")[0])
    per_byte = _CONTENT_PER_LINE_BYTE if source.content == "software-heritage" else 1
    compression = TEXT_PER_STORED_BYTE if is_compressed(name) else 1
    text_bytes = int(size * compression * per_byte * text_per_byte(source.encoding))
    whole = Span(url, name, version, format_, "b", 0, size, text_bytes, None, size)
    return FORMATS[format_].load().cut_file(source, whole, unit_bytes or UNIT_BYTES)


def _refuse_unused(source: SourceRecipe, name: str, format_: str) -> None:
    used = FORMATS[format_].keys
    if source.keep and "keep" not in used:
        needed = list_formats_with("keep")
        raise SourceError(f"{name}: is read as {format_} and has no columns; predicates need {needed}.")
    if source.carry and "carry" not in used:
        raise SourceError(
            f"{name}: is read as {format_} and has no columns; `carry` of {source.name!r} needs "
            f"{list_formats_with('carry')}. Leave `carry` out."
        )
    if source.members and "members" not in used:
        raise SourceError(f"{name}: is read as {format_} and has no members. Leave `members` out.")
    if source.encoding != UTF8 and "encoding" not in used:
        raise SourceError(
            f"{name}: is read as {format_}, which holds text in UTF-8; `encoding` is for text files. Leave it out, or "
            "give these files a source of their own."
        )


def read_rows(source: SourceRecipe, span: Span, carried: Columns = ()) -> Iterator[TextBatch]:
    """Stream a span by its format, with the columns to carry."""
    return FORMATS[span.format].load().read_span(source, span, carried)
