"""Find out what a store can do before anything is written to it. Costs five small requests, and leaves nothing.

Stores call themselves S3 and differ: some ignore the condition of a creation, and then two writers both believe that
they were first; some answer a request for a range with the whole object.
"""

from __future__ import annotations

import contextlib
import uuid

from shards.errors import TokenmillError
from shards.stores.files import TMP_SUFFIX
from shards.stores.object_errors import RangesError
from shards.stores.retry import StoreError
from shards.stores.store import WritableStore

_CONTENT, _OTHER = b"0123456789", b"9876543210"


def require_abilities(store: WritableStore) -> None:
    """Refuse a store that lacks an ability: create a file twice, read a range of it, and delete it.

    The file is `.tokenmill-probe.ID.tmp`, a temporary one.

    Raises:
        StoreError: the store lacks an ability, or cannot be written to at all; the message says what to use instead.
        OSError: a folder cannot be written to.
    """
    name = f".tokenmill-probe.{uuid.uuid4().hex}{TMP_SUFFIX}"
    lacks: list[str] = []
    first = store.create(name, _CONTENT)
    try:
        # A store that ignores the condition overwrites the file, so either content may be there.
        if not first or store.create(name, _OTHER):
            lacks.append(
                f"{store}: cannot create a file only if it is absent: a second creation was not refused. Two builds "
                "that write here at once would not notice each other."
            )
        try:
            reads_ranges = store.read_range(name, 3, 6) in (_CONTENT[3:6], _OTHER[3:6])
        except RangesError:
            reads_ranges = False
        if not reads_ranges:
            lacks.append(f"{store}: does not read ranges of a file, so a set here cannot be read in parts.")
    finally:
        with contextlib.suppress(OSError, TokenmillError):
            store.delete(name)
    if lacks:
        raise StoreError([*lacks, "Use Amazon S3, Google Cloud Storage, Azure, another store that can, or a folder."])
