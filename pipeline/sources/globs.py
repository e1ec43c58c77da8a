"""Globs over local files: those of Python's `glob`, but each part reads a folder once, whatever links lead to it.

Real folders are read before links to folders, so that a file has the name without a link if it has one. A name that is
there as it is written, with brackets in it, is no pattern; but `[[]` is a bracket, as `init` writes it, if there is a
file with that.
"""

import fnmatch
import os
import posixpath
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from glob import has_magic
from pathlib import Path

from shards.terminal.display import printable

_SHOWN = 5
HIDDEN = "hidden; to read hidden files, write the dot in the glob: `.hidden/*`"
SPECIAL = "a pipe, a socket or a device is not read"
AGAIN = "a link to a folder that is read already or lies above"
BROKEN = "a broken link"
UNREADABLE = "cannot be read: Permission denied"

LeftOut = dict[str, str]
"""The names of what globs leave out, and of each why."""

Found = tuple[str, bool]
"""A path, and whether the glob leaves it out: a name that it does not spell begins with a dot."""


def find_paths(glob: str, left_out: LeftOut) -> Iterator[Found]:
    """Yield the files and folders that a glob matches; add links to folders read before, and unreadable folders."""
    head, base = os.path.split(glob)
    folders = _find_folders(head, left_out) if has_magic(head) else iter([(head, False)])
    if base == "**":
        yield from _walk(folders, left_out)
        return
    for folder, is_hidden in folders:
        path = os.path.join(folder, base)
        is_there = "*" not in base and "?" not in base and os.path.lexists(path)
        if has_magic(base) and not (is_there and "[[]" not in base):
            for entry in fnmatch.filter(_list_names(folder, left_out), base):
                is_there = False
                yield os.path.join(folder, entry), is_hidden or (entry.startswith(".") and not base.startswith("."))
        if is_there:
            yield path, is_hidden


def _find_folders(glob: str, left_out: LeftOut) -> Iterator[Found]:
    """Yield the folders that a glob matches, each once: by a name that is not hidden, with the fewest links in it."""
    found: dict[tuple[int, int], list[Found]] = {}
    for path, is_hidden in find_paths(glob, left_out):
        try:
            facts = os.stat(path)
        except OSError:
            continue  # a broken link, or gone meanwhile
        if stat.S_ISDIR(facts.st_mode):
            found.setdefault((facts.st_dev, facts.st_ino), []).append((path, is_hidden))
    for names in found.values():
        best, *others = sorted(names, key=lambda one: (one[1], _count_links(one[0]), one[0]))
        yield best
        left_out |= {path: AGAIN for path, is_hidden in others if not is_hidden and _count_links(path)}


def _count_links(path: str) -> int:
    """Return how many parts of a path are links."""
    parts = path.split(os.sep)
    return sum(os.path.islink(os.sep.join(parts[:end])) for end in range(1, len(parts) + 1))


def _list_names(folder: str, left_out: LeftOut) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError as error:
        if isinstance(error, PermissionError):
            left_out[folder] = UNREADABLE
        return []  # or a file, or gone meanwhile


def _walk(folders: Iterable[Found], left_out: LeftOut) -> Iterator[Found]:
    """Yield the folders that a glob with `**` matches: the given ones and all below them, each once."""
    real, links, hidden = deque[str](), deque[str](), deque[str]()
    for folder, is_hidden in folders:
        (hidden if is_hidden else real).append(folder)
    # A link may lead to a folder above the given ones, and so to all of the disk.
    above = {parent for folder in real for parent in Path(os.path.realpath(folder)).parents}
    seen = set[tuple[int, int]]()
    while queue := real or links or hidden:
        folder = queue.popleft()
        try:
            facts = os.stat(folder or ".")
            with os.scandir(folder or ".") as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            if isinstance(error, PermissionError) and queue is not hidden:
                left_out[folder] = UNREADABLE
            continue  # or a file, a broken link, or gone meanwhile
        is_above = queue is not real and Path(os.path.realpath(folder)) in above
        if is_above or (facts.st_dev, facts.st_ino) in seen:
            if queue is links:
                left_out[folder] = AGAIN
            continue
        seen.add((facts.st_dev, facts.st_ino))
        yield folder, queue is hidden
        for entry in entries:
            path = os.path.join(folder, entry.name)
            is_hidden = queue is hidden or entry.name.startswith(".")
            below = hidden if is_hidden else links if entry.is_symlink() else real
            if entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(path)):
                below.append(path)


def describe_left_out(left_out: LeftOut) -> Iterator[str]:
    """Yield what is left out, by name, a line for each reason."""
    names: dict[str, list[str]] = {}
    for name in sorted(left_out):
        names.setdefault(left_out[name], []).append(name)
    yield from (f"left out: {name_some(names[why])}: {why}" for why in sorted(names))


def name_some(names: Sequence[str]) -> str:
    """Return a few names; of many, the first, how many more there are, and a glob that has them."""
    if len(names) <= _SHOWN:
        return ", ".join(map(printable, names))
    endings = {posixpath.splitext(name)[1] for name in names}
    glob = posixpath.join(posixpath.commonpath(names), "**/*") + (endings.pop() if len(endings) == 1 else "")
    return f"{printable(names[0])} and {len(names) - 1:,} more ({printable(glob)})"
