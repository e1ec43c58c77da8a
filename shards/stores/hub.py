"""A set on the Hub as a folder to read from: the few methods of `Path` that a reader uses, over fsspec.

`open_set("hf://datasets/OWNER/NAME")` gives such a folder to `ShardSet`. The manifest is read at once, a shard's files
when they are read, by ranges. All at one commit, so that a branch that moves mixes nothing. What is read whole
(metadata, the tokenizer, a document table) is checked against its digest; ranges of tokens by their frames' checksums,
as on disk. What needs files on disk (validation, audit, export) says so: pull the set first.
"""

from __future__ import annotations

import hashlib
import io
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from shards.errors import Problem, ShardSetError
from shards.format.manifest import MANIFEST_FILE, MAX_METADATA_BYTES, Manifest, parse_json
from shards.stores.hub_client import (
    Address,
    HubError,
    Listing,
    PassingError,
    endpoint,
    find_missing,
    hub_errors,
    list_set,
    manifest_missing,
    parse_address,
    shorten,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


class NeedsDiskError(HubError, AttributeError):
    """What only a set on disk can do; also an `AttributeError`, since that is how one asks whether it can."""


class _NotOnDisk:
    """Refuses what only a path on disk can do."""

    def refuse(self, what: str = "") -> NoReturn:
        """Say that something needs files on disk.

        Raises:
            NeedsDiskError: always.
        """
        message = f"{self} is on the Hub, and this needs files on disk{f' ({what})' if what else ''}. "
        raise NeedsDiskError(message + f"Pull the set first: python -m shards pull {self} --out DIR")

    def __fspath__(self) -> str:
        self.refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # what `copy` and `pickle` look for, before there is anything to name
            raise AttributeError(name)
        self.refuse(name)


class HubFolder(_NotOnDisk):
    """A set's folder on the Hub at one commit. Safe to share between threads, and to send to another process."""

    def __init__(self, address: Address, listing: Listing):
        self._address = address
        self._listing = listing
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self._address, "listing": self._listing, "digests": self._digests}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["address"], state["listing"])
        self._digests = state["digests"]

    @cached_property
    def files(self) -> Any:
        """The Hub's `HfFileSystem` for fsspec, whose types are not known in full."""
        from huggingface_hub import HfFileSystem

        return HfFileSystem(endpoint=endpoint())

    @property
    def commit(self) -> str:
        """The commit that is read, 40 hexadecimal digits."""
        return self._listing.commit

    @property
    def listing(self) -> Listing:
        """What the folder holds at that commit."""
        return self._listing

    def expect(self, digests: dict[str, str]) -> None:
        """Say which SHA-256 files must have that are read whole, by name."""
        self._digests = digests

    def digest_of(self, name: str) -> str | None:
        """Return the SHA-256 that a file must have."""
        return self._digests.get(name)

    def look_again(self) -> None:
        """Go on at the revision's newest commit, where the set is still the same one: more of it may have come.

        Raises:
            ShardSetError: another set stands there now.
            HubError: the Hub cannot be asked.
        """
        with self._lock:
            newest = list_set(self._address)
            before, now = self._listing.files.get(MANIFEST_FILE), newest.files.get(MANIFEST_FILE)
            if now != before:
                message = f"{self._address} holds another set since commit {newest.commit[:12]}. Open it anew."
                raise ShardSetError([Problem("manifest_invalid", MANIFEST_FILE, message)])
            self._listing = newest

    def __truediv__(self, name: str) -> HubFile:
        return HubFile(self, name)

    def __str__(self) -> str:
        return str(self._address)

    def __repr__(self) -> str:
        return f"HubFolder({str(self)!r}, commit={self.commit!r})"


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of `os.stat_result` that is known of a file on the Hub."""

    st_size: int


class HubFile(_NotOnDisk):
    """One file of the folder, which may not be there yet."""

    def __init__(self, folder: HubFolder, name: str):
        self._folder = folder
        self.name = name

    def is_file(self) -> bool:
        """Say whether the Hub holds it."""
        return self.name in self._folder.listing.files

    def stat(self) -> Stat:
        """Return its size.

        Raises:
            ShardSetError: it is not there, even at the revision's newest commit.
        """
        if not self.is_file():
            self._folder.look_again()
        if not self.is_file():
            listing = self._folder.listing
            message = (
                f"not in {self._folder} at commit {listing.commit[:12]}: its push has not finished, or was stopped. "
                "Read it again later, or push again."
            )
            raise ShardSetError([Problem("file_missing", self.name, message)])
        return Stat(self._folder.listing.files[self.name].bytes)

    def open(self, mode: str = "rb", *, cache: str = "readahead") -> io.RawIOBase:
        """Open it for reading by ranges, with one of fsspec's caches: by default the next 5 MB are read ahead.

        Raises:
            ShardSetError: it is not there.
            HubError: the Hub cannot be read.
        """
        if mode != "rb":
            self.refuse(f"open({mode!r})")
        self.stat()
        address = self._folder.listing.address
        with hub_errors(str(self)):
            path = f"datasets/{address.repo}@{self._folder.commit}/{address.path(self.name)}"
            return _Ranges(self._folder.files.open(path, "rb", cache_type=cache), str(self))

    def read_range(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) by one request, unchecked.

        Raises:
            ShardSetError: it is not there.
            HubError: the Hub cannot be read, or sends another number of bytes.
        """
        with self.open(cache="none") as file:
            file.seek(start)
            content = file.read(stop - start) or b""
        if len(content) != stop - start:
            raise PassingError(f"{self}: {len(content)} bytes came where [{start}, {stop}) were asked for")
        return content

    def read_bytes(self) -> bytes:
        """Return the whole file, checked against the digest that the manifest, or else the Hub, tells of it.

        Raises:
            ShardSetError: it is not there, or its bytes are others.
            HubError: the Hub cannot be read.
        """
        size = self.stat().st_size
        content = self.read_range(0, size)
        known = self._folder.listing.files[self.name]
        expected = self._folder.digest_of(self.name) or known.sha256
        found = hashlib.sha256(content).hexdigest()
        if expected is None:
            from shards.stores.hub_client import blob_id

            expected, found = known.blob_id, blob_id(content)
        if found != expected:
            message = f"{len(content)} bytes of digest {found} came; expected {expected}. Read it again, or push again."
            raise ShardSetError([Problem("file_checksum", self.name, message)])
        return content

    def __str__(self) -> str:
        return f"{self._folder}/{self.name}"


class _Ranges(io.RawIOBase):
    """A file of fsspec whose errors are ours."""

    def __init__(self, file: Any, what: str):
        super().__init__()
        self._file = file
        self._what = what

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with hub_errors(self._what):
            return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        with hub_errors(self._what):
            return self._file.read(size)

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        content = self.read(len(view))
        view[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def open_folder(place: str, *, incomplete: str) -> HubFolder:
    """Open a set on the Hub: read and check its manifest, and see which of its files are there.

    Args:
        place: `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`.
        incomplete: "refuse" a set whose push has not finished, or "allow" it.

    Raises:
        ShardSetError: there is no manifest, it is not valid, or shards are missing and that is refused.
        HubError: the Hub cannot be read, or the place is not one.
    """
    address = parse_address(place)
    folder = HubFolder(address, list_set(address))
    manifest = read_manifest(folder)
    missing = find_missing(manifest, folder.listing)
    if missing and incomplete == "refuse":
        raise ShardSetError(shorten(missing))
    folder.expect(
        {manifest.tokenizer.file: manifest.tokenizer.sha256, manifest.recipe.file: manifest.recipe.sha256}
        | {shard.files.documents.path: shard.files.documents.sha256 for shard in manifest.shards}
    )
    return folder


def read_manifest(folder: HubFolder) -> Manifest:
    """Read and check the folder's manifest.

    Raises:
        ShardSetError: there is none, it is too large, or not valid.
    """
    known = folder.listing.files.get(MANIFEST_FILE)
    if known is None:
        raise ShardSetError([manifest_missing(folder.listing.address)])
    if known.bytes > MAX_METADATA_BYTES:
        message = f"{known.bytes} bytes of metadata; expected at most {MAX_METADATA_BYTES}. Not read."
        raise ShardSetError([Problem("manifest_invalid", MANIFEST_FILE, message)])
    return parse_json(Manifest, (folder / MANIFEST_FILE).read_bytes(), where=MANIFEST_FILE)
