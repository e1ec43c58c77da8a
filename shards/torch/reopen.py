"""Open a dataset's set, and open it again in another process from its address alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from shards.errors import InputError
from shards.format.listed_files import Verify
from shards.format.reader import ShardSet, open_set, reopen_set
from shards.stores.cache import Cache
from shards.stores.cache_store import CacheStore
from shards.stores.hub_store import HubStore
from shards.stores.open import scheme_of


class SetAddress(NamedTuple):
    """The place and identity of a set, which a pickled dataset holds in place of the set."""

    place: str
    cache: Cache | None
    sha256: str
    verify: Verify


def open_with_cache(
    place: ShardSet | str | os.PathLike[str],
    cache: str | os.PathLike[str] | None,
    cache_limit: int | None,
    verify: Verify,
) -> ShardSet:
    """Open a set for a dataset so that other processes can reopen it; a set not on this machine gets a cache.

    Raises:
        InputError: a cache or `verify` is given for a set that is open already.
        ShardSetError: there is no set at the place, or a file of it is missing or has another size.
    """
    if isinstance(place, ShardSet):
        if cache is not None or cache_limit is not None:
            raise InputError("cache: the set is open already. Give its address, or open_set(..., cache=...).")
        if verify not in ("size", place.verify):
            raise InputError(f"verify = {verify!r}: the set is open already. Give open_set(..., verify={verify!r}).")
        return place
    if scheme_of(place) is None:
        return open_set(place, verify=verify)
    return open_set(place, cache=Cache(Path(cache) if cache is not None else None, cache_limit), verify=verify)


def address_of(shard_set: ShardSet) -> SetAddress:
    """Return the address by which another process reopens a set: right in any folder, on the Hub of the commit read."""
    store, cache = shard_set.store, None
    if isinstance(store, CacheStore):
        store, cache = store.remote, store.cache
    if store.folder is not None:
        place = str(store.folder.absolute())
    else:
        place = store.pinned_address if isinstance(store, HubStore) else str(store)
    return SetAddress(place, cache, shard_set.manifest_sha256, shard_set.verify)


def reopen(address: SetAddress) -> ShardSet:
    """Open the set at an address; sizes are compared when a shard is first read, not again for all of them.

    Raises:
        InputError: another set is there now.
        ShardSetError: there is no set any more.
    """
    shard_set = reopen_set(address.place, cache=address.cache, verify=address.verify)
    if (found := shard_set.manifest_sha256) != address.sha256:
        message = f"{address.place}: manifest sha256 {found}; expected {address.sha256}, the set that the dataset was"
        raise InputError(f"{message} made of. It has changed since: make the dataset again.")
    return shard_set
