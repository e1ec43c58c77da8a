"""Carried columns: their entries in the manifest, and whether each shard's document table agrees."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from shards.errors import Problem, plural
from shards.format.document_table import DocumentBatch
from shards.format.manifest import Manifest
from shards.format.reader import Shard
from shards.validation.sums import Faults

CarriedCounts = Counter[tuple[str, str]]
"""By the name of a carried column: its `values`, the `foreign` ones of other sources, and its `broken` batches."""


def check_carried(manifest: Manifest) -> Faults:
    """Check the carried columns of a manifest against its sources and shards."""
    sources = {source.name for source in manifest.sources}
    for column in manifest.carried:
        if unknown := [name for name in column.sources if name not in sources]:
            message = f"carried column {column.name!r} is of the source {unknown[0]!r}, which is not in the manifest"
            yield "manifest_invalid", message
        if not column.sources or len(set(column.sources)) < len(column.sources):
            message = f"carried column {column.name!r} lists the sources {column.sources}; expected each once"
            yield "manifest_invalid", message
    names = [column.name for column in manifest.carried]
    for shard in manifest.shards:
        if (listed := list(shard.carried_values)) != names:
            yield "manifest_invalid", f"{shard.name}: carried_values of {listed}; expected of {names}"
            continue
        for column in manifest.carried:
            most = sum(counts.documents for name, counts in shard.sources.items() if name in column.sources)
            if (values := shard.carried_values[column.name]) > most:
                found = f"{plural(values, 'value')} of {column.name!r}"
                yield "totals_mismatch", f"{shard.name}: {found}; expected at most {most}, a document each"


def count_carried(shard: Shard, batch: DocumentBatch, counts: CarriedCounts) -> None:
    """Count the values of a batch of a document table, with its carried columns and `source`."""
    import pyarrow as pa

    for entry in shard.carried_columns:
        column, source = batch.column(entry.name), batch.column("source")
        counts[entry.name, "values"] += len(column) - column.null_count
        # A column may hold values of the sources that carry it alone.
        others = [own not in entry.sources for own in source.dictionary.to_pylist()]
        if any(others):
            codes: Any = np.from_dlpack(source.indices)
            valid: Any = column.is_valid().to_numpy(zero_copy_only=False)
            counts[entry.name, "foreign"] += int((np.array(others, bool)[codes] & valid).sum())
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            counts[entry.name, "broken"] += 1


def find_carried_problems(shard: Shard, counts: CarriedCounts) -> list[Problem]:
    """Return how the counted values of a shard's document table differ from the manifest."""
    found: list[str] = []
    for entry in shard.carried_columns:
        where = f"column {entry.name!r}"
        values, foreign = (plural(counts[entry.name, what], "value") for what in ("values", "foreign"))
        expected = shard.entry.carried_values.get(entry.name, 0)
        if counts[entry.name, "values"] != expected:
            found.append(f"{where} has {values}; expected {expected} by the manifest")
        if counts[entry.name, "foreign"]:
            found.append(
                f"{where} has {foreign} of documents whose source does not carry it; expected values of "
                f"{', '.join(entry.sources)} alone"
            )
        if counts[entry.name, "broken"]:
            found.append(f"{where} holds text that is not UTF-8")
    file = shard.entry.files.documents.path
    return [Problem("document_table", file, f"{message}. Build the shard again.") for message in found]
