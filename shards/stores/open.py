"""Open the store at an address: a folder on this machine, a folder in a bucket of an object store, or on the Hub."""

import os
import re
from pathlib import Path

from shards.errors import InputError
from shards.stores.hub_store import HUB_SCHEME, open_hub
from shards.stores.object_store import OBJECT_SCHEMES, ObjectStore, open_objects
from shards.stores.store import FolderStore, Store
from shards.terminal.hints import nearest

Place = Path | str
"""The place of a set: a folder on this machine, or the address of a remote store."""

AnyPath = str | os.PathLike[str]
"""A path or an address, as a program gives it."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{1,2}[^/]?")
_SCHEMES = [*(f"{scheme}://" for scheme in OBJECT_SCHEMES), HUB_SCHEME]


def open_store(place: AnyPath) -> Store:
    """Return the open store at a place, to read from.

    Args:
        place: a folder, `s3://BUCKET/PREFIX` (or `gs`, `az`), or `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]`.

    Raises:
        StoreError: the Hub cannot be read.
        InputError: the place is an address of an unknown kind, or the environment cannot be used.
    """
    if isinstance(place, str) and place.startswith(HUB_SCHEME):
        return open_hub(place)
    return open_writable_store(place)


def open_writable_store(place: AnyPath) -> FolderStore | ObjectStore:
    """Return the store at a place, to write to: a folder, or `s3://BUCKET/PREFIX` (or `gs`, `az`). See `open_store`."""
    if not os.fspath(place):
        raise InputError("the place is empty: expected a folder or an address. Is a variable of the shell not set?")
    # No scheme: a folder of this machine.
    scheme = scheme_of(place)
    if scheme is None:
        return FolderStore(Path(place))
    text = str(place)
    if text.startswith(HUB_SCHEME):
        raise InputError(f"{text}: the Hub is read, not written to. Give a folder or a bucket, and push the set.")
    if scheme in OBJECT_SCHEMES and text.startswith(f"{scheme}://"):
        return open_objects(text)
    raise InputError(
        f"{scheme}: not a kind of address.{nearest(f'{scheme}://', _SCHEMES)} For a folder whose name has a colon in "
        "it, write ./ before it."
    )


def absolute_place(place: AnyPath) -> str:
    """Return the address that opens a place to write to from any working directory: a path from the root, or the URL.

    Raises:
        InputError: the place is an address of an unknown kind, is a whole bucket or has no name, or the environment
            cannot be used.
    """
    store = open_writable_store(place)
    address = str(store if store.folder is None else store.folder.absolute())
    if isinstance(store, ObjectStore) and not store.prefix:
        raise InputError(
            f"{address}: a whole bucket; a build also writes next to its folders. Give a folder in it: {address}/NAME."
        )
    if not address.rstrip("/").rpartition("/")[2]:
        raise InputError(f"{place}: cannot be written to: expected one with a name.")
    return address


def scheme_of(place: AnyPath) -> str | None:
    """Return the part before `://`, by which a store is opened; None if the place is a folder.

    A `Path` of an address is recognised too, although it has one slash: no folder of a user is called `s3:`.
    """
    found = _URL.match(os.fspath(place))
    return found[1].lower() if found else None
