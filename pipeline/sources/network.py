"""The settings for reading over a network: addresses, timeouts, connections and cache.

They do not change what is read, so they are not part of a recipe. They are flags of the command line, and reach the
worker processes as a variable of the environment.
"""

import contextlib
import functools
import json
import os
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from shards.errors import InputError
from shards.stores.cache import Cache

_VARIABLE = "TOKENMILL_NETWORK"


@dataclass(frozen=True, slots=True)
class Network:
    """How to read over a network."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    timeout_s: float = 30.0
    """How long a server may be silent, before or within an answer."""
    give_up_s: float = 600.0
    """How long one request is retried without success."""
    connections: int = 16
    """Connections of each worker process."""
    cache: str = ""
    """Folder of the cache of fetched parts of files; empty for no cache."""
    cache_all: bool = False
    """Cache everything that is fetched, not only what the build itself reads twice."""
    cache_bytes: int = 20 * 10**9
    """Most bytes in the cache; the least recently used parts are deleted first."""
    content_connections: int = 64
    """Connections to the archive. Its files are small, so that latency limits the speed, not bandwidth."""
    content_endpoint: str = "https://softwareheritage.s3.amazonaws.com/content"
    """Address of Software Heritage's objects, `ENDPOINT/SHA1`, read over HTTP."""

    @contextlib.contextmanager
    def in_effect(self) -> Generator[None]:
        """Put the settings into the environment, also of processes that are started, until the body ends."""
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = json.dumps(asdict(self))
        try:
            yield
        finally:
            del os.environ[_VARIABLE]
            if before is not None:
                os.environ[_VARIABLE] = before


def network_settings() -> Network:
    """Return the settings that the environment holds.

    Raises:
        InputError: it holds something else.
    """
    return _parse(os.environ.get(_VARIABLE) or "{}")


@functools.cache
def _parse(text: str) -> Network:
    try:
        return TypeAdapter(Network).validate_json(text)
    except ValueError as error:
        fault = f"{_VARIABLE}: expected settings in JSON, as the flags about networks make them; got {text!r:.80}"
        raise InputError(f"{fault}. Unset it.") from error


def with_cache(chosen: Network | None, *, cache: Path) -> contextlib.AbstractContextManager[None]:
    """Put settings for reading over a network into effect, with a folder for the cache if they name none."""
    settings = chosen or network_settings()
    return (settings if settings.cache else replace(settings, cache=str(cache.absolute()))).in_effect()


_keepers: list[None] = []


@contextlib.contextmanager
def keep_fetched() -> Generator[None]:
    """Cache the ranges that any thread fetches in the block, because they will be read again."""
    _keepers.append(None)
    try:
        yield
    finally:
        _keepers.pop()


def is_kept() -> bool:
    """Return whether fetched ranges now go into the cache."""
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
