"""The interface to all kinds of source: list their files, cut these into spans, and read spans.

A kind is a class of `pipeline.recipe.sources`, and a module of this folder with the kind's name and three functions.
Each reads only what it must: a build of a part of the sources lists the spans of as few files as possible.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol, cast

from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import File, SourceError, Span, TextBatch
from shards.terminal.workers import map_in_threads

LIST_THREADS = 16
"""Number of files whose spans are listed at once: over a network, each takes two requests."""
_LIST_FILES = 64
"""Most files that a thread takes at a time. Taken one by one, small local files cost twice the time, measured."""


class Kind(Protocol):
    """The functions that a kind's module has. All raise SourceError."""

    def list_files(self, source: SourceRecipe) -> list[File]:
        """List a source's files in order, without opening a file."""
        ...

    def list_spans(self, source: SourceRecipe, file: File, unit_bytes: int | None = None) -> list[Span]:
        """Cut one file into spans of up to `unit_bytes` of text, from its footer or its size. Thread-safe."""
        ...

    def read(self, source: SourceRecipe, span: Span) -> Iterator[TextBatch]:
        """Stream a span's batches."""
        ...


def kind_of(source: SourceRecipe) -> Kind:
    """Return the module of a source's kind. It is imported on first use, as the Hub's libraries take a second."""
    return cast("Kind", importlib.import_module(f"pipeline.sources.{source.kind}"))


def list_files(source: SourceRecipe) -> list[File]:
    """List a source's files, in order, as its kind does.

    Raises:
        SourceError: the files cannot be listed.
    """
    return kind_of(source).list_files(source)


def list_spans(source: SourceRecipe, files: list[File], unit_bytes: int | None = None) -> list[Span]:
    """List the spans of several files of a source of any kind at once, in the files' order.

    Raises:
        SourceError: with one line for each file that cannot be read, or does not fit the recipe.
    """
    kind = kind_of(source)

    def spans_of(file: File) -> list[Span] | str:
        try:
            return kind.list_spans(source, file, unit_bytes)
        except SourceError as error:
            return str(error)

    # Over a network each file takes requests, so files are listed at once; small local ones, many by a thread.
    size = min(_LIST_FILES, -(-len(files) // LIST_THREADS) or 1)
    parts = [files[start : start + size] for start in range(0, len(files), size)]
    found = map_in_threads(lambda part: list(map(spans_of, part)), parts, LIST_THREADS)
    listed = [item for part in found for item in part]
    faults = [item for item in listed if isinstance(item, str)]
    if faults:
        raise SourceError("\n".join(f"source {source.name!r}: {fault}" for fault in faults))
    return [span for item in listed if isinstance(item, list) for span in item]


def read_span(source: SourceRecipe, span: Span) -> Iterator[TextBatch]:
    """Stream a span's batches, from the files of a source of any kind or from documents that the fetch stage wrote.

    Raises:
        SourceError: the span cannot be read as the recipe says.
    """
    # What rows name was fetched by a stage of its own, into files with one document a row.
    if span.format == "documents":
        from pipeline.sources.software_heritage import fetched_documents

        return fetched_documents.read_fetched(source, span)
    return kind_of(source).read(source, span)
