"""tar archives, also compressed: each regular member is a document. Nothing is unpacked.

The archive is read from its start to its end, once. A plain local archive that is larger than a unit is cut at members,
which its headers show without reading their contents.

A tar whose first members are a sample of WebDataset, and whose format the recipe leaves open, is read as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.sources.base import Span, TextBatch
from pipeline.sources.formats.archives import webdataset
from pipeline.sources.formats.archives.members import check_text_columns, read_members
from pipeline.sources.formats.archives.tar_walk import Walk, cut_at_members
from pipeline.sources.formats.span_reader import SpanReader

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Check the columns, and cut an archive at members; a compressed or remote one is one span, an empty file none.

    Raises:
        SourceError: the archive is broken, or lacks a column.
    """
    if not whole.stop:
        return []
    if source.format == "auto" and webdataset.begins_with_sample(whole):
        return webdataset.cut_file(source, replace(whole, format="webdataset"), unit_bytes)
    whole = replace(whole, carried=check_text_columns(source, whole.name))
    return cut_at_members(whole, unit_bytes, lambda members: (member.offset for member in members))


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the members of a span as documents.

    Raises:
        SourceError: a member is malformed and the source's `max_malformed` is 0, or the archive is broken.
    """
    with reader.open() as raw:
        yield from read_members(reader, Walk(raw, reader.span).members())
