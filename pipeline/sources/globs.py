"""The files that a source's `paths` match, in folders and stores. They are checked before a build begins."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import glob as globbing
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.recipe.paths import explain_path, locate
from pipeline.recipe.sources import FilesSource, SourceRecipe
from pipeline.sources.base import File
from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS, is_local, version_of_status
from pipeline.sources.formats.contract import FORMATS, list_formats_with
from pipeline.sources.formats.detect import describe_packed, ending_of, format_of_name
from shards.config import list_of, named_tables

_STATE_FILE = "state.json"
"""What `datasets.save_to_disk` writes beside the files with the rows, and lists these in."""


def expand_glob(glob: str) -> list[File]:
    """List the files that a glob matches, without folders, sorted by name. A name is an absolute path.

    A file's name has forward slashes and no scheme.

    Raises:
        OSError, ValueError, ImportError: the URL cannot be listed, or its protocol is not installed.
    """
    if is_local(glob):
        return sorted(_list_local(glob), key=lambda file: file.name)
    if "::" in glob:
        raise ValueError("files in an archive are not read. Unpack it first, and name the files that it holds")
    import fsspec

    scheme = glob.partition("://")[0]
    # A glob is listed once with the sizes; a plain URL is asked for alone.
    fs, path = fsspec.url_to_fs(glob)
    if globbing.has_magic(path):
        listed = {name: info for name, info in fs.glob(path, detail=True).items() if info["type"] == "file"}
    else:
        listed = {path: fs.info(path)} if fs.isfile(path) else {}
    files: list[File] = []
    for name, info in listed.items():
        url = name if "://" in name else f"{scheme}://{name}"
        name = f"/{name.partition('://')[2] or name.lstrip('/')}"
        files.append(File(url, _check_name(name), info.get("size") or 0))
    return sorted(files, key=lambda file: file.name)


def _list_local(glob: str) -> Iterator[File]:
    """Yield the local files that a glob matches; of a folder of `datasets.save_to_disk`, those with its rows."""
    glob = os.path.expanduser(glob)
    state = Path(glob, _STATE_FILE)
    if not globbing.has_magic(glob) and state.is_file():
        found = [os.path.join(glob, file["filename"]) for file in json.loads(state.read_bytes())["_data_files"]]
    else:
        found = globbing.glob(glob, recursive=True)
    # One call of the system for each file, as there may be many.
    folders: dict[str, str] = {}
    for path in found:
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


def _explain_folder(glob: str, path: str) -> str:
    """Say what to write for a path that is a folder; empty if it is none."""
    # What is a folder needs a glob; what `datasets` saved as several splits needs the name of one.
    if not is_local(path):
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
        for key in ("paths", "exclude"):
            for glob in list_of(source.get(key)):
                if not isinstance(glob, str):
                    continue  # the model reports it
                files, fault = _try_glob(key, glob, folder)
                if fault:
                    yield f"{place}.{key}: {fault}"
                elif key == "paths":
                    yield from _check_keys(place, source, glob, files)


def _try_glob(key: str, glob: str, folder: Path) -> tuple[list[File], str]:
    """Return the files that a glob of a key matches; if it matches none, also why."""
    path = locate(folder, glob)
    try:
        files = expand_glob(path)
        explained = _explain_folder(glob, path) if key == "paths" and not files else ""
    except (*BROKEN_FILE_ERRORS, ImportError) as error:
        return [], f"{glob!r} cannot be listed: {error}"
    if files or explained:
        return files, explained
    remedy = " Or leave it out." if key == "exclude" else ""
    return [], f"{glob!r} matches no file. {explain_path(folder, glob)}{remedy}"


def _check_keys(place: str, source: dict[str, Any], glob: str, files: list[File]) -> Iterator[str]:
    # One file of each ending shows which formats the glob has, as far as names tell.
    given = str(source.get("format", "auto"))
    names = sorted({ending_of(file.name): file.name for file in reversed(files)}.values())
    if packed := [f"{place}.paths: {name!r} {what}" for name in names if (what := describe_packed(name))]:
        yield from packed
        return
    formats = {name: format_of_name(name) if given == "auto" else given for name in names}
    cut = [name for name, found in formats.items() if found in FORMATS and "separator" in FORMATS[found].keys]
    if cut and not source.get("separator"):
        remedy = 'Give `separator`, or format = "file" for one document per file'
        yield f"{place}.separator: required to cut {cut[0]!r} into documents. {remedy}"
    read_as = ", or as ".join(sorted({found or "their content says" for found in formats.values()}))
    for key, format_ in (("separator", "text"), ("delimiter", "csv")):
        if source.get(key) and not any(found in FORMATS and key in FORMATS[found].keys for found in formats.values()):
            yield (
                f"{place}.{key}: only files that are read as {format_} have a use for it; {glob!r} has files that are "
                f"read as {read_as}. Leave `{key}` out, or give these files a source of their own"
                + (f', or set format = "{format_}"' if None in formats.values() else "")
            )
    if source.get("keep"):
        for name in [name for name, found in formats.items() if found and "keep" not in FORMATS[found].keys][:1]:
            yield f"{place}.keep: {name!r} has no columns; predicates need {list_formats_with('keep')}"


def _absolute(path: str) -> str:
    scheme, found, rest = path.partition("://")
    return "/" + (rest if found else os.path.abspath(scheme)).replace(os.sep, "/").lstrip("/")


def _check_name(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the name of the file {name!a} is not UTF-8; rename the file") from error
    return name
