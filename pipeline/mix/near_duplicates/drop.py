"""Near-duplicates in the mix: which of the similar documents go, and the evidence.

Only documents that nothing else drops take part. The pairs are known by content hash, so copies in several sources are
one document. `near_duplicates.parquet` has one row for each document that goes, or would go. Memory: about 300 bytes a
pair at or above `min_jaccard`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_numbers, wrap_texts
from pipeline.engine.checksums import WrittenFile, checksum_file
from pipeline.engine.tasks import NOT_IN_DIGEST, InDigest, Payload, last_part
from pipeline.mix.near_duplicates.similar import SIMILAR_DTYPE, read_similar
from pipeline.mix.near_duplicates.survivors import SimilarDocuments, choose_dropped
from shards.format.content_hash import join_hashes
from shards.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.arrow_arrays import Int64s, Rows
    from pipeline.encode.run import Run
    from pipeline.mix.index import Index

EVIDENCE_FILE = "near_duplicates.parquet"
SHOWN = 20
"""Pairs of each source that the result lists: of the lowest hashes, a random draw; and of the lowest similarity."""


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """The near-duplicates of a mix."""

    compared: int
    """Pairs that were compared."""
    pairs: int
    """Those at or above `min_jaccard`."""
    sources: list[dict[str, list[dict[str, Any]]]]
    """Of each source some near-duplicates, each with the document that stays, as JSON values: `shown`, those of the
    lowest hashes, a random draw, and `nearest`, those of the lowest similarity."""


def _last_parts(places: tuple[str, ...], _payload: Any) -> list[str | None]:
    return [last_part(place) for place in places]


@dataclass(frozen=True, slots=True)
class SimilarPairs(Payload):
    """Where the pairs of similar documents are, and what is made of them; plain data."""

    CODE: ClassVar = 2

    places: Annotated[tuple[str, ...], InDigest(_last_parts)]
    """The addresses of the similar tasks' folders."""
    compared: Annotated[int, NOT_IN_DIGEST]
    """Pairs that were compared."""
    min_jaccard: float
    action: Literal["report", "drop"]

    def read(self) -> SimilarDocuments:
        """Read the documents of the pairs at or above `min_jaccard`."""
        parts = [read_similar(open_store(place), self.min_jaccard) for place in self.places]
        return SimilarDocuments.of(np.concatenate([np.zeros(0, SIMILAR_DTYPE), *parts]))


def drop_near_duplicates(
    index: Index, task: SimilarPairs, folder: Path, names: Sequence[str], runs: Sequence[Run]
) -> tuple[NearDuplicates, dict[str, WrittenFile]]:
    """Find the near-duplicates of an index, drop them from it unless they are only reported, and write the evidence.

    Args:
        index: the documents; nothing else will be dropped from it.
        task: the pairs of similar documents.
        folder: the task's folder.
        names: the sources' names.
        runs: the runs of the index, as the encode stage wrote them.

    Returns:
        What was found, and the entry of the evidence for the receipt.
    """
    import pyarrow.parquet as pq

    # Only documents that are still kept take part.
    documents = task.read()
    found = index.find(documents.hi, documents.lo)
    dropped, stays, jaccard = choose_dropped(documents, found["run"] >= 0)
    gone, kept = found[dropped], found[stays]
    index.drop_near_duplicates(gone, kept, documents.lengths[dropped], report=task.action == "report")

    # The evidence has a row for each near-duplicate, in the order of hashes.
    columns: dict[str, Any] = {"jaccard": wrap_numbers(pa.float64(), jaccard)}
    digests = [run.digest for run in runs]
    for end, places, own in (("dropped", dropped, gone), ("kept", stays, kept)):
        hashes = join_hashes(documents.hi[places], documents.lo[places])
        columns[f"{end}_hash"] = wrap_numbers(pa.binary(16), hashes)
        columns[f"{end}_tokens"] = wrap_numbers(pa.uint32(), documents.lengths[places].astype(np.uint32))
        columns[f"{end}_source"] = _name(names, index.sources[own["run"]])
        columns[f"{end}_unit"] = _name_units(runs, own)
        columns[f"{end}_row"] = wrap_numbers(pa.uint32(), own["row"].astype(np.uint32))
        columns[f"{end}_run"] = _name(digests, own["run"])
        columns[f"{end}_index"] = wrap_numbers(pa.uint32(), own["index"].astype(np.uint32))
    table = pa.table(columns)
    pq.write_table(table, folder / EVIDENCE_FILE, compression="zstd")
    # Some of each source, to show.
    shown: list[dict[str, list[dict[str, Any]]]] = []
    for source in range(len(names)):
        own = np.flatnonzero(index.sources[gone["run"]] == source)
        nearest = own[np.argsort(jaccard[own], kind="stable")]
        pairs: dict[str, list[dict[str, Any]]] = {}
        for name, rows in (("shown", own), ("nearest", nearest)):
            first = table.take(rows[:SHOWN])
            pairs[name] = list(map(_show, first.to_pylist()))
        shown.append(pairs)
    files = {EVIDENCE_FILE: checksum_file(folder / EVIDENCE_FILE)}
    return NearDuplicates(task.compared, len(documents.first), shown), files


def _show(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the evidence, to show."""
    shown: dict[str, Any] = {"jaccard": row["jaccard"]}
    for end in ("dropped", "kept"):
        shown[end] = {
            "hash": row[f"{end}_hash"].hex(),
            "place": row[f"{end}_unit"],
            **{name: row[f"{end}_{name}"] for name in ("run", "index", "row", "tokens")},
        }
    return shown


def _name_units(runs: Sequence[Run], documents: Rows) -> Any:
    """Return the labels of documents' spans as a dictionary array, each label once."""
    distinct, codes = np.unique(documents[["run", "span"]], return_inverse=True)
    spans: list[tuple[int, int]] = distinct.tolist()
    return _name([runs[run].labels[span] for run, span in spans], codes)


def _name(names: Sequence[str], numbers: Int64s) -> Any:
    codes = wrap_numbers(pa.int32(), numbers.astype(np.int32))
    return pa.DictionaryArray.from_arrays(codes, wrap_texts(pa.string(), [name.encode() for name in names]))
