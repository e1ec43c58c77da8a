"""Find out what a store can do before anything is written to it. Costs five small requests, and leaves nothing.

Stores call themselves S3 and differ: some ignore the condition of a creation, and then two writers both believe that
they were first; some answer a request for a range with the whole object.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass

from shards.errors import TokenmillError
from shards.stores.files import TMP_SUFFIX
from shards.stores.object_errors import RangesError, StoreError
from shards.stores.store import WritableStore

_CONTENT = b"0123456789"


@dataclass(frozen=True, slots=True)
class Abilities:
    """The result of a probe."""

    place: str
    creates_once: bool
    """Whether the second creation of a file is refused."""
    reads_ranges: bool
    """Whether a range of a file is read as such."""

    @property
    def problems(self) -> list[str]:
        """The store's missing abilities, one sentence each; empty if it can do everything."""
        found: list[str] = []
        if not self.creates_once:
            found.append(
                f"{self.place}: cannot create a file only if it is absent: a second creation was not refused. "
                "Two builds that write here at once would not notice each other."
            )
        if not self.reads_ranges:
            found.append(f"{self.place}: does not read ranges of a file, so a set here cannot be read in parts.")
        return found


def probe(store: WritableStore) -> Abilities:
    """Create a file twice, read a range of it, and delete it. The file is `.tokenmill-probe.ID.tmp`, a temporary one.

    Raises:
        TokenmillError: the store cannot be written to at all.
        OSError: the same, for a folder.
    """
    name = f".tokenmill-probe.{uuid.uuid4().hex}{TMP_SUFFIX}"
    first = store.create(name, _CONTENT)
    try:
        creates_once = first and not store.create(name, _CONTENT[::-1])
        return Abilities(str(store), creates_once, _reads_ranges(store, name, creates_once=creates_once))
    finally:
        with contextlib.suppress(OSError, TokenmillError):
            store.delete(name)


def require_abilities(abilities: Abilities) -> None:
    """Probe a store, and refuse one that lacks an ability.

    Raises:
        StoreError: it does; the message says what to use instead.
    """
    if abilities.problems:
        remedy = "Use Amazon S3, Google Cloud Storage, Azure, another store that can, or a folder."
        raise StoreError([*abilities.problems, remedy])


def _reads_ranges(store: WritableStore, name: str, *, creates_once: bool) -> bool:
    content = _CONTENT if creates_once else _CONTENT[::-1]
    try:
        return store.read_range(name, 3, 6) == content[3:6]
    except RangesError:
        return False
