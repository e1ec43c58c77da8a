"""The files that a source's `paths` match, in folders, archives and stores. They are checked before a build begins."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import glob as globbing
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.recipe import paths
from pipeline.recipe.raw_tables import list_of, named_tables
from pipeline.recipe.sources import FilesSource, SourceRecipe
from pipeline.sources.base import File, SourceError
from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS, version_of_status
from pipeline.sources.formats.contract import FORMATS, list_formats_with
from pipeline.sources.formats.detect import detect_format, ending_of, format_of_name

_STATE_FILE = "state.json"
"""What `datasets.save_to_disk` writes beside the files with the rows, and lists these in."""


def expand_glob(glob: str) -> list[File]:
    """List the files that a glob matches, without folders, sorted by name. A name is an absolute path.

    A file's name has forward slashes and no scheme; a file in an archive is named after the archive's path.

    In a chained URL (`zip://*.parquet::/data/set.zip`), the first part with a path is the glob, and the rest is the
    archive that holds the files.

    Raises:
        OSError, ValueError, ImportError: the URL cannot be listed, or its protocol is not installed.
    """
    if "://" not in glob and "::" not in glob:
        return sorted(_list_local(glob), key=lambda file: file.name)
    import fsspec

    # Of a chain, the first link with a path is the glob; the links after it lead to the archive that holds the files.
    links = glob.split("::")
    place = next((i for i, link in enumerate(links) if "://" in link), len(links) - 1)
    scheme = links[place].partition("://")[0]
    container = "".join(_absolute(link) for link in reversed(links[place + 1 :]))
    # A glob is listed once with the sizes; a plain URL is asked for alone.
    fs, path = fsspec.url_to_fs(glob)
    if globbing.has_magic(path):
        listed = {name: info for name, info in fs.glob(path, detail=True).items() if info["type"] == "file"}
    else:
        listed = {path: fs.info(path)} if fs.isfile(path) else {}
    files: list[File] = []
    for name, info in listed.items():
        # The name is the archive's path and the member's, so that equal members of two archives are two files.
        member = name.lstrip("/") if container else name
        url = member if "://" in member else f"{scheme}://{member}"
        name = f"{container}/{member.partition('://')[2] or member.lstrip('/')}"
        url = "::".join([*links[:place], url, *links[place + 1 :]])
        files.append(File(url, _check_name(name), info.get("size") or 0))
    return sorted(files, key=lambda file: file.name)


def _list_local(glob: str) -> Iterator[File]:
    """Yield the local files that a glob matches. One call of the system for each, as there may be many."""
    folders: dict[str, str] = {}
    for path in _match_local(glob):
        try:
            status = os.stat(path)
        except OSError:
            continue  # a broken link, or gone meanwhile
        if not stat.S_ISREG(status.st_mode):
            continue
        folder, separator, base = path.rpartition(os.sep)
        if folder not in folders:
            folders[folder] = _absolute(folder + separator).rstrip("/")
        name = f"{folders[folder]}/{base}"
        yield File(path, _check_name(name), status.st_size, version_of_status(status))


def _match_local(glob: str) -> list[str]:
    """List what a glob matches; of a folder of `datasets.save_to_disk`, the files with its rows, in order."""
    path = os.path.expanduser(glob)
    if not globbing.has_magic(path) and os.path.isfile(os.path.join(path, _STATE_FILE)):
        state = json.loads(Path(path, _STATE_FILE).read_bytes())
        return [os.path.join(path, file["filename"]) for file in state["_data_files"]]
    return globbing.glob(path, recursive=True)


def _explain_folder(glob: str, path: str) -> str:
    """Say what to write for a path that is a folder; empty if it is none."""
    # What is a folder needs a glob; what `datasets` saved as several splits needs the name of one.
    if "://" in path or "::" in path:
        import fsspec

        fs, place = fsspec.url_to_fs(path)
        if not fs.isdir(place):
            return ""
    elif not os.path.isdir(path := os.path.expanduser(path)):
        return ""
    elif os.path.isfile(splits := os.path.join(path, "dataset_dict.json")):
        names = json.loads(Path(splits).read_bytes()).get("splits", [])
        first = f"{glob.rstrip('/')}/{names[0] if names else 'train'}"
        return f"{glob!r} is a folder of saved splits ({', '.join(names)}). Name one: {first!r}."
    return f"{glob!r} is a folder. Give a glob over its files, such as {glob.rstrip('/') + '/**/*'!r}."


def check_globs(data: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield the globs of a raw recipe's `paths` that match nothing, and the keys that do not fit their files."""
    for place, source in [*named_tables(data, "sources"), *named_tables(data, "evaluations")]:
        if SourceRecipe.kind_of(source) is not FilesSource:
            continue
        for key, check in (("paths", _check_glob), ("exclude", _check_excluded)):
            for glob in list_of(source.get(key)):
                if isinstance(glob, str):  # the model reports the others
                    yield from check(place, source, glob, folder)


def _check_excluded(place: str, source: dict[str, Any], glob: str, folder: Path) -> Iterator[str]:
    try:
        found = _one_of_each_ending(paths.join_path(folder, glob))
    except (*BROKEN_FILE_ERRORS, ImportError) as error:
        yield f"{place}.exclude: {glob!r} cannot be listed: {error}"
        return
    if not found:
        yield f"{place}.exclude: {glob!r} matches no file. {paths.explain_path(folder, glob)} Or leave it out."


def _check_glob(place: str, source: dict[str, Any], glob: str, folder: Path) -> Iterator[str]:
    try:
        files = _one_of_each_ending(paths.join_path(folder, glob))
    except (*BROKEN_FILE_ERRORS, ImportError) as error:
        yield f"{place}.paths: {glob!r} cannot be listed: {error}"
        return
    if not files:
        why = _explain_folder(glob, paths.join_path(folder, glob)) or (
            f"{glob!r} matches no file. {paths.explain_path(folder, glob)}"
        )
        yield f"{place}.paths: {why}"
        return
    format_ = str(source.get("format", "auto"))
    # One file of each ending shows which formats the glob has; content is looked at only where no name tells.
    by_name = {file.name: format_of_name(file.name) if format_ == "auto" else format_ for file in files}
    formats = sorted({found or "their content says" for found in by_name.values()})
    cut = [name for name, found in by_name.items() if found in FORMATS and "separator" in FORMATS[found].required]
    if cut and not source.get("separator"):
        remedy = 'Give `separator`, or format = "file" for one document per file'
        yield f"{place}.separator: required to cut {cut[0]!r} into documents. {remedy}"
    if source.get("separator") and not cut:
        yield (
            f"{place}.separator: only text files are cut by a separator; {glob!r} has files that are read as "
            f"{', or as '.join(formats)}. Leave `separator` out, or give these files a source of their own"
            + (', or set format = "text"' if None in by_name.values() else "")
        )
    if source.get("keep") and (name := _find_without_columns(files, by_name)):
        yield f"{place}.keep: {name!r} has no columns; predicates need {list_formats_with('keep')}"


def _one_of_each_ending(glob: str) -> list[File]:
    """Return one file for each ending that a glob matches, sorted by name: the endings show the formats of all files.

    Raises:
        As `expand_glob`.
    """
    # No status is asked of further files with a known ending: there may be millions.
    files: dict[str, File] = {}
    if "://" in glob or "::" in glob:
        for file in expand_glob(glob):
            files.setdefault(ending_of(file.name), file)
        return list(files.values())
    for path in sorted(_match_local(glob)):
        ending = ending_of(path)
        if (ending not in files or not path.isascii()) and os.path.isfile(path):
            files.setdefault(ending, File(path, _check_name(_absolute(path)), 0))
    return list(files.values())


def _find_without_columns(files: list[File], by_name: dict[str, str | None]) -> str | None:
    """Return the name of the first file without columns; a file is opened only if its name does not give its format.

    This checks one file of each ending. `pipeline.sources.formats.contract` refuses other files without columns.
    """
    for file in files:
        found = by_name[file.name]
        try:
            found = found or detect_format(file.url, file.name)
        except (SourceError, *BROKEN_FILE_ERRORS):
            continue  # reported when the source is opened
        if "keep" not in FORMATS[found].keys:
            return file.name
    return None


def _absolute(path: str) -> str:
    scheme, found, rest = path.partition("://")
    return "/" + (rest if found else os.path.abspath(scheme)).replace(os.sep, "/").lstrip("/")


def _check_name(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the name of the file {name!a} is not UTF-8; rename the file") from error
    return name
