"""Near-duplicates in the mix: which of the similar documents go, counted by source, and the evidence.

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
from pipeline.engine.checksums import checksum_file
from pipeline.engine.tasks import NOT_IN_DIGEST, InDigest, Payload, last_part
from pipeline.mix.near_duplicates.similar import SIMILAR_DTYPE, read_similar
from pipeline.mix.near_duplicates.survivors import SimilarDocuments, choose_dropped
from shards.format.content_hash import join_hashes
from shards.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pipeline.encode.run import Run
    from pipeline.mix.index import Index

EVIDENCE_FILE = "near_duplicates.parquet"
NEAR_DUPLICATE = "near-duplicate"
NEAR_DUPLICATE_ELSEWHERE = "near-duplicate of another source"
SHOWN = 20
"""Pairs of each source that the result lists: of the lowest hashes, a random draw; and of the lowest similarity."""


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


class NearDuplicates:
    """The near-duplicates of an index: found, and with `action = "drop"` dropped from it."""

    def __init__(self, index: Index, task: SimilarPairs):
        self._task = task
        self._documents = documents = task.read()
        self._pairs = len(documents.first)
        self._found = found = index.find(documents.hi, documents.lo)
        self._sources = np.where(found.runs >= 0, index.sources[found.runs], -1)
        self._dropped = choose_dropped(documents, found.runs >= 0)
        self._read = index.documents.copy()
        gone, kept = self._sources[self._dropped.document], self._sources[self._dropped.kept]
        lengths = documents.lengths[self._dropped.document]
        self._counts = [
            {
                "documents": int((own & inside).sum()),
                "tokens": int(lengths[own & inside].sum()),
                "elsewhere_documents": int((own & ~inside).sum()),
                "elsewhere_tokens": int(lengths[own & ~inside].sum()),
            }
            for source in range(len(index.documents))
            for own, inside in [(gone == source, kept == source)]
        ]
        if task.action == "drop":
            index.drop(found.runs[self._dropped.document], found.places[self._dropped.document], lengths)
            for counts, dropped, tokens in zip(self._counts, index.dropped, index.dropped_tokens, strict=True):
                for reason, prefix in ((NEAR_DUPLICATE, ""), (NEAR_DUPLICATE_ELSEWHERE, "elsewhere_")):
                    if counts[f"{prefix}documents"]:
                        dropped[reason] += counts[f"{prefix}documents"]
                        tokens[reason] += counts[f"{prefix}tokens"]

    def write(self, folder: Path, names: Sequence[str], runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
        """Write the evidence, in the order of the dropped hashes; return its entry for the receipt.

        Args:
            folder: the task's folder.
            names: the sources' names.
            runs: the runs of the index, as the encode stage wrote them.
        """
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {"jaccard": wrap_numbers(pa.float64(), self._dropped.jaccard)}
        digests = [run.digest for run in runs]
        for end, chosen in (("dropped", self._dropped.document), ("kept", self._dropped.kept)):
            hashes = join_hashes(self._documents.hi[chosen], self._documents.lo[chosen])
            columns[f"{end}_hash"] = wrap_numbers(pa.binary(16), hashes)
            columns[f"{end}_tokens"] = wrap_numbers(pa.uint32(), self._documents.lengths[chosen].astype(np.uint32))
            columns[f"{end}_source"] = _name(names, self._sources[chosen])
            columns[f"{end}_unit"] = self._label(runs, chosen)
            columns[f"{end}_row"] = wrap_numbers(pa.uint32(), self._found.rows[chosen].astype(np.uint32))
            columns[f"{end}_run"] = _name(digests, self._found.runs[chosen])
            columns[f"{end}_index"] = wrap_numbers(pa.uint32(), self._found.places[chosen].astype(np.uint32))
        pq.write_table(pa.table(columns), folder / EVIDENCE_FILE, compression="zstd")
        return {EVIDENCE_FILE: checksum_file(folder / EVIDENCE_FILE)}

    def to_dict(self, names: Sequence[str], runs: Sequence[Run]) -> dict[str, Any]:
        """Return the counts, and some documents of each source, as JSON values; the arguments are those of `write`."""
        return {
            "action": self._task.action,
            "min_jaccard": self._task.min_jaccard,
            "compared": self._task.compared,
            "pairs": self._pairs,
            "sources": [
                {"name": name, "read": int(self._read[source])} | counts | self._show(source, runs)
                for source, (name, counts) in enumerate(zip(names, self._counts, strict=True))
            ],
        }

    def _show(self, source: int, runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
        own = np.flatnonzero(self._sources[self._dropped.document] == source)
        nearest = own[np.argsort(self._dropped.jaccard[own], kind="stable")]
        return {"shown": self._pairs_at(own[:SHOWN], runs), "nearest": self._pairs_at(nearest[:SHOWN], runs)}

    def _pairs_at(self, places: npt.NDArray[np.int64], runs: Sequence[Run]) -> list[dict[str, Any]]:
        return [
            {
                "jaccard": float(self._dropped.jaccard[place]),
                "dropped": self._place(int(self._dropped.document[place]), runs),
                "kept": self._place(int(self._dropped.kept[place]), runs),
            }
            for place in places.tolist()
        ]

    def _place(self, document: int, runs: Sequence[Run]) -> dict[str, Any]:
        hashes = join_hashes(self._documents.hi[document : document + 1], self._documents.lo[document : document + 1])
        run = runs[int(self._found.runs[document])]
        return {
            "hash": hashes.tobytes().hex(),
            "run": run.digest,
            "index": int(self._found.places[document]),
            "place": run.labels[int(self._found.spans[document])],
            "row": int(self._found.rows[document]),
            "tokens": int(self._documents.lengths[document]),
        }

    def _label(self, runs: Sequence[Run], documents: npt.NDArray[np.int64]) -> Any:
        """Return the labels of documents' spans as a dictionary array, each label once."""
        pairs = np.stack([self._found.runs[documents], self._found.spans[documents]], axis=1)
        distinct, codes = np.unique(pairs, axis=0, return_inverse=True)
        spans: list[tuple[int, int]] = distinct.tolist()
        return _name([runs[run].labels[span] for run, span in spans], codes.reshape(-1))


def _name(names: Sequence[str], numbers: npt.NDArray[np.int64]) -> Any:
    codes = wrap_numbers(pa.int32(), numbers.astype(np.int32))
    return pa.DictionaryArray.from_arrays(codes, wrap_texts(pa.string(), [name.encode() for name in names]))
