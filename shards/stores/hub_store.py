"""A store for a folder of a dataset repository on the Hub, read by ranges at one commit.

All files are read at the commit that the revision names when the store is opened. So files of two commits are never
mixed, even if the branch moves. A file that is read whole is checked against the digest in the Hub's listing. Ranges
are not checked here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from shards.errors import Problem, ShardSetError
from shards.stores.hub_address import HubAddress, parse_hub_address
from shards.stores.hub_client import (
    Listing,
    PassingError,
    RemoteFile,
    blob_id,
    hub_endpoint,
    hub_errors,
    list_files,
)
from shards.stores.store import ListedFile

REQUEST_BYTES = 8 << 20


class HubStore:
    """A set's folder on the Hub at one commit."""

    folder = None
    request_bytes = REQUEST_BYTES

    def __init__(self, listing: Listing):
        self.listing = listing

    def __reduce__(self) -> tuple[type[HubStore], tuple[Listing]]:
        return HubStore, (self.listing,)

    @cached_property
    def _files(self) -> Any:
        """The Hub's `HfFileSystem` for fsspec. Its types are only partly known."""
        from huggingface_hub import HfFileSystem

        return HfFileSystem(endpoint=hub_endpoint())

    @property
    def commit(self) -> str:
        """The commit that is read, 40 hexadecimal digits."""
        return self.listing.commit

    @property
    def pinned_address(self) -> str:
        """The address with the commit as its revision: it names the same files later."""
        return str(replace(self.listing.address, revision=self.commit))

    def size(self, name: str) -> int:
        """Return a file's size in bytes.

        Raises:
            FileNotFoundError: the commit has no such file.
        """
        return self._find(name).bytes

    def read(self, name: str) -> bytes:
        """Return a whole file, checked against the digest in the Hub's listing.

        Raises:
            FileNotFoundError: the commit has no such file.
            ShardSetError: its bytes do not have that digest.
            HubError: the Hub cannot be read.
        """
        known = self._find(name)
        content = self.read_range(name, 0, known.bytes)
        found = blob_id(content) if known.sha256 is None else hashlib.sha256(content).hexdigest()
        expected = known.sha256 or known.blob_id
        if found != expected:
            message = f"digest {found} of {len(content)} bytes; expected {expected}. Read it again, or push it again."
            raise ShardSetError([Problem("file_checksum", name, message)])
        return content

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of a file with one request. They are not checked against a digest.

        Raises:
            FileNotFoundError: the commit has no such file.
            HubError: the Hub cannot be read, or sends the wrong number of bytes.
        """
        self._find(name)
        address = self.listing.address
        path = f"datasets/{address.repo}@{self.commit}/{address.path(name)}"
        with hub_errors(f"{self}/{name}"), self._files.open(path, "rb", cache_type="none") as file:
            file.seek(start)
            content: bytes = file.read(stop - start) or b""
        if len(content) != stop - start:
            raise PassingError(f"{self}/{name}: got {len(content)} bytes; expected {stop - start}, from byte {start}")
        return content

    def list(self) -> Iterator[ListedFile]:
        """Yield every file of the commit's folder; subfolders are left out."""
        return (ListedFile(name, file.bytes, file.blob_id) for name, file in self.listing.files.items())

    def _find(self, name: str) -> RemoteFile:
        known = self.listing.files.get(name)
        if known is None:
            message = "The set there is not whole: choose another revision, or push it again."
            raise FileNotFoundError(f"{self}/{name}: not there at commit {self.commit[:12]}. {message}")
        return known

    def __str__(self) -> str:
        return str(self.listing.address)

    def __repr__(self) -> str:
        return f"HubStore({str(self)!r}, commit={self.commit!r})"


def open_hub(place: str | HubAddress) -> HubStore:
    """Open a folder on the Hub at the commit that its revision names now.

    Args:
        place: `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`.

    Raises:
        HubError: the Hub cannot be read, or the place is not an address on it.
    """
    return HubStore(list_files(parse_hub_address(place) if isinstance(place, str) else place))
