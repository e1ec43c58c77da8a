"""The settings of all reading over a network: where, how long, how many connections.

They say where and how, not what, so they are no part of a recipe: flags of the command line, handed to the worker
processes as environment variables.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass, fields

from pipeline.sources.base import SourceError

_PREFIX = "TOKENMILL_"


@dataclass(frozen=True, slots=True)
class Network:
    """How to read over a network."""

    timeout_s: float = 30.0
    """How long a server may be silent, before or within an answer."""
    give_up_s: float = 600.0
    """How long one request is tried again and again without success."""
    connections: int = 16
    """Connections of each worker process."""
    cache: str = ""
    """Folder of fetched parts of files; empty: none."""
    cache_all: bool = False
    """Keep all that is fetched there, not only what the build itself reads twice."""
    cache_bytes: int = 20 * 10**9
    """Most bytes in that folder; what was used longest ago goes first."""
    content_connections: int = 64
    """The same for the archive's files, which are small: their time is the wait for an answer, not the line."""
    content_endpoint: str = "https://softwareheritage.s3.amazonaws.com/content"
    """Where Software Heritage's objects are: `ENDPOINT/SHA1`, or `s3://bucket/prefix`, read anonymously."""

    def export(self) -> None:
        """Put the settings into the environment, for this process and those it starts."""
        for field in fields(self):
            os.environ[_PREFIX + field.name.upper()] = str(getattr(self, field.name))

    @contextlib.contextmanager
    def in_effect(self) -> Generator[None]:
        """Put the settings into the environment until the body ends."""
        before = {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}
        self.export()
        try:
            yield
        finally:
            for field in fields(self):
                del os.environ[_PREFIX + field.name.upper()]
            os.environ.update(before)


def network() -> Network:
    """Return the settings that the environment holds.

    Raises:
        SourceError: a variable is not a number where one is expected.
    """
    values: dict[str, object] = {}
    for field in fields(Network):
        text = os.environ.get(_PREFIX + field.name.upper())
        if text is None:
            continue
        kind = type(field.default)
        try:
            values[field.name] = text == "True" if kind is bool else kind(text)
        except ValueError as error:
            raise SourceError(
                f"{_PREFIX}{field.name.upper()}: expected {kind.__name__}, got {text!r}. Correct or unset it."
            ) from error
    return Network(**values)  # type: ignore[arg-type]


_keepers: list[object] = []


@contextlib.contextmanager
def keep_fetched() -> Generator[None]:
    """Put what any thread fetches meanwhile into the cache: it will be read once more."""
    keeper = object()
    _keepers.append(keeper)
    try:
        yield
    finally:
        _keepers.remove(keeper)


def is_kept() -> bool:
    """Say whether what is fetched now goes into the cache."""
    return bool(_keepers) or network().cache_all
