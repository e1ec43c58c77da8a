"""Contamination: the documents that hold items of evaluation sets, counted, and their column of the evidence.

`pipeline.clean.decontamination.held_items` is the rule.
"""

# pyright: reportUnknownMemberType=false
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_numbers
from pipeline.clean.decontamination.held_items import HELD_DTYPE, HeldItems
from pipeline.clean.decontamination.items import ITEM_DTYPE, ItemsResult, ReadItems, load_items
from pipeline.clean.drops import Counts, SourceDrops
from pipeline.clean.reasons import ITEM
from pipeline.encode.run import END_HASH, HashKey, Run
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.evidence import RowPlaces
from pipeline.mix.index import Index
from pipeline.mix.mix_plan import MixPlan
from pipeline.mix.near_duplicates.drop import SimilarPairs, choose_dropped
from pipeline.recipe.schema import EvaluationRecipe, Recipe
from shards.errors import plural
from shards.format.arrays import Int64s, Rows, UInt64s, find_bounds
from shards.format.content_hash import mark_first
from shards.format.manifest import EvalTaskEntry
from shards.stores.open import open_store

PART_HITS = 1 << 22
"""The hits of all runs are counted in parts of about this size. Each part reads them all, which are few."""


def count_documents(ngrams: int, runs: Sequence[Run], similar: SimilarPairs | None) -> Int64s:
    """Return in how many different documents of runs each n-gram of evaluation items occurs, `(ngrams,)`.

    Copies are one document, by the first 8 bytes of their hashes, and so are near-duplicates, if the build looks for
    them. Memory: 16 bytes for each of these, and about 60 for each hit of a part of the hash space, `PART_HITS` hits.
    """
    gone, kept = np.zeros((2, 0), np.uint64)
    if similar is not None:
        documents = similar.read()
        places, stay, _ = choose_dropped(documents, np.ones(len(documents.hi), bool))
        gone, kept = documents.hi[places], documents.hi[stay]
    bits = (sum(run.num_hits for run in runs) // PART_HITS).bit_length()
    counts = np.zeros(ngrams, np.int64)
    # Each part of the hash space reads all hits again, so that a part fits into memory.
    for part in range(1 << bits):
        pairs = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
        for run in runs:
            if run.num_hits:
                hi, own = _read_pairs(run)
                if len(gone):
                    place = np.minimum(gone.searchsorted(hi), len(gone) - 1)
                    hi = np.where(gone[place] == hi, kept[place], hi)
                inside = hi >> np.uint64(64 - bits) == part if bits else np.ones(len(own), bool)
                pairs.append((hi[inside], own[inside]))
        hi, found = (np.concatenate(column) for column in zip(*pairs, strict=True))
        # Of equal pairs of document and n-gram, one counts.
        order = np.lexsort((hi, found))
        hi, found = hi[order], found[order]
        counts += np.bincount(found[mark_first(hi, found)], minlength=ngrams)
    return counts


def _read_pairs(run: Run) -> tuple[UInt64s, Int64s]:
    """Return each document of a run with each n-gram of items in it: beginnings of hashes, and n-grams, `(pairs,)`."""
    hits = run.read_hits()
    pairs = np.unique(hits["document"].astype(np.int64) << 32 | hits["ngram"])
    # Hits are in the order of documents: one range of rows has them all.
    documents, first = pairs >> 32, int(pairs[0] >> 32)
    rows = run.read_documents(first, int(documents[-1]) + 1)
    return rows["hash_hi"][documents - first], pairs & 0xFFFFFFFF


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
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """How many items of each set are found."""

    def held_of(self, number: int) -> Rows:
        """Return the documents that hold items of an evaluation set, by its number, and the items."""
        return self.held[self.items["evaluation"][self.held["item"]] == number]

    def documents_of(self, number: int) -> Rows:
        """Return each document that holds items of an evaluation set once."""
        held = self.held_of(number)
        return held[np.unique(held[["run", "document"]], return_index=True)[1]]

    def list_dropped(self) -> list[tuple[str, UInt64s]]:
        """Return the documents that hold items of sets with `action = "drop"`, and the reason, for `Blocked`."""
        listed: list[tuple[str, UInt64s]] = []
        for number, one in enumerate(self.evaluations):
            if one.action == "drop":
                own = self.held_of(number)
                halves = np.stack([own["hash_hi"], own["hash_lo"]], axis=1)
                listed.append((f"{ITEM}{one.name}", halves))
        return listed

    def add_to(self, drops: Sequence[SourceDrops]) -> None:
        """Add to the table of each source all documents that hold items, also those that are dropped before or stay."""
        for number, one in enumerate(self.evaluations):
            documents, reason = self.documents_of(number), f"{ITEM}{one.name}"
            for place, source in enumerate(drops):
                step, own = source.step(reason), Counts()
                own.add(documents["length"][documents["source"] == place])
                step.decided, step.alone, step.reports = source.read, own, one.action == "report"
                if step.reports:
                    step.reasons[reason] = own

    def to_columns(self, places: RowPlaces, number: int) -> dict[str, Any]:
        """Return contamination's column `items` of the evidence of a partition."""
        inside, own = places.find(number, self.held["run"], self.held["document"])
        order = np.argsort(own, kind="stable")
        size = int(places.sizes(number).sum())
        offsets = find_bounds(np.bincount(own, minlength=size)).astype(np.int32)
        rows: list[dict[str, Any]] = []
        for one in self.held[inside[order]]:
            about = self.read[int(self.items["evaluation"][one["item"]])]
            item = self.items[one["item"]]
            named = {"evaluation": about.name, "item": about.spans[item["span"]], "item_row": int(item["row"])}
            rows.append(named | {name: one[name].item() for name in ("share", "start", "stop")})
        values = pa.RecordBatch.from_pylist(rows, schema=pa.schema(list(_ITEMS.value_type))).to_struct_array()
        return {"items": pa.ListArray.from_arrays(wrap_numbers(pa.int32(), offsets), values)}

    def list_eval_tasks(self, plan: MixPlan, index: Index) -> tuple[EvalTaskEntry, ...]:
        """Return which items of each eval task are in documents of the training split."""
        # Training takes one range of each source, shard by shard.
        trained: dict[int, tuple[HashKey, HashKey]] = {}
        for piece in (piece for shard in plan.shards if shard.split == "train" for piece in shard.slices):
            start, stop = trained.get(piece.source, (piece.start, piece.stop))
            trained[piece.source] = min(start, piece.start), max(stop, piece.stop)

        def is_trained(held: np.void) -> bool:
            start, stop = trained.get(int(held["source"]), (END_HASH, END_HASH))
            return start <= (int(held["hash_hi"]), int(held["hash_lo"])) < stop

        kept = self.held[index.are_kept(self.held["run"], self.held["document"])]
        too_short = self.items[self.items["size"] == 0]
        held = self.items[[int(one["item"]) for one in kept if is_trained(one)]]

        def list_hashes(items: Rows, number: int) -> list[str]:
            rows = items["row"][items["evaluation"] == number]
            return sorted({self.read[number].hashes[int(row)] for row in rows})

        # Two evaluation sets may be of one task: they hold the same.
        known = {one.task: number for number, one in enumerate(self.evaluations) if one.task}
        return tuple(
            EvalTaskEntry(
                task=task,
                items=self.read[number].items,
                items_sha256=self.read[number].sha256,
                too_short=list_hashes(too_short, number),
                held=list_hashes(held, number),
            )
            for task, number in known.items()
        )


def find_contamination(place: str, recipe: Recipe, runs: Sequence[Run], similar: SimilarPairs | None) -> Findings:
    """Find the documents that hold items.

    Args:
        place: the address of the folder of the task that read the evaluation sets.
        recipe: the recipe.
        runs: all runs, where their rows are read: scratch folders if they are in a remote store.
        similar: the pairs of similar documents; None if the build does not search for near-duplicates.
    """
    items = load_items(place)
    read = TaskOutput(open_store(place), ItemsResult).result.evaluations
    # Common n-grams are told by all runs together, before any document is judged.
    counts = count_documents(len(items.ngrams), runs, similar)
    rule = HeldItems(items, counts, sum(run.num_documents for run in runs))
    parts = [np.zeros(0, HELD_DTYPE)]
    for number, run in enumerate(runs):
        if not run.num_hits or not len(held := rule.find(run.read_hits())):
            continue
        held["run"], held["source"] = number, run.source
        documents, which = np.unique(held["document"], return_inverse=True)
        read_rows = np.concatenate([run.read_documents(one, one + 1) for one in documents.tolist()])
        for name in ("hash_hi", "hash_lo", "length"):
            held[name] = read_rows[name][which]
        parts.append(held)
    findings = Findings(recipe.evaluations, read, items.rows, np.concatenate(parts))
    for number, (evaluation, about) in enumerate(zip(recipe.evaluations, read, strict=True)):
        found = findings.counts[evaluation.name] = len(np.unique(findings.held_of(number)["item"]))
        note = f"evaluation set {evaluation.name!r}: {found:,} of {plural(about.items, 'item')} found"
        if documents := len(findings.documents_of(number)):
            drops = evaluation.action == "drop"
            stay = "which are dropped" if drops else 'which stay: set action = "drop" to drop them'
            note += f" in {plural(documents, 'document')}, {stay}"
        findings.notes.append(note)
    return findings


_ITEMS = pa.list_(
    pa.struct(
        [
            ("evaluation", pa.string()),
            ("item", pa.string()),  # label of its span
            ("item_row", pa.uint32()),
            ("share", pa.float32()),  # of the item's words; without common phrases, where they did not count
            ("start", pa.uint64()),  # bytes of the document's text that were found
            ("stop", pa.uint64()),
        ]
    )
)
"""The type of the column `items` of the evidence."""
