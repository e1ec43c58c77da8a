"""Contamination: the documents that hold items of evaluation sets, counted, and written down as evidence.

`contamination.parquet` has a row for each document and item that it holds, `excused_items.parquet` one for each item of
which common phrases in other documents did not count. `pipeline.mix.held_items` is the rule.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.clean.drops.table import ITEM_REASON, Counts, SourceDrops
from pipeline.clean.evaluations.items import ITEM_DTYPE, Items, ItemsResult, ReadItems, load_items
from pipeline.encode.run import END_HASH, HashKey, Run
from pipeline.engine.checksums import WrittenFile, checksum_file
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.block_lists import ListedHashes
from pipeline.mix.different_documents import DifferentDocuments
from pipeline.mix.fates import Fate, Fates
from pipeline.mix.held_items import HELD_DTYPE, OF_DOCUMENT, HeldItems
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


@dataclass(frozen=True)
class Findings:
    """The findings for all evaluation sets; empty without any."""

    evaluations: Sequence[EvaluationRecipe] = ()
    read: Sequence[ReadItems] = ()
    items: Rows = field(default_factory=lambda: np.zeros(0, ITEM_DTYPE))
    """All items, `ITEM_DTYPE (items,)`."""
    held: Rows = field(default_factory=lambda: np.zeros(0, HELD_DTYPE))
    """The documents that hold them, `HELD_DTYPE (held,)`."""
    notes: list[str] = field(default_factory=list[str])
    """One for each set, for the user."""
    counts: list[ItemCounts] = field(default_factory=list[ItemCounts])
    files: dict[str, WrittenFile] = field(default_factory=dict[str, WrittenFile])
    """The entries of both tables for the receipt."""

    def held_of(self, number: int) -> Rows:
        """Return the documents and items of an evaluation set, by its number."""
        return self.held[self.items["evaluation"][self.held["item"]] == number]

    def documents_of(self, number: int) -> Rows:
        """Return each document that holds items of an evaluation set once."""
        held = self.held_of(number)
        return held[np.unique(held[["run", "document"]], return_index=True)[1]]

    def list_dropped(self) -> list[ListedHashes]:
        """Return the documents of each set with `action = "drop"`."""
        listed: list[ListedHashes] = []
        for number, one in enumerate(self.evaluations):
            if one.action == "drop":
                own = self.held_of(number)
                halves = np.stack([own["hash_hi"], own["hash_lo"]], axis=1)
                hashes = np.unique(halves, axis=0)
                listed.append(ListedHashes(f"{ITEM_REASON} {one.name}", Fate.HOLDS_ITEM, hashes))
        return listed

    def add_to(self, drops: Sequence[SourceDrops]) -> None:
        """Add to the table of each source all documents that hold items, also those that are dropped before or stay."""
        for number, one in enumerate(self.evaluations):
            documents, reason = self.documents_of(number), f"{ITEM_REASON} {one.name}"
            for place, source in enumerate(drops):
                step, own = source.step(reason), Counts()
                own.add(documents["length"][documents["source"] == place])
                step.came, step.every, step.reports = source.read, own, one.action == "report"
                if step.reports:
                    step.reason(reason).first = own

    def list_eval_tasks(self, plan: MixPlan, fates: Fates) -> tuple[EvalTaskEntry, ...]:
        """Return which items of each eval task are in documents of the training split."""
        # Training takes one range of each source, shard by shard.
        trained: dict[int, tuple[HashKey, HashKey]] = {}
        for piece in (piece for shard in plan.shards if shard.split == "train" for piece in shard.slices):
            start, stop = trained.get(piece.source, (piece.start, piece.stop))
            trained[piece.source] = min(start, piece.start), max(stop, piece.stop)

        def is_trained(held: np.void) -> bool:
            start, stop = trained.get(int(held["source"]), (END_HASH, END_HASH))
            inside = start <= (int(held["hash_hi"]), int(held["hash_lo"])) < stop
            run, document = int(held["run"]), int(held["document"])
            return inside and bool(fates.kept(run, document, document + 1)[0])

        # Two evaluation sets may be of one task: they hold the same.
        known = {one.task: number for number, one in enumerate(self.evaluations) if one.task}
        entries: list[EvalTaskEntry] = []
        for task, number in known.items():
            read, rows = self.read[number], self.items["row"]
            short = np.flatnonzero((self.items["evaluation"] == number) & (self.items["size"] == 0))
            held = {int(one["item"]) for one in self.held_of(number) if is_trained(one)}
            entries.append(
                EvalTaskEntry(
                    task=task,
                    items=read.items,
                    items_sha256=read.sha256,
                    too_short=sorted({read.hashes[int(row)] for row in rows[short]}),
                    held=sorted({read.hashes[int(row)] for row in rows[list(held)]}),
                )
            )
        return tuple(entries)


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
    parts = [np.zeros(0, HELD_DTYPE)]
    with pq.ParquetWriter(folder / CONTAMINATION_FILE, _SCHEMA, compression="zstd") as table:
        for number, (run, own) in enumerate(zip(runs, rows, strict=True)):
            if not own.num_hits or not len(held := rule.find(own.read_hits())):
                continue
            held["run"], held["source"] = number, run.source
            documents, which = np.unique(held["document"], return_inverse=True)
            read_rows = np.concatenate([own.read_documents(one, one + 1) for one in documents.tolist()])
            for name in OF_DOCUMENT:
                held[name] = read_rows[name][which]
            table.write_batch(_to_batch(held, run, recipe.sources[run.source].name, items, read))
            parts.append(held)
    held = np.concatenate(parts)
    # The same document in several places, or nearly the same, tells of an item once.
    pairs = np.stack([held["item"].astype(np.uint64), different.identify(held["hash_hi"])], axis=1)
    distinct = np.unique(pairs, axis=0)
    held_in = np.bincount(distinct[:, 0].astype(np.int64), minlength=len(items.rows))
    # Items whose common phrases did not count are evidence, too.
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
    findings = Findings(recipe.evaluations, read, items.rows, held, counts=counts, files=files)
    for number, count in enumerate(counts):
        findings.notes.append(_describe(count, len(findings.documents_of(number)), listed))
    return findings


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


def _to_batch(held: Rows, run: Run, source: str, items: Items, read: list[ReadItems]) -> pa.RecordBatch:
    """Return the rows of the evidence table for one run."""
    labels = run.labels
    table = [
        _name_item(items, read, int(one["item"]))
        | {name: one[name] for name in ("share", "start", "stop", "row")}
        | {
            "source": source,
            "unit": labels[int(one["span"])],
            "hash": f"{one['hash_hi']:016x}{one['hash_lo']:016x}",
            "run": run.digest,
            "index": one["document"],
        }
        for one in held
    ]
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
