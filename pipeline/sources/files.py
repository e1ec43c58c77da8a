"""The files of a source: list them, cut them into spans, and read spans.

Only the listing depends on the source's kind: local paths and URLs that fsspec opens are listed here, data sets on the
Hub in `pipeline.sources.hub`. Each function reads only what it must: a build of a part of the sources lists the spans
of as few files as possible. Reading is in `pipeline.sources.formats.contract`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pipeline.recipe.sources import HubSource
from pipeline.sources.base import File, SourceError, Span, TextBatch
from pipeline.sources.formats import contract
from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS, read_file_version
from pipeline.sources.formats.detect import describe_packed, detect_format
from pipeline.sources.globs import expand_glob
from pipeline.sources.network.settings import keep_fetched
from shards.errors import InputError
from shards.terminal.workers import map_in_threads

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe
    from pipeline.recipe.sources import FilesSource

LIST_THREADS = 16
"""Number of files whose spans are listed at once: over a network, each takes two requests."""
_LIST_FILES = 64
"""Most files that a thread takes at a time. Taken one by one, small local files cost twice the time, measured."""


def list_files(source: SourceRecipe) -> list[File]:
    """List a source's files in order, without opening one.

    Raises:
        SourceError: the files cannot be listed.
    """
    if isinstance(source, HubSource):
        from pipeline.sources import hub  # with the Hub's libraries, which take a second

        return hub.list_files(source)
    return _list_matches(cast("FilesSource", source))


def _list_matches(source: FilesSource) -> list[File]:
    """List the files of a `files` source, sorted by name. A name is relative to the files' common folder.

    Raises:
        SourceError: a glob cannot be listed, or no glob matches a file any more.
    """
    try:
        # A file that several globs match is one file.
        files = {file.name: file for glob in source.paths for file in expand_glob(glob)}
        for glob in source.exclude:
            for file in expand_glob(glob):
                files.pop(file.name, None)
    except (*BROKEN_FILE_ERRORS, ImportError) as error:
        raise SourceError(
            f"source {source.name!r}: {source.paths} cannot be listed: {error}. Correct `paths`."
        ) from error
    if not files:
        without = f"without {source.exclude} " if source.exclude else ""
        raise SourceError(
            f"source {source.name!r}: {source.paths} {without}match no file any more. "
            f"Restore the files, or correct {'`paths` or `exclude`' if source.exclude else '`paths`'}."
        )
    folder = posixpath.commonpath({name.rpartition("/")[0] or "/" for name in files})
    return [replace(file, name=_relative(name, folder)) for name, file in sorted(files.items())]


def _relative(name: str, folder: str) -> str:
    """Return a name relative to a folder above it: `posixpath.relpath`, ten times as fast for an ordinary name."""
    if name.startswith(f"{folder}/") and "//" not in name and "/." not in name:
        return name[len(folder) + 1 :]
    return posixpath.relpath(name, folder)


def list_spans(source: SourceRecipe, files: list[File], unit_bytes: int | None = None) -> list[Span]:
    """List the spans of several files of a source at once, in the files' order.

    Args:
        source: the source.
        files: its files.
        unit_bytes: the most text of a span, if its format allows it; `UNIT_BYTES` when None.

    Raises:
        SourceError: with one line for each file that cannot be read, or does not fit the recipe.
    """

    def spans_of(file: File) -> list[Span] | str:
        try:
            return list_spans_of_file(source, file, unit_bytes)
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


def list_spans_of_file(source: SourceRecipe, file: File, unit_bytes: int | None) -> list[Span]:
    """Cut one file of a source into spans.

    Raises:
        SourceError: the file cannot be read, or lacks a column.
    """
    try:
        # A listing of local files, and of the Hub, has their versions; others are asked for one by one.
        file = replace(file, version=file.version or read_file_version(file.url))
        if packed := describe_packed(file.name):
            raise SourceError(f"{file.name}: {packed}.")
        with keep_fetched():  # what is read of a remote file now is read again with its span
            format_ = detect_format(file, source.encoding) if source.format == "auto" else source.format
            return contract.cut_file(source, file, format_, unit_bytes)
    except InputError:  # a fault with its remedy, such as a missing package
        raise
    except BROKEN_FILE_ERRORS as error:
        raise SourceError(f"{file.name}: {error}. Restore the file.") from error


def read_span(source: SourceRecipe, span: Span) -> Iterator[TextBatch]:
    """Stream the batches of a span of a source's file, or of documents that the fetch stage wrote.

    Raises:
        SourceError: the file is broken, cannot be read as the recipe says, or has changed since it was resolved.
    """
    # What rows name was fetched by a stage of its own, into files with one document a row.
    if span.format == "documents":
        from pipeline.sources.software_heritage import fetched_documents

        yield from fetched_documents.read_fetched(span)
        return

    def check_unchanged() -> None:
        if span.revision is not None:
            return  # each answer for it is checked
        now = read_file_version(span.url)
        if now != span.version:
            raise SourceError(
                f"{span.name}: changed while the build was running; expected {span.version}, got {now}. "
                "Re-run the build to take the file as it is now."
            )

    try:
        # Before and after: a file that changes meanwhile would give documents of two versions.
        check_unchanged()
        yield from contract.read_rows(source, span)
        check_unchanged()
    except InputError:  # a fault with its remedy, such as a missing package
        raise
    except BROKEN_FILE_ERRORS as error:
        if isinstance(error, UnicodeError) and source.encoding != "utf-8":  # a file in UTF-8 has malformed records
            remedy = "Correct `encoding`, or give the file a source of its own."
            raise SourceError(f"{span.name}: does not decode as {source.encoding}: {error}. {remedy}") from error
        raise SourceError(
            f"{span.name}: cannot be read: {error}. Restore the file, or leave it out of `paths`."
        ) from error
