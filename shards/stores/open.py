"""Open the store at an address: a folder on this machine, or on the Hub."""

from __future__ import annotations

import os
from pathlib import Path

from shards.stores.hub import open_hub
from shards.stores.hub_address import HUB_SCHEME
from shards.stores.store import FolderStore, Store

Place = Path | str
"""Where a set lies: a folder on this machine, or the address of a remote store."""


def open_store(place: str | os.PathLike[str]) -> Store:
    """Return the store at a place: a folder, or `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]` on the Hub.

    Raises:
        HubError: the Hub cannot be read, or the place is not an address on it.
    """
    if isinstance(place, str) and place.startswith(HUB_SCHEME):
        return open_hub(place)
    return FolderStore(Path(place))
