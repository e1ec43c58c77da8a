"""Contamination: the documents that hold items of evaluation sets, counted, and written down as evidence.

`contamination.parquet` has a row for each document and item that it holds, `excused_items.parquet` one for each item of
which common phrases in other documents did not count. `pipeline.mix.held_items` is the rule.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
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
from pipeline.mix.different_documents import DifferentDocuments
from pipeline.mix.held_items import HeldItem, HeldItems
from shards.errors import plural
from shards.stores.open import open_store

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.mix.near_duplicates.drop import SimilarPairs
    from pipeline.recipe.schema import Recipe

CONTAMINATION_FILE = "contamination.parquet"
"""One row for each document and item that it holds."""
EXCUSED_FILE = "excused_items.parquet"
"""One row for each item that some documents hold as common phrases alone."""
EXCUSED_NAMED = 3
"""Such items that a note names; the file has all of them."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings for all evaluation sets."""

    dropped: list[FoundHashes]
    """The documents of each set with `action = "drop"`."""
    notes: list[str]
    """One for each set, for the user."""
    counts: list[dict[str, Any]]
    """The same for machines: items, those found, those too short or excused, documents by source."""
    files: dict[str, dict[str, Any]]
    """The entries of both tables for the receipt."""


def find_contamination(
    folder: Path,
    place: str,
    recipe: Recipe,
    runs: Sequence[Run],
    rows: Sequence[Run],
    similar: SimilarPairs | None = None,
) -> Findings:
    """Find the documents that hold items, and write them into the evidence table.

    Args:
        folder: where the tables are written.
        place: the address of the folder of the task that read the evaluation sets.
        recipe: the recipe.
        runs: all runs.
        rows: the same runs, where their rows are read: scratch folders if they are in a remote store.
        similar: the pairs of similar documents; None if the build does not search for near-duplicates.
    """
    items = load_items(place)
    read: list[dict[str, Any]] = TaskOutput(open_store(place)).result["evaluations"]
    different = DifferentDocuments(similar)
    rule = HeldItems(items, different.count(len(items.ngrams), rows), sum(run.num_documents for run in rows))
    evaluations, names = recipe.evaluations, [source.name for source in recipe.sources]
    tallies = [_Tally() for _ in evaluations]
    read_documents: Counter[str] = Counter()
    holders: defaultdict[int, set[int]] = defaultdict(set)
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, _SCHEMA, compression="zstd") as table:
        for run, own in zip(runs, rows, strict=True):
            read_documents[names[run.source]] += run.num_documents
            if not own.num_hits or not (held := rule.find(own.read_hits())):
                continue
            documents = {one.document: own.read_documents(one.document, one.document + 1)[0] for one in held}
            table.write_batch(_to_batch(held, run, documents, names[run.source], items, read, tallies))
            for one, number in zip(held, _identify(different, held, documents), strict=True):
                holders[one.item].add(number)
    held_in = np.array([len(holders[item]) for item in range(len(items.rows))], np.int64)
    excused = np.maximum(rule.count_excused() - held_in, 0)
    counts: list[dict[str, Any]] = []
    for number, (evaluation, tally, about) in enumerate(zip(evaluations, tallies, read, strict=True)):
        own = items.rows["evaluation"] == number
        counts.append(
            {
                "name": evaluation.name,
                "action": evaluation.action,
                "items": about["items"],
                "too_short": about["too_short"],
                "excused": int((own & (excused > 0)).sum()),
                "found": int((own & (held_in > 0)).sum()),
                "documents": dict(sorted(tally.documents.items())),
                "read": dict(read_documents),
            }
        )
    dropped = [
        FoundHashes(f"holds an item of {evaluation.name}", np.unique(tally.stacked(), axis=0))
        for evaluation, tally in zip(evaluations, tallies, strict=True)
        if evaluation.action == "drop"
    ]
    listed = _list_excused(items, read, excused, held_in)
    files = {
        CONTAMINATION_FILE: write_checksummed(folder / CONTAMINATION_FILE, buffer.getvalue()),
        EXCUSED_FILE: write_checksummed(folder / EXCUSED_FILE, _to_parquet(listed)),
    }
    return Findings(dropped, [_describe(count, listed) for count in counts], counts, files)


def _identify(
    different: DifferentDocuments, held: list[HeldItem], documents: dict[int, npt.NDArray[np.void]]
) -> list[int]:
    """Return the number of the document of each held item."""
    hi = np.array([documents[one.document]["hash_hi"] for one in held], np.uint64)
    return different.identify(hi).tolist()


def _list_excused(
    items: Items, read: list[dict[str, Any]], excused: npt.NDArray[np.int64], held_in: npt.NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Return the items that were excused: those in the most documents first."""
    chosen = np.flatnonzero(excused)
    return [
        {
            "evaluation": read[int(row["evaluation"])]["name"],
            "item": read[int(row["evaluation"])]["spans"][int(row["span"])],
            "item_row": int(row["row"]),
            "words": int(row["words"]),
            "documents": int(excused[number]),
            "held": int(held_in[number]),
        }
        for number in chosen[np.argsort(-excused[chosen], kind="stable")].tolist()
        for row in [items.rows[number]]
    ]


def _to_parquet(excused: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, _EXCUSED_SCHEMA, compression="zstd") as table:
        table.write_table(pa.Table.from_pylist(excused, schema=_EXCUSED_SCHEMA))
    return buffer.getvalue()


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
        ("share", pa.float32()),  # of the item's words; without common phrases, where they did not count
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
_EXCUSED_SCHEMA = pa.schema(
    [
        ("evaluation", pa.string()),
        ("item", pa.string()),  # label of its span
        ("item_row", pa.uint32()),
        ("words", pa.uint32()),
        ("documents", pa.uint64()),  # different ones that have its common phrases, and do not hold it
        ("held", pa.uint64()),  # different ones that hold it
    ]
)


def _to_batch(
    held: list[HeldItem],
    run: Run,
    documents: dict[int, npt.NDArray[np.void]],
    source: str,
    items: Items,
    read: list[dict[str, Any]],
    tallies: list[_Tally],
) -> pa.RecordBatch:
    """Return the rows of the evidence table for one run, and count its documents."""
    labels = run.labels
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


def _describe(counts: dict[str, Any], excused: list[dict[str, Any]]) -> str:
    documents = sum(counts["documents"].values())
    text = f"evaluation set {counts['name']!r}: {counts['found']:,} of {plural(counts['items'], 'item')} found"
    if documents:
        text += f" in {plural(documents, 'document')}, "
        text += "which are dropped" if counts["action"] == "drop" else 'which stay: set action = "drop" to drop them'
    own = [one for one in excused if one["evaluation"] == counts["name"]]
    if own:
        named = [
            f"{one['item']} row {one['item_row']} ({plural(one['words'], 'word')}, "
            f"{plural(one['documents'], 'document')})"
            for one in own[:EXCUSED_NAMED]
        ]
        rest = f" and {len(own) - len(named):,} more, in {EXCUSED_FILE}" if len(own) > len(named) else ""
        text += f"; common phrases of {plural(len(own), 'item')} do not count: {', '.join(named)}{rest}"
    return text
