"""A cache of the spans of files, in the work folder: a re-run opens only the files that have changed.

A file's spans are a function of its content, the recipe's keys of the source and our code. The kept ones are used for a
file of the same address, name and version, which is what decides whether its unit is encoded again, too.
"""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version

from pipeline.engine.checksums import seal, unseal
from pipeline.engine.tasks import digest_of
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import File, Span
from pipeline.sources.files import list_spans
from shards.stores.store import WritableStore

SPANS_FILE = "spans.json"
CODE_VERSION = 3
"""Increase when the same file would be cut in another way, or refused."""

_Kept = dict[str, dict[str, tuple[str, str, list[Span]]]]
"""By the digest of the keys and by the file's name: its address, its version, and its spans."""


class SpanCache:
    """Lists spans, and caches them in a work folder. Memory: about 0.5 KB a file."""

    def __init__(self, work: WritableStore):
        """Use the cached spans that an earlier build kept in `work`."""
        self._work = work
        self._used: _Kept = {}
        self._changed = False

    @cached_property
    def _kept(self) -> _Kept:
        try:
            return unseal(self._work.read(SPANS_FILE), _Kept)
        except (OSError, ValueError):
            return {}  # absent or damaged: each file is opened

    def list_spans(self, source: SourceRecipe, files: list[File], unit_bytes: int | None = None) -> list[Span]:
        """List the spans of several files, in the files' order; only files that the cache lacks are opened.

        Raises:
            SourceError: with one line for each file that cannot be read, or does not fit the recipe.
        """
        # Which files are as they were? Only the others are opened.
        reading = source.model_dump(mode="json", exclude={"weight", "take", "license", *source.place_keys})
        key = digest_of([CODE_VERSION, version("pyarrow"), reading, unit_bytes])
        kept, used = self._kept.get(key, {}), self._used.setdefault(key, {})
        new = [file for file in files if kept.get(file.name, ())[:2] != (file.url, file.version)]
        listed: dict[str, list[Span]] = {file.name: [] for file in new}
        for span in list_spans(source, new, unit_bytes):
            listed[span.name].append(span)
        # The next build may use all of them, if the listing tells when a file has changed.
        entries = kept | {file.name: (file.url, file.version, listed[file.name]) for file in new}
        used |= {file.name: entries[file.name] for file in files if file.version}
        self._changed |= any(file.version for file in new)
        return [span for file in files for span in entries[file.name][2]]

    def save(self) -> None:
        """Write the cache of spans: those that were listed since this was made, and no others, if some of them are new.

        Raises:
            OSError: the work folder cannot be written.
        """
        if self._changed:
            self._work.put(SPANS_FILE, seal(self._used, _Kept))
            self._changed = False
