"""Carried columns: their entries in the manifest, and whether each shard's document table agrees."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.errors import Problem, plural
from shards.format.manifest import MANIFEST_FILE, Manifest

if TYPE_CHECKING:
    from shards.format.document_table import DocumentBatch
    from shards.format.reader import Shard


def check_carried(manifest: Manifest) -> list[Problem]:
    """Check the carried columns of a manifest against its sources and shards."""
    problems: list[Problem] = []
    sources = {source.name for source in manifest.sources}
    for column in manifest.carried:
        if unknown := [name for name in column.sources if name not in sources]:
            message = f"carried column {column.name!r} is of the source {unknown[0]!r}, which is not in the manifest"
            problems.append(Problem("manifest_invalid", MANIFEST_FILE, message))
        if not column.sources or len(set(column.sources)) < len(column.sources):
            message = f"carried column {column.name!r} lists the sources {column.sources}; expected each once"
            problems.append(Problem("manifest_invalid", MANIFEST_FILE, message))
    names = [column.name for column in manifest.carried]
    for shard in manifest.shards:
        if list(shard.carried_values) != names:
            message = f"{shard.name}: carried_values of {list(shard.carried_values)}; expected of {names}"
            problems.append(Problem("manifest_invalid", MANIFEST_FILE, message))
            continue
        for column in manifest.carried:
            most = sum(counts.documents for name, counts in shard.sources.items() if name in column.sources)
            if (values := shard.carried_values[column.name]) > most:
                message = (
                    f"{shard.name}: {plural(values, 'value')} of {column.name!r}; expected at most {most}, a document "
                    "each"
                )
                problems.append(Problem("totals_mismatch", MANIFEST_FILE, message))
    return problems


class CarriedValues:
    """The carried values of one shard's document table, counted batch by batch."""

    def __init__(self, shard: Shard):
        """Begin to count."""
        self._shard = shard
        self._values: Counter[str] = Counter()
        self._foreign: Counter[str] = Counter()
        self._broken: set[str] = set()

    def add(self, batch: DocumentBatch) -> None:
        """Count the values of a batch that has the carried columns, and `source`."""
        import pyarrow as pa

        for entry in self._shard.carried_columns:
            name = entry.name
            column = batch.column(name)
            self._values[name] += len(column) - column.null_count
            source = batch.column("source")
            others = [own not in entry.sources for own in source.dictionary.to_pylist()]
            if any(others):
                codes: Any = np.from_dlpack(source.indices)
                valid: Any = column.is_valid().to_numpy(zero_copy_only=False)
                self._foreign[name] += int((np.array(others, bool)[codes] & valid).sum())
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                self._broken.add(name)

    def find_problems(self) -> list[Problem]:
        """Return what differs from the manifest."""
        found: list[str] = []
        for entry in self._shard.carried_columns:
            name = entry.name
            expected = self._shard.entry.carried_values.get(name, 0)
            if self._values[name] != expected:
                found.append(
                    f"column {name!r} has {plural(self._values[name], 'value')}; expected {expected} by the manifest"
                )
            if self._foreign[name]:
                found.append(
                    f"column {name!r} has {plural(self._foreign[name], 'value')} of documents whose source does not "
                    f"carry it; expected values of {', '.join(entry.sources)} alone"
                )
            if name in self._broken:
                found.append(f"column {name!r} holds text that is not UTF-8")
        file = self._shard.entry.files.documents.path
        return [Problem("document_table", file, f"{message}. Build the shard again.") for message in found]
