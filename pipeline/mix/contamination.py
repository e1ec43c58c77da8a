"""Contamination: the documents that hold items of evaluation sets, counted, and written down as evidence.

`contamination.parquet` has a row for each document and item that it holds, `excused_items.parquet` one for each item of
which common phrases in other documents did not count. `pipeline.mix.held_items` is the rule.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.clean.drops.table import ITEM_REASON, Counts, SourceDrops
from pipeline.clean.evaluations.items import Items, ItemsResult, ReadItems, load_items
from pipeline.encode.run import HashKey, Run
from pipeline.engine.checksums import WrittenFile, checksum_file
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.block_lists import ListedHashes
from pipeline.mix.different_documents import DifferentDocuments
from pipeline.mix.fates import Fate, Fates
from pipeline.mix.held_items import HeldItem, HeldItems
from pipeline.mix.mix_plan import MixPlan
from shards.errors import plural
from shards.format.manifest import EvalTaskEntry
from shards.stores.open import open_store

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Int64s, Rows
    from pipeline.mix.near_duplicates.drop import SimilarPairs
    from pipeline.recipe.schema import EvaluationRecipe, Recipe

CONTAMINATION_FILE = "contamination.parquet"
"""One row for each document and item that it holds."""
EXCUSED_FILE = "excused_items.parquet"
"""One row for each item that some documents hold as common phrases alone."""
EXCUSED_NAMED = 3
"""Such items that a note names; the file has all of them."""


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """The items of one evaluation set."""

    name: str
    action: str
    items: int
    too_short: int
    """Items that are not searched for."""
    excused: int
    """Items of which common phrases in some documents do not count."""
    found: int


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings for all evaluation sets; empty without any."""

    dropped: list[ListedHashes] = field(default_factory=list[ListedHashes])
    """The documents of each set with `action = "drop"`."""
    notes: list[str] = field(default_factory=list[str])
    """One for each set, for the user."""
    counts: list[ItemCounts] = field(default_factory=list[ItemCounts])
    holders: list[_Holders] = field(default_factory=list["_Holders"])
    """The documents of each set."""
    files: dict[str, WrittenFile] = field(default_factory=dict[str, WrittenFile])
    """The entries of both tables for the receipt."""

    def add_to(self, drops: Sequence[SourceDrops]) -> None:
        """Add to the table of each source all documents that hold items, also those that are dropped before or stay."""
        for one in self.holders:
            for source, own in zip(drops, one.counts, strict=True):
                step = source.step(one.reason)
                step.came, step.every, step.reports = source.read, own, not one.drops
                if step.reports:
                    step.reason(one.reason).first = own

    def list_eval_tasks(self, plan: MixPlan, fates: Fates) -> tuple[EvalTaskEntry, ...]:
        """Return which items of each eval task are in documents of the training split."""
        trained = _join_slices(plan)
        # Two evaluation sets may be of one task: they hold the same.
        known = {one.task: one for one in self.holders if one.task is not None and one.read.sha256}
        return tuple(
            EvalTaskEntry(
                task=task,
                items=one.read.items,
                items_sha256=one.read.sha256,
                too_short=sorted(one.too_short),
                held=sorted(
                    {
                        item
                        for item, place in one.items
                        if any(start <= place.key < stop for start, stop in trained[place.source])
                        and fates.kept(place.run, place.document, place.document + 1)[0]
                    }
                ),
            )
            for task, one in known.items()
        )


def _join_slices(plan: MixPlan) -> defaultdict[int, list[tuple[HashKey, HashKey]]]:
    """Return the ranges of hashes that the training split takes of each source."""
    slices = {
        (piece.source, piece.start, piece.stop) for one in plan.shards if one.split == "train" for piece in one.slices
    }
    joined: defaultdict[int, list[tuple[HashKey, HashKey]]] = defaultdict(list)
    for source, start, stop in sorted(slices):
        own = joined[source]
        if own and start <= own[-1][1]:
            own[-1] = own[-1][0], max(own[-1][1], stop)
        else:
            own.append((start, stop))
    return joined


class _Place(NamedTuple):
    """A document."""

    source: int
    run: int
    document: int
    """In its run."""
    key: HashKey


class _Holders:
    """The documents that hold items of one evaluation set."""

    def __init__(self, evaluation: EvaluationRecipe, read: ReadItems, sources: int):
        self.task, self.read = evaluation.task, read
        self.reason = f"{ITEM_REASON} {evaluation.name}"
        self.drops = evaluation.action == "drop"
        self.counts = [Counts() for _ in range(sources)]
        self.hashes: list[HashKey] = []
        self.items: list[tuple[str, _Place]] = []
        """Of an eval task: the content hash of each item and a document that holds it."""
        self.too_short: set[str] = set()
        """Of an eval task: the content hashes of items that are not searched for."""

    def add(self, source: int, document: Rows) -> None:
        """Add a document of a source, `DOCUMENT_DTYPE ()`."""
        self.counts[source].documents += 1
        self.counts[source].tokens += int(document["length"])
        self.hashes.append(_key_of(document))

    def listed(self) -> ListedHashes:
        """Return the documents as a list of hashes."""
        hashes = np.array(self.hashes, np.uint64).reshape(-1, 2)
        return ListedHashes(self.reason, Fate.HOLDS_ITEM, np.unique(hashes, axis=0))


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
    read = TaskOutput(open_store(place), ItemsResult).result.evaluations
    # Common n-grams are told by all runs together, before any document is judged.
    different = DifferentDocuments(similar)
    rule = HeldItems(items, different.count(len(items.ngrams), rows), sum(run.num_documents for run in rows))
    names = [source.name for source in recipe.sources]
    holders = [_Holders(*own, len(names)) for own in zip(recipe.evaluations, read, strict=True)]
    for row in items.rows[items.rows["size"] == 0]:
        if hashes := read[int(row["evaluation"])].hashes:
            holders[int(row["evaluation"])].too_short.add(hashes[int(row["row"])])
    different_holders: defaultdict[int, set[int]] = defaultdict(set)
    with pq.ParquetWriter(folder / CONTAMINATION_FILE, _SCHEMA, compression="zstd") as table:
        for number, (run, own) in enumerate(zip(runs, rows, strict=True)):
            if not own.num_hits or not (held := rule.find(own.read_hits())):
                continue
            documents = {one.document: own.read_documents(one.document, one.document + 1)[0] for one in held}
            table.write_batch(_to_batch(held, run, documents, names[run.source], items, read))
            for evaluation, document in sorted(
                {(int(items.rows["evaluation"][one.item]), one.document) for one in held}
            ):
                holders[evaluation].add(run.source, documents[document])
            for one in held:
                row = items.rows[one.item]
                if hashes := read[int(row["evaluation"])].hashes:
                    found = _Place(run.source, number, one.document, _key_of(documents[one.document]))
                    holders[int(row["evaluation"])].items.append((hashes[int(row["row"])], found))
            # The same document in several places, or nearly the same, tells of an item once.
            hashes = np.array([documents[one.document]["hash_hi"] for one in held], np.uint64)
            for one, document in zip(held, different.identify(hashes).tolist(), strict=True):
                different_holders[one.item].add(document)
    # Items whose common phrases did not count are evidence, too.
    held_in = np.array([len(different_holders[item]) for item in range(len(items.rows))], np.int64)
    excused = np.maximum(rule.count_excused() - held_in, 0)
    counts: list[ItemCounts] = []
    for number, (evaluation, about) in enumerate(zip(recipe.evaluations, read, strict=True)):
        own = items.rows["evaluation"] == number
        kinds = (int((own & (places > 0)).sum()) for places in (excused, held_in))
        counts.append(ItemCounts(evaluation.name, evaluation.action, about.items, about.too_short, *kinds))
    listed = _list_excused(items, read, excused, held_in)
    excused_table = pa.Table.from_pylist(listed, schema=_EXCUSED_SCHEMA)
    pq.write_table(excused_table, folder / EXCUSED_FILE, compression="zstd")
    files = {name: checksum_file(folder / name) for name in (CONTAMINATION_FILE, EXCUSED_FILE)}
    notes = [
        _describe(count, sum(own.documents for own in one.counts), listed)
        for count, one in zip(counts, holders, strict=True)
    ]
    return Findings([one.listed() for one in holders if one.drops], notes, counts, holders, files)


def _key_of(document: Rows) -> HashKey:
    return int(document["hash_hi"]), int(document["hash_lo"])


def _list_excused(items: Items, read: list[ReadItems], excused: Int64s, held_in: Int64s) -> list[dict[str, Any]]:
    """Return the items that were excused: those in the most documents first."""
    chosen = np.flatnonzero(excused)
    return [
        _name_item(items, read, number)
        | {
            "words": int(items.rows["words"][number]),
            "documents": int(excused[number]),
            "held": int(held_in[number]),
        }
        for number in chosen[np.argsort(-excused[chosen], kind="stable")].tolist()
    ]


def _name_item(items: Items, read: list[ReadItems], number: int) -> dict[str, Any]:
    """Return the columns that name an item in both tables."""
    row = items.rows[number]
    evaluation = read[int(row["evaluation"])]
    return {
        "evaluation": evaluation.name,
        "item": evaluation.spans[int(row["span"])],
        "item_row": int(row["row"]),
    }


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
    documents: dict[int, Rows],
    source: str,
    items: Items,
    read: list[ReadItems],
) -> pa.RecordBatch:
    """Return the rows of the evidence table for one run."""
    labels = run.labels
    table: list[dict[str, Any]] = []
    for one in held:
        document = documents[one.document]
        table.append(
            _name_item(items, read, one.item)
            | {
                "share": one.share,
                "source": source,
                "unit": labels[int(document["span"])],
                "row": int(document["row"]),
                "hash": f"{int(document['hash_hi']):016x}{int(document['hash_lo']):016x}",
                "start": one.start,
                "stop": one.stop,
                "run": run.digest,
                "index": one.document,
            }
        )
    return pa.RecordBatch.from_pylist(table, schema=_SCHEMA)


def _describe(counts: ItemCounts, documents: int, excused: list[dict[str, Any]]) -> str:
    text = f"evaluation set {counts.name!r}: {counts.found:,} of {plural(counts.items, 'item')} found"
    if documents:
        text += f" in {plural(documents, 'document')}, "
        text += "which are dropped" if counts.action == "drop" else 'which stay: set action = "drop" to drop them'
    # Name some of the items that other documents share phrases with.
    own = [one for one in excused if one["evaluation"] == counts.name]
    if own:
        named = [
            f"{one['item']} row {one['item_row']} ({plural(one['words'], 'word')}, "
            f"{plural(one['documents'], 'document')})"
            for one in own[:EXCUSED_NAMED]
        ]
        rest = f" and {len(own) - len(named):,} more, in {EXCUSED_FILE}" if len(own) > len(named) else ""
        text += f"; common phrases of {plural(len(own), 'item')} do not count: {', '.join(named)}{rest}"
    return text
