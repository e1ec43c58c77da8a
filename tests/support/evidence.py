"""The evidence of a build's mix, joined with the documents of its runs: a dictionary for each document."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.builder.stored_build import read_build
from pipeline.mix.evidence import read_evidence
from shards.stores.open import open_writable_store


def read_rows(work: Path) -> list[dict[str, Any]]:
    """Return the documents of a work folder's last mix: the columns of the evidence, and of the runs."""
    build = read_build(open_writable_store(str(work)))
    evidence = read_evidence(build.mix, len(build.runs))
    sources = [source.name for source in build.recipe.sources]

    def describe(run: int, index: int) -> dict[str, Any]:
        own = build.runs[run]
        (row,) = own.read_documents(index, index + 1)
        digest = "{:016x}{:016x}".format(*own.hash_key(index))
        found = {"source": sources[own.source], "unit": own.labels[int(row["span"])], "row": int(row["row"])}
        return found | {"hash": digest, "tokens": int(row["length"])}

    rows: list[dict[str, Any]] = []
    for number in range(evidence.places.partitions):
        found = evidence.read(number).to_pylist()
        places = evidence.places.locate(number, np.arange(len(found)))
        for run, index, row in zip(*(place.tolist() for place in places), found, strict=True):
            if row.get("twin_run") is not None:
                row["twin"] = describe(row["twin_run"], row["twin_index"])
            rows.append(describe(run, index) | row)
    return rows
