"""The files of a source: list them, cut them into spans, and read spans.

Only the listing depends on the source's kind: local paths and URLs that fsspec opens are listed here, data sets on the
Hub in `pipeline.sources.hub`. Each function reads only what it must: a build of a part of the sources lists the spans
of as few files as possible. Reading is in `pipeline.sources.formats.contract`.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
import contextlib
import functools
import glob as globbing
import itertools
import os
import posixpath
import stat
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

from pipeline.recipe.paths import RecipePath, explain_path
from pipeline.recipe.schema import EvaluationRecipe, Recipe
from pipeline.recipe.sources import FilesSource, HubSource, SourceRecipe
from pipeline.sources.base import File, SourceError, Span, TextBatch
from pipeline.sources.formats import contract
from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS, is_local, read_file_version, version_of_status
from pipeline.sources.formats.columns import test_path
from pipeline.sources.formats.contract import FORMATS
from pipeline.sources.formats.detect import describe_packed, detect_format, explain_unread, format_of_name
from pipeline.sources.formats.span_reader import SpanReader
from pipeline.sources.globs import (
    HIDDEN,
    SPECIAL,
    LeftOut,
    describe_left_out,
    find_paths,
    name_some,
    note_unread,
    unescape,
)
from pipeline.sources.marks import DELTA, SAVED_SPLITS, find_marked, list_saved, name_folder, read_list
from pipeline.sources.network import keep_fetched
from shards.config import item_names, list_of
from shards.errors import InputError, MissingExtraError, first_of, plural, remedy_of, text_of
from shards.stores.files import hash_file
from shards.terminal.reporter import Note, no_note
from shards.terminal.workers import map_in_threads

LIST_THREADS = 16
"""Number of files whose spans are listed at once: over a network, each takes two requests."""
_DIGEST = ", content sha256 "
"""In a file's version, stands before the digest that `verify` adds."""
_LIST_FILES = 64
"""Most files that a thread takes at a time. Taken one by one, small local files cost twice the time, measured."""


def list_files(source: SourceRecipe, note: Note = no_note, *, with_splits: bool = False) -> list[File]:
    """List a source's files in order, without opening one; a note says what its globs leave out.

    Files of globs are sorted by name, which is relative to their common folder.

    Args:
        source: the source.
        note: is called with each line.
        with_splits: whether test and validation splits are read, as an evaluation set's items are.

    Raises:
        SourceError: the files cannot be listed.
    """
    if isinstance(source, HubSource):
        from pipeline.sources import hub  # with the Hub's libraries, which take a second

        return _leave_out_by_paths(source, hub.list_files(source), note)
    assert isinstance(source, FilesSource)
    try:
        # A file that several globs match is one file.
        left_out = LeftOut()
        found = {file.name: (glob, file) for glob in source.paths for file in expand_glob(glob, left_out)}
        for name in found:
            left_out.pop(name, None)
        unread = LeftOut()
        for glob in source.exclude:
            for file in expand_glob(glob, unread):
                found.pop(file.name, None)
                left_out.pop(file.name, None)
        # Folders that cannot be read are said, whatever is excluded.
        for name in itertools.filterfalse(os.path.isdir, unread):
            left_out.pop(name, None)
        marked = find_marked({name: glob for name, (glob, _) in found.items()}, with_splits=with_splits)
        if tables := [why for why in marked.values() if why.startswith(DELTA)]:
            raise ValueError(tables[0])
        files = [file for name, (_, file) in sorted(found.items()) if name not in marked]
        if source.verify:
            files = map_in_threads(_add_digest, files, LIST_THREADS)
    except BROKEN_FILE_ERRORS as error:
        raise SourceError(
            f"source {source.name!r}: {source.paths} cannot be listed: {text_of(error)}"
            + (remedy_of(error) or ". Correct `paths`.")
        ) from error
    left_out |= marked
    if not files:
        why = "".join(f" ({line})" for line in describe_left_out(left_out))
        raise SourceError(
            f"source {source.name!r}: no file of {source.paths} is left{why}. Restore the files, or correct `paths` or "
            "`exclude`."
        )
    folder = posixpath.commonpath({file.name.rpartition("/")[0] or "/" for file in files})
    for line in describe_left_out({_relative(name, folder): why for name, why in left_out.items()}):
        note(f"files of {source.name}: {line}")
    files = [replace(file, name=_relative(file.name, folder)) for file in files]
    return _leave_out_by_paths(source, files, note)


def _leave_out_by_paths(source: SourceRecipe, files: list[File], note: Note) -> list[File]:
    """Leave out the files of a source that `keep` rejects by the columns of their paths.

    Raises:
        SourceError: none is left.
    """
    if not source.keep:
        return files
    test_folder = functools.cache(functools.partial(test_path, source))
    reasons = [test_folder(f"{file.url.rpartition('/')[0]}/") for file in files]
    counts = Counter(filter(None, reasons))
    kept = [file for file, why in zip(files, reasons, strict=True) if not why]
    for why, count in sorted(counts.items()):
        note(f"files of {source.name}: left out by their folders: {plural(count, 'file')}: {why}")
    if files and not kept:
        raise SourceError(f"source {source.name!r}: `keep` rejects all files by their folders: {', '.join(counts)}.")
    return kept


def _add_digest(file: File) -> File:
    """Add the digest of a local file to its version."""
    if not is_local(file.url):
        return file
    return replace(file, version=file.version + _DIGEST + hash_file(Path(file.url)))


def _relative(name: str, folder: str) -> str:
    """Return the name of a source's file relative to a folder above it: a faster `posixpath.relpath` for most names."""
    if name.startswith(f"{folder}/") and "//" not in name and "/." not in name:
        return name[len(folder) + 1 :]
    return posixpath.relpath(name, folder)


def list_spans(source: SourceRecipe, files: list[File], unit_bytes: int | None = None) -> dict[str, list[Span]]:
    """List the spans of several files of a source at once, by the files' names, in their order.

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
    spans: dict[str, list[Span]] = {}
    faults: dict[str, list[str]] = {}
    for file, item in zip(files, itertools.chain.from_iterable(found), strict=True):
        if isinstance(item, str):
            faults.setdefault(item.removeprefix(file.name), []).append(file.name)
        else:
            spans[file.name] = item
    if faults:
        lines = [
            f"source {source.name!r}: {first}{fault}" + (f" The same applies to {name_some(more)}." if more else "")
            for fault, (first, *more) in faults.items()
        ]
        raise SourceError("\n".join(first_of(lines)))
    return spans


def list_spans_of_file(source: SourceRecipe, file: File, unit_bytes: int | None) -> list[Span]:
    """Cut one file of a source into spans.

    Raises:
        SourceError: the file cannot be read, or lacks a column.
    """
    with _explain_broken(source, file):
        # A listing of local files, and of the Hub, has their versions; others are asked for one by one.
        file = replace(file, version=file.version or read_file_version(file.url))
        if packed := describe_packed(file):
            raise SourceError(f"{file.name}: {packed}.")
        with keep_fetched():  # what is read of a remote file now is read again with its span
            format_ = detect_format(file, source.encoding) if source.format == "auto" else source.format
            return contract.cut_file(source, file, format_, unit_bytes)


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
        if now != span.version.partition(_DIGEST)[0]:
            raise SourceError(
                f"{span.name}: changed while the build was running; expected {span.version}, got {now}. "
                "Re-run the build to take the file as it is now."
            )

    reader = SpanReader(source, span)
    with _explain_broken(source, span, reader):
        # Before and after: a file that changes meanwhile would give documents of two versions.
        check_unchanged()
        yield from contract.read_rows(reader)
        check_unchanged()


@contextlib.contextmanager
def _explain_broken(source: SourceRecipe, file: File | Span, reader: SpanReader | None = None) -> Generator[None]:
    """Name the place, and the remedy, of an error of a file that cannot be opened, decompressed or decoded.

    Raises:
        SourceError: the body raises such an error.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except BROKEN_FILE_ERRORS as error:
        if why := explain_unread(file, error, source.format):
            raise SourceError(f"{file.name}: {why}.") from error
        if isinstance(error, InputError):  # a fault with its remedy
            raise
        found, remedy = "cannot be read", remedy_of(error) or ". Restore the file, or leave it out."
        if isinstance(error, UnicodeError) and source.encoding != "utf-8":  # a file in UTF-8 has malformed records
            found = f"does not decode as {source.encoding}"
            remedy = ". Correct `encoding`, or give the file a source of its own."
        raise SourceError(
            f"{file.name}{reader.place if reader else ''}: {found}: {text_of(error).rstrip('.')}{remedy}"
        ) from error


def expand_glob(glob: str, left_out: LeftOut) -> list[File]:
    """List the files that a source's glob matches, without folders, sorted by name. A name is an absolute path.

    A file's name has forward slashes and no scheme.

    Args:
        glob: a local path, or a URL.
        left_out: the names of local files that it leaves out are added here, and paths of links to folders that are
            read already and of folders that cannot be read.

    Raises:
        OSError, ValueError: the URL cannot be listed, lacks a part, or its protocol is not installed.
    """
    if is_local(glob):
        return sorted(_list_local(glob, left_out), key=lambda file: file.name)
    if "::" in glob:  # fsspec's way to name a file in an archive
        raise ValueError("'::', as before a file in an archive, is not read. Unpack it first, and name the files in it")
    import fsspec

    scheme = glob.partition("://")[0]
    # A glob is listed once with the sizes; a plain URL is asked for alone.
    try:
        fs, path = fsspec.url_to_fs(glob)
        if globbing.has_magic(path):
            listed = {name: info for name, info in fs.glob(path, detail=True).items() if info["type"] == "file"}
        else:
            listed = {path: fs.info(path)} if fs.isfile(path) else {}
    except (AttributeError, ImportError, NotImplementedError, TypeError) as error:  # of what a URL lacks, or of fsspec
        raise ValueError(str(error)) from error
    files: list[File] = []
    for name, info in listed.items():
        url = name if "://" in name else f"{scheme}://{name}"
        place = name.partition("://")[2] or name.lstrip("/")
        # Two protocols may have files at one place; those of `file` are local ones.
        name = f"/{place}" if scheme == "file" else f"/{scheme}/{place}"
        files.append(File(url, name, info.get("size") or 0))
    return sorted(files, key=lambda file: file.name)


def _list_local(glob: str, left_out: LeftOut) -> Iterator[File]:
    """Yield the local files that a glob matches; of a folder of `datasets.save_to_disk`, those with its rows."""
    if rows := list_saved(folder := unescape(glob)):
        found = [(os.path.join(folder, name), False) for name in rows]
    else:
        found = find_paths(os.path.join(glob, "*") if os.path.basename(glob) == "**" else glob, left_out)
    # One call of the system for each file, as there may be many.
    for path, is_hidden in found:
        name = os.path.abspath(path)
        try:
            status = os.stat(path)
        except OSError as error:
            note_unread(name, error, left_out)
            continue
        if stat.S_ISDIR(status.st_mode):
            continue
        if is_hidden or not stat.S_ISREG(status.st_mode):
            left_out[name] = HIDDEN if is_hidden else SPECIAL
            continue
        if not name.isascii() and name != name.encode(errors="replace").decode():
            left_out[name] = "its name is not UTF-8; rename it"
            continue
        yield File(path, name, status.st_size, version_of_status(status))


def _explain_folder(glob: str, path: str) -> str:
    """Say what to write for a source's path that is a folder; empty if it is none."""
    # What is a folder needs a glob; what `datasets` saved as several splits needs the name of one.
    if not is_local(path):
        import fsspec

        fs, place = fsspec.url_to_fs(path)
        if not fs.isdir(place):
            return ""
    elif not os.path.isdir(path := unescape(path)):
        return ""  # what is left out is told
    elif splits := read_list(Path(path, SAVED_SPLITS), "splits"):
        named = f"{', '.join(map(str, splits))}). Name one: {str(Path(glob, str(splits[0])))!r}"
        return f"{glob!r} is a folder of saved splits ({named}."
    elif kind := name_folder(path):
        return f"{glob!r} is {kind}, which holds no text of a source. Name the files of text."
    return f"{glob!r} is a folder. Give a glob over its files, such as {glob.rstrip('/') + '/**/*'!r}."


def check_globs(recipe: Recipe, folder: Path) -> Iterator[str]:
    """Yield the globs of a recipe in a folder that match no files, and the keys that do not fit their files."""
    for section, tables in (("sources", recipe.sources), ("evaluations", recipe.evaluations)):
        for name, source in zip(item_names(tables), tables, strict=True):
            if getattr(source, "weight", 1) == 0:
                continue  # the set does not need its files
            place, excluded = f"{section}.{name}", set[str]()
            for key in ("exclude", "paths"):
                for glob in list_of(getattr(source, key, None)):
                    if not isinstance(glob, RecipePath):
                        continue  # the model reports it
                    left_out = LeftOut()
                    files, fault = _try_glob(glob, folder, left_out)
                    if key == "exclude" and not all(map(os.path.isdir, left_out)):
                        continue  # such as a broken link, which is not said
                    if fault:
                        yield f"{place}.{key}: {fault}"
                    elif key == "exclude":
                        excluded |= {file.name for file in files}
                    elif isinstance(source.format, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                        kept = [file for file in files if file.name not in excluded]
                        yield from (f"{place}.{found}" for found in _check_keys(source, glob.written, kept))


def _try_glob(path: RecipePath, folder: Path, left_out: LeftOut) -> tuple[list[File], str]:
    """Return the files of a source that a glob matches; if it matches none, also why."""
    glob = path.written
    try:
        files = expand_glob(path, left_out)
        explained = "" if files else _explain_folder(glob, path)
    except BROKEN_FILE_ERRORS as error:
        return [], f"{glob!r} cannot be listed: {error}"
    if files or explained:
        return files, explained
    why = "".join(f" ({line})" for line in describe_left_out(left_out))
    return [], f"{glob!r} matches no file{why}. {explain_path(folder, glob)}"


def _check_keys(source: SourceRecipe | EvaluationRecipe, glob: str, files: list[File]) -> Iterator[str]:
    # Which formats the glob has, as far as names tell.
    formats = {format_of_name(file.name) if source.format == "auto" else source.format for file in files}
    read_as = ", or as ".join(sorted(found or "its content says" for found in formats))
    used = {key for found in formats if found in FORMATS for key in FORMATS[found].keys}
    for key, format_ in (("separator", "text"), ("join_bytes", "text"), ("delimiter", "csv"), ("quote", "csv")):
        if formats and getattr(source, key, None) is not None and key not in used:
            yield (
                f"{key}: only files that are read as {format_} use it; {glob!r} is "
                f"read as {read_as}. Leave `{key}` out, or give these files a source of their own"
                + (f', or set format = "{format_}"' if None in formats else "")
            )
