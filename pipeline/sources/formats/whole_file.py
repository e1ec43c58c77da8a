"""Files that are one document each: as they are, the text of an HTML page, or the cells of a notebook."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_texts
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import Span, TextBatch
from pipeline.sources.formats import html_page
from pipeline.sources.formats.encodings import UTF8, decode_whole
from pipeline.sources.formats.span_reader import SpanReader
from shards.errors import check_extra

_EMBEDDED = re.compile(r"data:[\w.+-]*+/?[\w.+-]*+(?:;[\w.+-]++=[^;,\s]*+)*+;base64,[\w+/=%-]*")
"""A file, such as an image, within a text."""


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Return a file as one span, also if it is empty.

    Raises:
        MissingExtraError: the file is a page, and trafilatura is not installed.
    """
    if whole.format == "html":
        check_extra("trafilatura")
    return [replace(whole, kind="file", rows=1)]


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Yield the document of a file.

    Raises:
        SourceError: it is malformed, and the source's `max_malformed` is 0.
    """
    span = reader.span
    with reader.open() as raw:
        pieces = reader.read_cut(raw, lambda data: 0, stored=span.format != "file")
        documents = [b"".join(piece for piece, _ in pieces)]
    try:
        if span.format != "file":
            documents = [take_text(span.format, documents[0], reader.source.encoding)]
    except ValueError as error:
        reader.refuse(0, f"cannot be read as {span.format}: {error}", "Repair the file")
        documents = []
    yield reader.finish(TextBatch(wrap_texts(pa.large_binary(), documents), np.zeros(len(documents), np.uint32)))


def take_text(format_: str, data: bytes, encoding: str) -> bytes:
    """Return the document in the bytes of a file.

    Raises:
        ValueError: they do not decode, or are not of the format.
    """
    if format_ == "html":
        text = html_page.extract_text(data, html_page.find_encoding(data) if encoding == UTF8 else encoding)
    elif format_ == "ipynb":
        text = join_cells(data)
    else:
        return decode_whole(data, encoding)
    return _EMBEDDED.sub("", text).encode()


def join_cells(data: bytes) -> str:
    """Return the sources of a notebook's cells, in order, with an empty line between two; no outputs.

    Raises:
        ValueError: the data is no notebook, or one of another version than 3 and 4.
    """
    try:
        notebook: Any = json.loads(data or '{"nbformat": 4, "cells": []}')
        version = notebook["nbformat"]
        if version not in (3, 4):
            raise ValueError(f"expected nbformat 3 or 4, found {version!r}")
        sheets = [notebook] if version == 4 else notebook["worksheets"]
        # Of nbformat 3, the code of a cell is `input`.
        cells = ["".join(cell.get("source") or cell.get("input", "")) for sheet in sheets for cell in sheet["cells"]]
    except (AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError("expected a notebook: an object with `nbformat` and lists of cells") from error
    return "\n\n".join(text for cell in cells if (text := cell.strip("\n")))
