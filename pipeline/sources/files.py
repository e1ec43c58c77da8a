"""Sources that are files: local paths, or any URL that fsspec opens.

`list_files` lists the files, `list_spans` checks one file's schema and cuts it into spans; `read` streams one span.
Reading is in `pipeline.sources.formats.spans`.
"""

from __future__ import annotations

import glob as globbing
import os
import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.sources.base import File, SourceError, Span, TextBatch
from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS, COMPRESSION, version_of

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe


def format_of(name: str) -> str:
    """Return the format that a file's name tells: parquet, jsonl, text, or file (one document a file)."""
    base = name
    for suffix in COMPRESSION:
        base = base.removesuffix(suffix)
    for suffix, format_ in ((".parquet", "parquet"), (".jsonl", "jsonl"), (".ndjson", "jsonl"), (".txt", "text")):
        if base.endswith(suffix):
            return format_
    return "file"


def expand_glob(glob: str) -> list[File]:
    """List the files that a glob matches, sorted by name, an absolute path; folders are left out.

    A file's name has forward slashes and no scheme; a file in an archive is named after the archive's path.

    In a chained URL (`zip://*.parquet::/data/set.zip`) the first part with a path is the glob, what follows is the
    archive it is in.

    Raises:
        OSError, ValueError, ImportError: the URL cannot be listed, or its protocol is not installed.
    """
    if "://" not in glob and "::" not in glob:
        paths = [path for path in globbing.glob(os.path.expanduser(glob), recursive=True) if os.path.isfile(path)]
        files = [File(path, _checked(_absolute(path)), os.path.getsize(path)) for path in paths]
        return sorted(files, key=lambda file: file.name)
    import fsspec

    links = glob.split("::")
    place = next((i for i, link in enumerate(links) if "://" in link), len(links) - 1)
    scheme = links[place].partition("://")[0]
    container = "".join(_absolute(link) for link in reversed(links[place + 1 :]))
    fs, path = fsspec.url_to_fs(glob)
    if globbing.has_magic(path):
        found = {name: info for name, info in fs.glob(path, detail=True).items() if info["type"] == "file"}
    else:
        found = {path: fs.info(path)} if fs.isfile(path) else {}
    files: list[File] = []
    for name, info in found.items():
        member = name.lstrip("/") if container else name
        url = member if "://" in member else f"{scheme}://{member}"
        name = f"{container}/{member.partition('://')[2] or member.lstrip('/')}"
        files.append(File("::".join([*links[:place], url, *links[place + 1 :]]), _checked(name), info.get("size") or 0))
    return sorted(files, key=lambda file: file.name)


def _absolute(path: str) -> str:
    scheme, found, rest = path.partition("://")
    return "/" + (rest if found else os.path.abspath(scheme)).replace(os.sep, "/").lstrip("/")


def _checked(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the name of the file {name!a} is not UTF-8; rename the file") from error
    return name


def list_files(source: SourceRecipe) -> list[File]:
    """List a source's files, by name; a name is relative to their common folder.

    Raises:
        SourceError: a glob cannot be listed, or none matches a file any more.
    """
    try:
        files = {file.name: file for glob in source.paths for file in expand_glob(glob)}
    except (*BROKEN_FILE_ERRORS, ImportError) as error:
        raise SourceError(
            f"source {source.name!r}: {source.paths} cannot be listed: {error}. Correct `paths`."
        ) from error
    if not files:
        raise SourceError(
            f"source {source.name!r}: {source.paths} match no file any more "
            f"(working directory: {os.getcwd()}). Restore the files, or correct `paths`."
        )
    folder = posixpath.commonpath([posixpath.dirname(name) for name in files]) or "/"
    return [replace(files[name], name=posixpath.relpath(name, folder)) for name in sorted(files)]


def list_spans(source: SourceRecipe, file: File, unit_bytes: int | None = None) -> list[Span]:
    """Cut one file into spans of up to `unit_bytes` of text (`UNIT_BYTES` when None).

    Raises:
        SourceError: it cannot be read, or has not the columns.
    """
    from pipeline.sources.formats import spans as formats

    format_ = format_of(file.name) if source.format == "auto" else source.format
    try:
        return formats.list_spans(source, file.url, file.name, format_, unit_bytes)
    except SourceError:
        raise
    except BROKEN_FILE_ERRORS as error:
        raise SourceError(f"{file.name}: {error}. Restore the file.") from error


def read(source: SourceRecipe, span: Span) -> Iterator[TextBatch]:
    """Stream a span's batches.

    Raises:
        SourceError: the file is broken, or has changed since it was resolved.
    """
    from pipeline.sources.formats import spans as formats

    def check_unchanged() -> None:
        now = version_of(span.url)
        if now != span.version:
            raise SourceError(
                f"{span.name}: changed while the build was running; expected {span.version}, got {now}. "
                "Re-run the build to take the file as it is now."
            )

    try:
        check_unchanged()
        yield from formats.read_span(source, span)
        check_unchanged()
    except SourceError:
        raise
    except BROKEN_FILE_ERRORS as error:
        raise SourceError(
            f"{span.name}: cannot be read: {error}. Restore the file, or leave it out of `paths`."
        ) from error
