"""A store with some files already fetched whole: a small file takes one request, however often it is read.

For a reader that takes each file in several parts, one after the other, as the check of a shard does. It keeps nothing:
the content lives as long as the store that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shards.stores.store import ListedFile, Store


@dataclass(frozen=True)
class FetchedStore:
    """A store, and the content of some of its files."""

    store: Store
    content: Mapping[str, bytes] = field(repr=False)
    folder = None

    @property
    def request_bytes(self) -> int:
        return self.store.request_bytes

    def size(self, name: str) -> int:
        return len(self.content[name]) if name in self.content else self.store.size(name)

    def read(self, name: str) -> bytes:
        return self.content[name] if name in self.content else self.store.read(name)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        if name not in self.content:
            return self.store.read_range(name, start, stop)
        content = self.content[name]
        if stop > len(content):
            message = f"ends {stop - len(content)} bytes before byte {stop}. Copy or build it again."
            raise OSError(f"{self}/{name}: {message}")
        return content[start:stop]

    def list(self) -> Iterator[ListedFile]:
        return self.store.list()

    def __str__(self) -> str:
        return str(self.store)
