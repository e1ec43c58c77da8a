"""Block lists: files with the content hashes of documents to drop, as `tokenmill trace --out` writes them.

Each line holds one hash, 32 hexadecimal digits. Empty lines, lines that begin with `#` and a leading byte order mark
are ignored; a repeated hash counts once. A hash depends on a document's text alone, not on its source or on the
tokenizer. Memory: 26 bytes per hash, about 80 while they are read.
"""

import codecs
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.clean.drops import SourceDrops
from pipeline.recipe.paths import RecipePath, explain_path
from pipeline.recipe.schema import Recipe
from shards.config import show_value
from shards.errors import InputError, unread
from shards.format.arrays import Int32s, UInt64s
from shards.format.content_hash import find_hashes, mark_first, sort_hashes, split_hashes
from shards.format.manifest import BlockListEntry, block_list_reason
from shards.stores.files import hash_file, open_named

MOST_FAULTS = 5
"""Faulty lines in a report: a file with more is probably not a block list, and may be large."""
_LINE_BYTES = 1 << 20
"""Longer lines are read in pieces: a file without line ends need not fit into memory."""
_HASH = re.compile(rb"[0-9a-fA-F]{32}")


def read_list(entry: RecipePath) -> tuple[UInt64s, str]:
    """Read the block list that an entry of `drop_hashes` names, `FILE` or `FILE#sha256=DIGEST`.

    Returns:
        The distinct hashes in order, uint64 `(hashes, 2)`, first and last 8 bytes; and the file's SHA-256.

    Raises:
        InputError: the file cannot be read, holds lines that are not hashes, or has another SHA-256 than the entry.
    """
    path = entry.file
    digest = hashlib.sha256()
    found = bytearray()
    faults: list[str] = []
    try:
        with open_named(path) as file:
            for number, line in enumerate(iter(partial(file.readline, _LINE_BYTES), b""), 1):
                digest.update(line)
                text = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip()
                if _HASH.fullmatch(text):
                    found += bytes.fromhex(text.decode("ascii"))
                elif text and text[:1] != b"#":
                    faults.append(f"line {number} is {show_value(text[:80].decode(errors='replace'), 40)}")
                    if len(faults) == MOST_FAULTS:
                        break
    except OSError as error:
        raise InputError(f"{path}: {unread(error, 'Name a file of hashes.')}") from error
    if faults:
        raise InputError(
            f"{path}: {'; '.join(faults)}. Expected 32 hexadecimal digits a line, a document's content hash, "
            f"as `tokenmill trace --out FILE` writes them."
        )
    if entry.sha256 not in ("", digest.hexdigest()):
        raise InputError(
            f"{path}: its SHA-256 is {digest.hexdigest()}, expected {entry.sha256}: it was changed, or is another "
            "list. Restore it, or name the one you want."
        )
    # Each hash once, in order.
    rows = split_hashes(found)
    order, _ = sort_hashes(*rows.T)
    rows = rows[order]
    return rows[mark_first(*rows.T)], digest.hexdigest()


class Blocked:
    """The hashes of several lists, sorted for search. Memory: 26 bytes per hash, about 80 while they are read."""

    def __init__(self, entries: Sequence[RecipePath], found: Sequence[tuple[str, UInt64s]]):
        """Read the files of the block lists.

        Args:
            entries: the recipe's `drop_hashes`.
            found: documents that the mix itself has found: the drop reason under which they are counted, and their
                hashes, `(hashes, 2)`, first and last 8 bytes.

        Raises:
            InputError: as `read_list`.
        """
        self._entries, read = entries, list(map(read_list, entries))
        self._digests = [digest for _, digest in read]
        self.reasons = [*(block_list_reason(entry.name) for entry in entries), *(reason for reason, _ in found)]
        """The reason of each list; a document with a hash of it is dropped with all copies."""
        lists = [np.zeros((0, 2), np.uint64), *(rows for rows, _ in read), *(rows for _, rows in found)]
        self._sizes = [len(rows) for rows in lists[1:]]
        rows = np.concatenate(lists)
        # A hash in several lists is one: of its places the first is that of the first list.
        order, _ = sort_hashes(*rows.T)
        rows = rows[order]
        self._list = np.repeat(np.arange(len(self.reasons), dtype=np.int32), self._sizes)[order]
        self._first = mark_first(*rows.T)
        self._first_list = self._list[self._first]
        self._hi, self._lo = np.ascontiguousarray(rows[self._first].T)
        self._found = np.zeros(len(self._hi), bool)

    def find(self, hi: UInt64s, lo: UInt64s) -> Int32s:
        """Find which documents are on a block list, and note the hashes that are found.

        Args:
            hi: first 8 bytes of the documents' hashes, `(documents,)`.
            lo: the last 8.

        Returns:
            The first list with each document's hash, or -1 if no list has it, `(documents,)`.
        """
        found = find_hashes(hi, lo, self._hi, self._lo)
        listed = np.full(len(hi), -1, np.int32)
        listed[found >= 0] = self._first_list[found[found >= 0]]
        self._found[found[found >= 0]] = True
        return listed

    def block_lists(self, drops: Sequence[SourceDrops]) -> tuple[BlockListEntry, ...]:
        """Return what was found of each block list, with the documents that the drops of all sources count for it."""
        own = self._list[self._found[np.cumsum(self._first) - 1]]
        counts = np.bincount(own, minlength=len(self.reasons))
        return tuple(
            BlockListEntry(
                file=entry.name,
                sha256=digest,
                hashes=hashes,
                found=int(found),
                documents=sum(own.dropped().get(reason, 0) for own in drops),
            )
            for entry, digest, hashes, found, reason in zip(
                self._entries, self._digests, self._sizes, counts, self.reasons, strict=False
            )
        )


def pin_entries(recipe: Recipe) -> Recipe:
    """Return the recipe with the SHA-256 of each block list's file in its entry."""
    entries = [entry if entry.sha256 else entry.pinned(hash_file(Path(entry.file))) for entry in recipe.drop_hashes]
    return recipe.with_values(drop_hashes=entries)


def check_entries(recipe: Recipe, folder: Path) -> Iterator[str]:
    """Read the files that `drop_hashes` of a recipe in a folder names, and yield their faults."""
    for index, entry in enumerate(recipe.drop_hashes):
        if not isinstance(entry, RecipePath):  # pyright: ignore[reportUnnecessaryIsInstance]  the model has refused it
            continue
        try:
            read_list(entry)
        except InputError as error:
            rule = "" if os.path.exists(entry.file) else f" {explain_path(folder, entry.name)}"
            yield f"drop_hashes.{index}: {error}{rule}"
