"""Block lists: files with the content hashes of documents to drop, as `tokenmill trace --out` writes them.

Each line holds one hash, 32 hexadecimal digits. Empty lines, lines that begin with `#` and a leading byte order mark
are ignored; a repeated hash counts once. A hash depends on a document's text alone, not on its source or on the
tokenizer. Memory: 20 bytes per hash.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shards.errors import InputError, plural
from shards.format.content_hash import split_hashes
from shards.format.equal_hashes import mark_first, sort_hashes
from shards.format.manifest import block_list_reason
from shards.stores.files import hash_file
from shards.terminal.command_names import called_as
from shards.terminal.display import printable

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.recipe.schema import Recipe

MOST_FAULTS = 5
"""Faulty lines in a report: a file with more is probably not a block list, and may be large."""
MAX_LINE_BYTES = 4096
_HASH = re.compile(rb"[0-9a-fA-F]{32}")
_DIGEST = re.compile(r"(.+)#sha256=([0-9a-f]{64})", re.DOTALL)


class BlockListError(InputError):
    """A file that cannot be used as a block list. The message shows the first lines that are not hashes."""


@dataclass(frozen=True, slots=True)
class BlockList:
    """One entry of a recipe's `drop_hashes`."""

    name: str
    """The file as the recipe names it, relative to the recipe's folder."""
    path: Path
    sha256: str | None = None
    """SHA-256 of the file's bytes; None if not known yet."""

    @property
    def entry(self) -> str:
        """The entry of a resolved recipe: `FILE#sha256=DIGEST`."""
        return f"{self.name}#sha256={self.sha256}" if self.sha256 else self.name

    @property
    def drop_reason(self) -> str:
        """The drop reason under which its documents are counted."""
        return block_list_reason(self.name)

    def read(self) -> tuple[npt.NDArray[np.uint64], str]:
        """Read the file.

        Returns:
            The distinct hashes in order, uint64 `(hashes, 2)`, first and last 8 bytes; and the file's SHA-256.

        Raises:
            BlockListError: the file cannot be read, holds lines that are not hashes, or does not match `sha256`.
        """
        digest = hashlib.sha256()
        found = bytearray()
        faults: list[str] = []
        number, goes_on = 0, False
        try:
            with self.path.open("rb") as file:
                while line := file.readline(MAX_LINE_BYTES):
                    digest.update(line)
                    number += not goes_on
                    if number == 1 and not goes_on:
                        line = line.removeprefix(codecs.BOM_UTF8)
                    text = line.strip()
                    comment = goes_on or text[:1] == b"#"
                    goes_on = comment and line[-1:] != b"\n"
                    if _HASH.fullmatch(text):
                        found += bytes.fromhex(text.decode("ascii"))
                    elif text and not comment:
                        faults.append(f"line {number} is {_quote(text)}")
                        if len(faults) == MOST_FAULTS:
                            break
        except OSError as error:
            raise BlockListError(f"{self.path}: cannot be read: {error.strerror}{self._elsewhere()}") from error
        if faults:
            raise BlockListError(
                f"{self.path}: {'; '.join(faults)}. Expected 32 hexadecimal digits a line, a document's content hash, "
                f"as `{called_as('shards', 'trace')} --out FILE` writes them."
            )
        if self.sha256 not in (None, digest.hexdigest()):
            raise BlockListError(
                f"{self.path}: its SHA-256 is {digest.hexdigest()}, expected {self.sha256}: it was changed, or is "
                "another list. Restore it, or name the one you want."
            )
        rows = split_hashes(found)
        order, _ = sort_hashes(*rows.T)
        rows = rows[order]
        return rows[mark_first(*rows.T)], digest.hexdigest()

    def _elsewhere(self) -> str:
        """Return the remedy for a missing file: paths are relative to the recipe's folder."""
        here = Path(self.name).absolute()
        if os.path.isfile(here) and here != self.path:  # `Path.is_file` raises for a name that is too long
            return f". Paths are relative to the recipe's folder; give this one as {here}"
        return f". Paths are relative to the recipe's folder, {self.path.parent.absolute()}"


@dataclass(frozen=True, slots=True)
class BlockListUse:
    """How many hashes of one block list a mix found."""

    name: str
    sha256: str
    hashes: int
    """Distinct hashes in the file."""
    found: int
    """Hashes that at least one of the documents read has."""
    documents: int
    """Documents dropped because of the list, copies included; a document in several lists counts for the first."""

    def __str__(self) -> str:
        name = printable(self.name)
        if not self.hashes:
            return f"drop_hashes: {name} holds no hash"
        if self.found == 0:
            why = "no document read has one: is the list of other text, or was the text changed since?"
            return f"drop_hashes: 0 of {plural(self.hashes, 'hash')} of {name} found; {why}"
        found = f"{self.found:,} of {plural(self.hashes, 'hash')} of {name} found"
        return f"drop_hashes: {found}, {plural(self.documents, 'document')} dropped"


@dataclass(frozen=True, slots=True)
class FoundHashes:
    """Documents that the mix itself has found and drops with all their copies, as if a block list named them."""

    drop_reason: str
    """The drop reason under which they are counted."""
    hashes: npt.NDArray[np.uint64]
    """Distinct, `(hashes, 2)`, first and last 8 bytes."""


class Blocked:
    """All hashes of a recipe's block lists, and those that the mix has found, sorted for search."""

    def __init__(self, lists: Sequence[BlockList], found: Sequence[FoundHashes] = ()):
        """Read the files of the block lists.

        Raises:
            BlockListError: as `BlockList.read`.
        """
        self._files = list(lists)
        read = [item.read() for item in lists]
        self._digests = [digest for _, digest in read]
        self.drop_reasons = [item.drop_reason for item in (*lists, *found)]
        """The drop reason of each list."""
        hashes = [*(rows for rows, _ in read), *(item.hashes for item in found)]
        self._sizes = [len(rows) for rows in hashes]
        rows = np.concatenate([*hashes, np.zeros((0, 2), np.uint64)])
        number = np.repeat(np.arange(len(hashes), dtype=np.int32), self._sizes)
        order = np.lexsort((number, rows[:, 1], rows[:, 0]))
        self._hi: npt.NDArray[np.uint64] = rows[order, 0]
        self._lo: npt.NDArray[np.uint64] = rows[order, 1]
        self._list = number[order]
        self._found = np.zeros(len(hashes), np.int64)
        self._documents = np.zeros(len(hashes), np.int64)

    def find(self, hi: npt.NDArray[np.uint64], lo: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Find which documents of one part of the hash space are listed, and count them.

        Args:
            hi: first 8 bytes of the documents' hashes, in hash order, `(documents,)`.
            lo: the last 8.

        Returns:
            The first list with each document's hash, or -1 if no list has it, `(documents,)`.
        """
        listed = np.full(len(hi), -1, np.int32)
        if not len(hi):
            return listed
        first = int(np.searchsorted(self._hi, hi[:1])[0])
        last = int(np.searchsorted(self._hi, hi[-1:], "right")[0])
        begin = np.searchsorted(hi, self._hi[first:last], "left")
        counts = np.searchsorted(hi, self._hi[first:last], "right") - begin
        owner = np.repeat(np.arange(first, last), counts)
        place = np.arange(len(owner)) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
        equal = lo[place] == self._lo[owner]
        owner, place = owner[equal], place[equal]
        self._found += np.bincount(self._list[np.unique(owner)], minlength=len(self._sizes))
        listed[place[::-1]] = self._list[owner[::-1]]  # equal hashes are in the lists' order: keep the first
        self._documents += np.bincount(listed[listed >= 0], minlength=len(self._sizes))
        return listed

    def counts(self) -> tuple[BlockListUse, ...]:
        """Return the counts so far, one entry per block list."""
        return tuple(
            BlockListUse(item.name, digest, size, int(found), int(documents))
            for item, digest, size, found, documents in zip(
                self._files, self._digests, self._sizes, self._found, self._documents, strict=False
            )
        )


def parse_entry(entry: str, folder: Path) -> BlockList:
    """Return the block list that an entry of `drop_hashes` names, `FILE` or `FILE#sha256=DIGEST`.

    A list with a digest may also be in the working directory: in a set's recipe.json of earlier versions its path
    begins at the recipe's folder, and the digest shows whether it is the same list.
    """
    match = _DIGEST.fullmatch(entry)
    if match is None:
        return BlockList(entry, folder / entry)
    name, digest = match[1], match[2]
    here = Path(name).absolute()
    return BlockList(name, here if here.is_file() and not (folder / name).exists() else folder / name, digest)


def open_lists(recipe: Recipe) -> list[BlockList]:
    """Return the block lists that a recipe names."""
    return [parse_entry(entry, recipe.folder) for entry in recipe.drop_hashes]


def pin_entries(recipe: Recipe) -> Recipe:
    """Return the recipe with the SHA-256 of each block list's file in its entry."""
    lists = open_lists(recipe)
    entries = [item.entry if item.sha256 else replace(item, sha256=hash_file(item.path)).entry for item in lists]
    return recipe.model_copy(update={"drop_hashes": entries})


def check_entries(data: dict[str, Any], folder: Path) -> Iterator[str]:
    """Read the files that a raw recipe's `drop_hashes` names, relative to its folder, and yield their faults."""
    listed = data.get("drop_hashes")
    entries = list(enumerate(cast("list[Any]", listed))) if isinstance(listed, list) else []
    lists = [(index, parse_entry(entry, folder)) for index, entry in entries if isinstance(entry, str) and entry]
    names = [block_list.name for _, block_list in lists]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"drop_hashes: {name!r} is listed more than once. Keep one of each"
    for index, block_list in lists:
        try:
            block_list.read()
        except BlockListError as error:
            yield f"drop_hashes.{index}: {error}"


def _quote(line: bytes) -> str:
    text = line[:40].decode("utf-8", "replace")
    return f'"{printable(text)}{"..." if len(line) > 40 else ""}"'
