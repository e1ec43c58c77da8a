"""Globs over local files: those of Python's `glob`, but each part reads a folder once, whatever links lead to it.

Real folders are read before links to folders, so that a file has the name without a link if it has one. A name that is
there as it is written, with brackets in it, is no pattern; but `[[]` is a bracket, as `init` writes it, if there is a
file with that.
"""

import fnmatch
import os
import posixpath
import re
import stat
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from glob import has_magic
from itertools import groupby
from pathlib import Path

from shards.terminal.display import printable

_SHOWN = 5
HIDDEN = "hidden; to read hidden files, write the dot in the glob: `.hidden/*`"
SPECIAL = "a pipe, a socket or a device is not read"
AGAIN = "a link to a folder that is read already or lies above"

LeftOut = dict[str, str]
"""The names of what globs leave out, and of each why."""

Found = tuple[str, bool]
"""A path, and whether the glob leaves it out: a name that it does not spell begins with a dot."""


def unescape(glob: str) -> str:
    """Return the path of which `glob.escape` made a glob."""
    return re.sub(r"\[([*?[])\]", r"\1", glob)


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
        if has_magic(base) and (not is_there or "[[]" in base):
            for entry in fnmatch.filter(_list_names(folder, left_out), base):
                is_there = False
                yield os.path.join(folder, entry), is_hidden or (entry.startswith(".") and not base.startswith("."))
        if is_there:
            yield path, is_hidden


def _find_folders(glob: str, left_out: LeftOut) -> Iterator[Found]:
    """Yield the folders that a glob matches, each once: by a name that is not hidden, with the fewest links in it."""
    found = defaultdict[tuple[int, int], list[Found]](list)
    for path, is_hidden in find_paths(glob, left_out):
        try:
            facts = os.stat(path)
        except OSError as error:
            if not is_hidden:
                note_unread(path, error, left_out)
            continue
        if stat.S_ISDIR(facts.st_mode):
            found[facts.st_dev, facts.st_ino].append((path, is_hidden))
    for names in found.values():
        best, *others = sorted(names, key=lambda one: (one[1], _count_links(one[0]), one[0]))
        yield best
        left_out |= {path: AGAIN for path, is_hidden in others if not is_hidden and _count_links(path)}


def _count_links(path: str) -> int:
    """Return how many parts of a path are links."""
    parts = path.split(os.sep)
    return sum(os.path.islink(os.sep.join(parts[:end])) for end in range(1, len(parts) + 1))


def note_unread(path: str, error: OSError, left_out: LeftOut) -> None:
    """Add a path that cannot be read to what is left out; not one that is gone meanwhile, nor a file for a folder."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        left_out[path] = f"cannot be read: {error.strerror}"
    elif os.path.islink(path) and not os.path.exists(path):
        left_out[path] = "a broken link"


def _list_names(folder: str, left_out: LeftOut) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError as error:
        note_unread(folder, error, left_out)
        return []


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
            if queue is not hidden:
                note_unread(folder, error, left_out)
            continue
        is_above = queue is not real and Path(os.path.realpath(folder)) in above
        place = facts.st_dev, facts.st_ino
        if is_above or place in seen:
            if queue is links:
                left_out[folder] = AGAIN
            continue
        seen.add(place)
        yield folder, queue is hidden
        for entry in entries:
            path = os.path.join(folder, entry.name)
            is_hidden = queue is hidden or entry.name.startswith(".")
            is_link = entry.is_symlink()
            # `is_dir` raises of a link to itself.
            is_folder = os.path.isdir(path) if is_link else entry.is_dir()
            if is_folder:
                (hidden if is_hidden else links if is_link else real).append(path)


def describe_left_out(left_out: LeftOut) -> Iterator[str]:
    """Yield what is left out, by name, a line for each reason."""
    ordered = sorted(left_out, key=lambda name: (left_out[name], name))
    for why, names in groupby(ordered, left_out.__getitem__):
        yield f"left out: {name_some([*names])}: {why}"


def name_some(names: Sequence[str]) -> str:
    """Return a few names; of many, the first, how many more there are, and a glob that has them."""
    if len(names) <= _SHOWN:
        return ", ".join(map(printable, names))
    endings = {posixpath.splitext(name)[1] for name in names}
    glob = posixpath.join(posixpath.commonpath(names), "**/*") + (endings.pop() if len(endings) == 1 else "")
    return f"{printable(names[0])} and {len(names) - 1:,} more ({printable(glob)})"
