"""The cache of fetched byte ranges of sources, and of lists of files, in the folder that the settings name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from pathlib import Path

from pipeline.sources.network.settings import network_settings
from shards.stores.cache import Cache

_keepers: list[object] = []


@contextlib.contextmanager
def keep_fetched() -> Generator[None]:
    """Cache the ranges that any thread fetches inside the block, because they will be read again."""
    keeper = object()
    _keepers.append(keeper)
    try:
        yield
    finally:
        _keepers.remove(keeper)


def is_kept() -> bool:
    """Return whether ranges that are fetched now go into the cache."""
    return bool(_keepers) or network_settings().cache_all


def open_cache() -> Cache | None:
    """Return the cache that the settings name; None if they name none.

    Raises:
        InputError: its folder cannot be written to.
    """
    return _open_cache(network_settings().cache, network_settings().cache_bytes)


@functools.cache
def _open_cache(folder: str, limit_bytes: int) -> Cache | None:
    return Cache(Path(folder), limit_bytes) if folder else None
