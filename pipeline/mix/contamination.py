"""Contamination: which documents hold items of evaluation sets.

A document holds an item if at least half of the item's n-grams occur close together: in a stretch of the document
that has twice the item's bytes, or in one document no longer than that. N-grams that are common in the corpus do not
count, because their authors have not copied them from the item: n-grams in more than `COMMON_DOCUMENTS` documents
and in more than one of `COMMON_ONE_IN`. The rule uses only the hits and reads no text. Memory: 8 bytes for each n-gram
of the items, and the hits of one run.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.clean.evaluations.items import Items, load_items
from pipeline.encode.run import Run
from pipeline.engine.checksums import write_checksummed
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.block_lists import FoundHashes
from shards.stores.open import open_store

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.recipe.schema import Recipe

CONTAMINATION_FILE = "contamination.parquet"
"""One row for each document and item that it holds."""

COMMON_DOCUMENTS = 10
"""Source of the number: Brown et al. 2020 (GPT-3), appendix C, which leaves out n-grams found more often."""
COMMON_ONE_IN = 10_000
"""An item that a hundred pages of a large corpus have copied is contamination, not a common phrase."""
LEAST_SHARE = 0.5
"""Share of an item's n-grams that a document must hold."""
STRETCH = 2
"""How many times an item's n-grams, one after the other, the stretch of a document may be in which they are found."""


@dataclass(frozen=True, slots=True)
class HeldItem:
    """A document that holds an item."""

    document: int
    """Place in its run."""
    item: int
    share: float
    """Of the item's n-grams that are not common."""
    start: int
    """First byte in the document's text of what was found."""
    stop: int
    """One past the last."""


class Contamination:
    """Finds the documents of runs that hold items."""

    def __init__(self, items: Items, runs: Sequence[Run]):
        """Count in how many documents each n-gram occurs. Reads the hits of all runs, one run at a time."""
        found = np.zeros(len(items.ngrams), np.int64)
        documents = 0
        for run in runs:
            hits = run.read_hits()
            pairs = np.unique(hits["document"].astype(np.uint64) << np.uint64(32) | hits["ngram"])
            found += np.bincount((pairs & np.uint64(0xFFFFFFFF)).astype(np.int64), minlength=len(found))
            documents += run.num_documents
        self._items = items
        self.common = found > max(COMMON_DOCUMENTS, documents // COMMON_ONE_IN)
        """Which n-grams do not count, bool `(ngrams,)`."""
        counted = ~self.common[items.of_items]
        self.sizes = np.add.reduceat(np.append(counted, False), items.offsets[:-1]) * (np.diff(items.offsets) > 0)
        """How many n-grams of each item count, `(items,)`. An item with none cannot be found."""
        order = np.argsort(items.of_items, kind="stable")
        self._by_ngram = np.searchsorted(items.of_items[order], np.arange(len(items.ngrams) + 1))
        self._items_by_ngram = np.repeat(np.arange(len(items.rows)), np.diff(items.offsets))[order]

    def find(self, hits: npt.NDArray[np.void]) -> list[HeldItem]:
        """Return the documents of a run that hold items, in their order.

        Args:
            hits: the run's hits, `HIT_DTYPE (hits,)`, in the order of documents.
        """
        hits = hits[~self.common[hits["ngram"]]]
        if not len(hits):
            return []
        # One pair for each hit and each item that has its n-gram.
        first = self._by_ngram[hits["ngram"]]
        counts = self._by_ngram[hits["ngram"] + 1] - first
        owner = np.repeat(np.arange(len(hits)), counts)
        item = self._items_by_ngram[
            np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + first[owner]
        ]
        order = np.lexsort((owner, item, hits["document"][owner]))
        owner, item = owner[order], item[order]
        document = hits["document"][owner]
        edges = np.flatnonzero(np.diff(document, prepend=-1) | np.diff(item, prepend=-1))
        held: list[HeldItem] = []
        for begin, end in zip(edges.tolist(), [*edges[1:].tolist(), len(owner)], strict=True):
            number = int(item[begin])
            if end - begin >= LEAST_SHARE * self.sizes[number]:
                best = self._densest(hits[owner[begin:end]], number)
                if best is not None:
                    held.append(HeldItem(int(document[begin]), number, *best))
        return held

    def _densest(self, hits: npt.NDArray[np.void], item: int) -> tuple[float, int, int] | None:
        """Return the stretch of a document with the most n-grams of an item; None if none has enough of them."""
        hits = hits[np.argsort(hits["start"], kind="stable")]
        mean = float((hits["stop"] - hits["start"]).mean())
        words, size = (int(self._items.rows[name][item]) for name in ("words", "size"))
        reach = STRETCH * mean * words / size
        starts, stops, ngrams = hits["start"].tolist(), hits["stop"].tolist(), hits["ngram"].tolist()
        inside: dict[int, int] = {}
        best: tuple[int, int, int] | None = None
        first = 0
        for last, ngram in enumerate(ngrams):
            inside[ngram] = inside.get(ngram, 0) + 1
            while stops[last] - starts[first] > reach and first < last:
                inside[ngrams[first]] -= 1
                if not inside[ngrams[first]]:
                    del inside[ngrams[first]]
                first += 1
            if best is None or len(inside) > best[0]:
                best = len(inside), starts[first], stops[last]
        count = int(self.sizes[item])
        if best is None or best[0] < LEAST_SHARE * count:
            return None
        return best[0] / count, best[1], best[2]


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings for all evaluation sets."""

    dropped: list[FoundHashes]
    """The documents of each set with `action = "drop"`."""
    notes: list[str]
    """One for each set, for the user."""
    counts: list[dict[str, Any]]
    """The same for machines: items, those found, those too short or common, documents by source."""
    files: dict[str, dict[str, Any]]
    """The evidence table's entry for the receipt."""


def find_contamination(folder: Path, place: str, recipe: Recipe, runs: Sequence[Run], rows: Sequence[Run]) -> Findings:
    """Find the documents that hold items, and write them into the evidence table.

    Args:
        folder: where the table is written.
        place: the address of the folder of the task that read the evaluation sets.
        recipe: the recipe.
        runs: all runs.
        rows: the same runs, where their rows are read: scratch folders if they are in a remote store.
    """
    items = load_items(place)
    read: list[dict[str, Any]] = TaskOutput(open_store(place)).result["evaluations"]
    contamination = Contamination(items, rows)
    evaluations, names = recipe.evaluations, [source.name for source in recipe.sources]
    tallies = [_Tally() for _ in evaluations]
    read_documents: Counter[str] = Counter()
    found = np.zeros(len(items.rows), bool)
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, _SCHEMA, compression="zstd") as table:
        for run, own in zip(runs, rows, strict=True):
            read_documents[names[run.source]] += run.num_documents
            if not (held := contamination.find(own.read_hits())):
                continue
            found[[one.item for one in held]] = True
            table.write_batch(_to_batch(held, run, own, names[run.source], items, read, tallies))
    findable = contamination.sizes > 0
    counts: list[dict[str, Any]] = []
    for number, (evaluation, tally, about) in enumerate(zip(evaluations, tallies, read, strict=True)):
        own = items.rows["evaluation"] == number
        common = int((own & (items.rows["size"] > 0) & ~findable).sum())
        counts.append(
            {
                "name": evaluation.name,
                "action": evaluation.action,
                "items": about["items"],
                "too_short": about["too_short"],
                "common": common,
                "found": int((own & found).sum()),
                "documents": dict(sorted(tally.documents.items())),
                "read": dict(read_documents),
            }
        )
    dropped = [
        FoundHashes(f"holds an item of {evaluation.name}", np.unique(tally.stacked(), axis=0))
        for evaluation, tally in zip(evaluations, tallies, strict=True)
        if evaluation.action == "drop"
    ]
    files = {CONTAMINATION_FILE: write_checksummed(folder / CONTAMINATION_FILE, buffer.getvalue())}
    return Findings(dropped, [_describe(count) for count in counts], counts, files)


class _Tally:
    """The documents that hold items of one evaluation set: how many by source, and their hashes."""

    def __init__(self) -> None:
        self.documents: Counter[str] = Counter()
        self.hashes: list[npt.NDArray[np.uint64]] = []

    def stacked(self) -> npt.NDArray[np.uint64]:
        """Return the hashes, `(documents, 2)`."""
        return np.concatenate([np.zeros((0, 2), np.uint64), *self.hashes])


_SCHEMA = pa.schema(
    [
        ("evaluation", pa.string()),
        ("item", pa.string()),  # label of its span
        ("item_row", pa.uint32()),
        ("share", pa.float32()),  # of the item's n-grams that are not common
        ("source", pa.string()),
        ("unit", pa.string()),
        ("row", pa.uint32()),
        ("hash", pa.string()),
        ("start", pa.uint64()),  # bytes of the document's text that were found
        ("stop", pa.uint64()),
        ("run", pa.string()),
        ("index", pa.uint32()),  # of the document in its run
    ]
)


def _to_batch(
    held: list[HeldItem],
    run: Run,
    rows: Run,
    source: str,
    items: Items,
    read: list[dict[str, Any]],
    tallies: list[_Tally],
) -> pa.RecordBatch:
    """Return the rows of the evidence table for one run, and count its documents."""
    labels = run.labels
    documents = {one.document: rows.read_documents(one.document, one.document + 1)[0] for one in held}
    counted: set[tuple[int, int]] = set()
    table: list[dict[str, Any]] = []
    for one in held:
        item, document = items.rows[one.item], documents[one.document]
        number = int(item["evaluation"])
        high, low = int(document["hash_hi"]), int(document["hash_lo"])
        if (number, one.document) not in counted:
            counted.add((number, one.document))
            tallies[number].documents[source] += 1
            tallies[number].hashes.append(np.array([[high, low]], np.uint64))
        table.append(
            {
                "evaluation": read[number]["name"],
                "item": read[number]["spans"][int(item["span"])],
                "item_row": int(item["row"]),
                "share": one.share,
                "source": source,
                "unit": labels[int(document["span"])],
                "row": int(document["row"]),
                "hash": f"{high:016x}{low:016x}",
                "start": one.start,
                "stop": one.stop,
                "run": run.digest,
                "index": one.document,
            }
        )
    return pa.RecordBatch.from_pylist(table, schema=_SCHEMA)


def _describe(counts: dict[str, Any]) -> str:
    documents = sum(counts["documents"].values())
    text = f"evaluation set {counts['name']!r}: {counts['found']:,} of {counts['items']:,} items found"
    if documents:
        text += f" in {documents:,} documents, "
        text += "which are dropped" if counts["action"] == "drop" else 'which stay: set action = "drop" to drop them'
    if counts["common"]:
        text += f"; {counts['common']:,} items hold common phrases alone, and cannot be searched for"
    return text
