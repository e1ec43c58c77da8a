"""The outcome of a mix for the copies of one document: the fate of each, and the evidence of the step that decided it.

Everything is read from the work folder: rows of the runs, found by their hash; the fates and the evidence that the mix
wrote; the block lists. Tokens are not read. Costs a few small reads for each run, and the evidence tables.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.clean.limits import describe_fallen
from pipeline.encode.run import Run
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.block_lists import open_lists
from pipeline.mix.contamination import CONTAMINATION_FILE
from pipeline.mix.cuts import MixResult
from pipeline.mix.fates import Fate, read_fates
from pipeline.mix.near_duplicates.drop import EVIDENCE_FILE
from pipeline.mix.take import describe_take, find_end
from pipeline.recipe.schema import Recipe
from shards.errors import InputError, plural
from shards.format.equal_hashes import find_hashes
from shards.format.writer import shard_name
from shards.stores.store import Store

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Rows

Reason = dict[str, Any]
"""Why a copy is not in the set, or what else is said of it, as JSON values: `step`, `text` and `facts`. The step is
`block_list`, `evaluations`, `limits`, `duplicate`, `near_duplicate`, `take`, `budget` or `stopped`."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One document of a run."""

    number: int
    """Of the run, in the order of the mix."""
    run: Run
    index: int
    row: Rows
    """Its row, `DOCUMENT_DTYPE ()`."""

    @property
    def hash_key(self) -> tuple[int, int]:
        """Its hash, as two halves."""
        return int(self.row["hash_hi"]), int(self.row["hash_lo"])

    @property
    def hash(self) -> str:
        """Its hash in hex."""
        return "{:016x}{:016x}".format(*self.hash_key)


def find_copies(number: int, run: Run, bounds: tuple[int, int]) -> list[Copy]:
    """Find the copies of a document in a run: the documents with its hash.

    Args:
        number: the run's number.
        run: the run.
        bounds: the lowest hash, and one past the highest, as numbers of 128 bits.

    Raises:
        WorkFileDamagedError: the run's files are not as they were written.
    """
    start, stop = (divmod(bound, 1 << 64) for bound in bounds)
    first, rows = run.read_between(start, stop)
    return [Copy(number, run, first + place, rows[place]) for place in range(len(rows))]


def _reason(step: str, text: str, **facts: Any) -> Reason:
    return {"step": step, "text": text, "facts": facts}


class Outcomes:
    """The outcomes of a mix for single documents: their fates, and the evidence of each step."""

    def __init__(self, folder: Store, recipe: Recipe, runs: int):
        """Set the mix.

        Args:
            folder: the folder of its task.
            recipe: its recipe.
            runs: how many runs it read.
        """
        self._output, self._recipe = TaskOutput(folder, MixResult), recipe
        self._fates = read_fates(folder, runs)
        self._plan = self._output.result.plan
        self._tables: dict[str, pa.Table] = {}

    def find(self, copies: Sequence[Copy]) -> list[dict[str, Any]]:
        """Return what became of the copies of one document, as JSON values.

        Args:
            copies: all documents of the runs with one hash, in the order of runs and rows.

        Returns:
            Of each copy its place, its `state` (`in the set`, `dropped` or `not taken`), the `shards` that hold it, the
            `reasons` why none does, and `notes`: findings that are only reported.

        Raises:
            WorkFileDamagedError: a file of the work folder is not as it was written.
        """
        fates = [self._fates.of(copy.number, copy.index) for copy in copies]
        # Of equal documents one went on to the last step.
        went_on = (Fate.KEPT, Fate.NEAR_DUPLICATE, Fate.NOT_TAKEN)
        last = [copy for copy, fate in zip(copies, fates, strict=True) if fate in went_on]
        return [
            self._describe_place(copy)
            | {"hash": copy.hash, "tokens": int(copy.row["length"])}
            | self._explain(copy, fate, last)
            for copy, fate in zip(copies, fates, strict=True)
        ]

    def _describe_place(self, copy: Copy) -> dict[str, Any]:
        name = self._recipe.sources[copy.run.source].name
        return {
            "source": name,
            "unit": copy.run.labels[int(copy.row["span"])],
            "row": int(copy.row["row"]),
        }

    def _explain(self, copy: Copy, fate: Fate, last: list[Copy]) -> dict[str, Any]:
        shards: list[str] = []
        notes: list[Reason] = []
        source = self._recipe.sources[copy.run.source]
        match fate:
            case Fate.LISTED:
                reasons = self._find_lists(copy)
            case Fate.HOLDS_ITEM:
                reasons = self._find_items(copy, "drop")
            case Fate.BEYOND_LIMIT:
                values = copy.run.read_measures(copy.index, copy.index + 1)
                fallen = describe_fallen(values[0], copy.run.measures, source.clean.limits("mix"))
                reasons = [_reason("limits", text, **facts) for text, facts in fallen]
            case Fate.DUPLICATE:
                first = self._describe_place(last[0])
                other = "" if first["source"] == source.name else f" of the source {first['source']!r}"
                text = f"its text is that of an earlier document{other}: {first['unit']} row {first['row']}"
                reasons = [_reason("duplicate", text, **first)]
            case Fate.NEAR_DUPLICATE:
                reasons = self._find_near_duplicates(copy)
            case Fate.NOT_TAKEN:
                end = f"{find_end(source.take):016x}"
                text = f"{describe_take(source.take)} of the source {source.name!r}, the hashes before {end}"
                reasons = [_reason("take", text, take=source.take, end=end)]
            case Fate.KEPT:
                notes = [*self._find_items(copy, "report"), *self._find_near_duplicates(copy, reported=True)]
                shards, reasons = self._find_shards(copy, source.name)
        dropped = fate not in (Fate.KEPT, Fate.NOT_TAKEN)
        state = "dropped" if dropped else "in the set" if shards else "not taken"
        return {"state": state, "shards": shards, "reasons": reasons, "notes": notes}

    def _find_evidence(self, name: str, **own: Any) -> list[dict[str, Any]]:
        """Return the rows of a table of evidence with these values; none if the mix wrote no such table."""
        if name not in self._output.result.files:
            return []
        if name not in self._tables:
            self._tables[name] = pq.read_table(pa.BufferReader(self._output.read(name)))
        table = self._tables[name]
        for column, value in own.items():
            kind = table.schema.field(column).type
            table = table.filter(pc.equal(table[column], pa.scalar(value, kind)))
        return table.to_pylist()

    def _find_lists(self, copy: Copy) -> list[Reason]:
        """Return the block lists with the document's hash; if there is none, those that the mix read otherwise."""
        found: list[Reason] = []
        changed: list[str] = []
        hi, lo = (copy.row[name].reshape(1) for name in ("hash_hi", "hash_lo"))
        for listed in open_lists(self._recipe):
            try:
                rows, _ = listed.read()
            except InputError as error:
                changed.append(str(error))
                continue
            if find_hashes(hi, lo, rows[:, 0], rows[:, 1])[0] >= 0:
                text = f"its hash is in the block list {listed.path}"
                found.append(_reason("block_list", text, file=str(listed.path)))
        text = f"its hash was in a block list that is not as it was: {'; '.join(changed)}"
        return found or [_reason("block_list", text)]

    def _find_items(self, copy: Copy, action: str) -> list[Reason]:
        """Return the items that a copy holds, of the evaluation sets with an action."""
        # A run may serve two sources: the source is part of the place.
        source = self._recipe.sources[copy.run.source].name
        rows = self._find_evidence(CONTAMINATION_FILE, run=copy.run.digest, index=copy.index, source=source)
        names = {one.name for one in self._recipe.evaluations if one.action == action}
        return [
            _reason(
                "evaluations",
                f"it holds an item of the evaluation set {row['evaluation']!r}: {row['item']} row {row['item_row']}, "
                f"{row['share']:.0%} of its words in bytes {row['start']:,} to {row['stop']:,} of the text"
                + ('; action = "report" keeps it' if action == "report" else ""),
                **{name: row[name] for name in ("evaluation", "item", "item_row", "share", "start", "stop")},
            )
            for row in rows
            if row["evaluation"] in names
        ]

    def _find_near_duplicates(self, copy: Copy, *, reported: bool = False) -> list[Reason]:
        """Return the documents that are similar to a copy and stay, as the evidence names them."""
        return [
            _reason(
                "near_duplicate",
                f"it is a near-duplicate, by a Jaccard similarity of {row['jaccard']:.4f}, of a document of the source "
                f"{row['kept_source']!r} that stays: {row['kept_unit']} row {row['kept_row']}, hash "
                f"{row['kept_hash'].hex()}" + ('; action = "report" keeps both' if reported else ""),
                jaccard=row["jaccard"],
                hash=row["kept_hash"].hex(),
                **{name: row[f"kept_{name}"] for name in ("source", "unit", "row")},
            )
            for row in self._find_evidence(EVIDENCE_FILE, dropped_hash=bytes.fromhex(copy.hash))
        ]

    def _find_shards(self, copy: Copy, source: str) -> tuple[list[str], list[Reason]]:
        """Return the shards that hold a kept copy; if none does, why: it is beyond the mix, or there is no set."""
        if self._plan is None:
            fault = self._output.result.fault.partition("\n")[0]
            return [], [_reason("stopped", f"nothing drops it, but the last build made no set: {fault}")]
        pieces = [(one, piece) for one in self._plan.shards for piece in one.slices if piece.source == copy.run.source]
        held = [one for one, piece in pieces if piece.start <= copy.hash_key < piece.stop]
        if held:
            return [shard_name(one.split, one.index) for one in held], []  # type: ignore[arg-type]
        requested = self._plan.requested_tokens[copy.run.source]
        left = self._output.result.drops[copy.run.source].left
        ends = [piece.stop for one, piece in pieces if one.split == "train"]
        cut = "{:016x}{:016x}".format(*max(ends)) if ends else None
        where = f"Documents are taken in hash order, and end before {cut}." if cut else "None are taken."
        text = (
            f"nothing drops it, but the mix takes {plural(requested, 'training token')} of the source {source!r}, "
            f"which has {left.tokens:,}. {where}"
        )
        facts = {"requested_tokens": requested, "tokens_available": left.tokens, "cut": cut}
        return [], [_reason("budget", text, **facts)]
