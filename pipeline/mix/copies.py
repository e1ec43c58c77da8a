"""The outcome of a mix for the copies of one document: each was kept, or dropped for reasons that can be named.

Everything is read from the work folder: rows of the runs, found by their hash; the bits and the evidence that the mix
wrote; the block lists. Tokens are not read. Costs a few small reads for each run, and the evidence tables.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.clean.limits import describe_fallen
from pipeline.encode.run import Run
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.block_lists import BlockListError, open_lists
from pipeline.mix.contamination import CONTAMINATION_FILE
from pipeline.mix.keep_mask import Kept, read_kept
from pipeline.mix.mix_plan import MixPlan, plan_from_dict
from pipeline.mix.near_duplicates.drop import EVIDENCE_FILE
from pipeline.recipe.schema import Recipe
from shards.errors import RunError, plural
from shards.format.writer import shard_name
from shards.stores.store import Store

if TYPE_CHECKING:
    import numpy.typing as npt


PlaceOf = Callable[[str, int], tuple[str, int]]
"""Returns the unit and the row of a document, given its run's digest and its place there."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One document of a run."""

    number: int
    """Of the run, in the order of the mix."""
    run: Run
    index: int
    row: npt.NDArray[np.void]
    """Its row, `DOCUMENT_DTYPE ()`."""

    @property
    def hash_key(self) -> tuple[int, int]:
        """Its hash, as two halves."""
        return int(self.row["hash_hi"]), int(self.row["hash_lo"])

    @property
    def hash(self) -> str:
        """Its hash in hex."""
        return "{:016x}{:016x}".format(*self.hash_key)

    @property
    def unit(self) -> str:
        """The label of its span."""
        return self.run.labels[int(self.row["span"])]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a copy is not in the set, or what else is said of it."""

    step: str
    """`block_list`, `evaluations`, `limits`, `duplicate`, `near_duplicate`, `budget` or `stopped`."""
    text: str
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the reason."""
        return asdict(self)


@dataclass(slots=True)
class Outcome:
    """The outcome for one copy."""

    copy: Copy
    state: str = "in the set"
    """`in the set`, `dropped` or `not taken`."""
    reasons: list[Reason] = field(default_factory=list[Reason])
    """Why it is dropped or not taken."""
    notes: list[Reason] = field(default_factory=list[Reason])
    """Findings that are only reported."""
    shards: list[str] = field(default_factory=list[str])


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


class Outcomes:
    """The outcome of a mix for single documents."""

    def __init__(self, folder: Store, recipe: Recipe, runs: int):
        """Set the mix.

        Args:
            folder: the folder of its task.
            recipe: its recipe.
            runs: how many runs it read.
        """
        self._folder, self._recipe, self._runs = folder, recipe, runs
        self._result = TaskOutput(folder).result
        self._unreadable: list[str] = []
        """The faults of block lists that have changed since the mix read them."""

    @cached_property
    def plan(self) -> MixPlan | None:
        """The plan; None if the mix stopped before it had one."""
        return plan_from_dict(self._result["plan"]) if "plan" in self._result else None

    @cached_property
    def _kept(self) -> Kept:
        return read_kept(self._folder, self._runs)

    def find(self, copies: Sequence[Copy], places: PlaceOf) -> list[Outcome]:
        """Return what became of the copies of one document.

        Args:
            copies: all documents of the runs with one hash, in the order of runs and rows.
            places: says where a document of a run is, by the run's digest and its index.

        Raises:
            RunError: the work folder is damaged.
            WorkFileDamagedError: the same, and which task must run again.
        """
        outcomes = [Outcome(copy) for copy in copies]
        blocked = self._find_blocked(copies[0].hash)
        first: Copy | None = None
        for outcome in outcomes:
            outcome.reasons += [*blocked, *self._find_items(outcome, notes=False)]
            outcome.notes += self._find_items(outcome, notes=True)
            if not outcome.reasons:
                outcome.reasons += self._find_limits(outcome.copy)
            if outcome.reasons:
                continue
            if first is not None:
                outcome.reasons.append(self._describe_duplicate(outcome.copy, first))
                continue
            first = outcome.copy
            near, dropped = self._find_near_duplicate(outcome.copy, places)
            (outcome.reasons if dropped else outcome.notes).extend(near)
        for outcome in outcomes:
            self._decide(outcome)
        return outcomes

    def _find_blocked(self, digest: str) -> list[Reason]:
        half = int(digest[:16], 16), int(digest[16:], 16)
        found: list[Reason] = []
        for listed in open_lists(self._recipe):
            try:
                rows, _ = listed.read()
            except BlockListError as error:
                self._unreadable.append(str(error))
                continue
            place = int(np.searchsorted(rows[:, 0], np.uint64(half[0])))
            while place < len(rows) and int(rows[place, 0]) == half[0]:
                if int(rows[place, 1]) == half[1]:
                    found.append(
                        Reason("block_list", f"its hash is in the block list {listed.path}", {"file": str(listed.path)})
                    )
                place += 1
        return found

    @cached_property
    def _items(self) -> pa.Table | None:
        return self._read_table(CONTAMINATION_FILE)

    @cached_property
    def _near(self) -> pa.Table | None:
        return self._read_table(EVIDENCE_FILE)

    def _read_table(self, name: str) -> pa.Table | None:
        if name not in self._result["files"]:
            return None
        return pq.read_table(pa.BufferReader(TaskOutput(self._folder).read(name)))

    def _find_items(self, outcome: Outcome, *, notes: bool) -> list[Reason]:
        """Return the items that a copy holds: those of sets that drop it, or those that are only reported."""
        if self._items is None:
            return []
        copy, actions = outcome.copy, {one.name: one.action for one in self._recipe.evaluations}
        own = self._items.filter(
            (pc.field("source") == self._recipe.sources[copy.run.source].name)
            & (pc.field("run") == copy.run.digest)
            & (pc.field("index") == copy.index)
        )
        return [
            Reason(
                "evaluations",
                f"it holds an item of the evaluation set {row['evaluation']!r}: {row['item']} row {row['item_row']}, "
                f"{row['share']:.0%} of its words in bytes {row['start']:,} to {row['stop']:,} of the text"
                + ('; action = "report" keeps it' if notes else ""),
                {name: row[name] for name in ("evaluation", "item", "item_row", "share", "start", "stop")},
            )
            for row in own.to_pylist()
            if (actions[row["evaluation"]] == "report") == notes
        ]

    def _find_limits(self, copy: Copy) -> list[Reason]:
        limits = self._recipe.sources[copy.run.source].clean.limits("mix")
        if not limits:
            return []
        values = copy.run.read_measures(copy.index, copy.index + 1)
        return [Reason("limits", text, facts) for text, facts in describe_fallen(values[0], copy.run.measures, limits)]

    def _describe_duplicate(self, copy: Copy, first: Copy) -> Reason:
        name = self._recipe.sources[first.run.source].name
        other = "" if first.run.source == copy.run.source else f" of the source {name!r}"
        return Reason(
            "duplicate",
            f"its text is that of an earlier document{other}: {first.unit} row {int(first.row['row'])}",
            {"source": name, "unit": first.unit, "row": int(first.row["row"])},
        )

    def _find_near_duplicate(self, copy: Copy, places: PlaceOf) -> tuple[list[Reason], bool]:
        """Return what the evidence says about a document, and whether it is dropped for it."""
        if self._near is None:
            return [], False
        drops = self._result["near_duplicates"]["action"] == "drop"
        digest = pa.scalar(bytes.fromhex(copy.hash), pa.binary(16))
        reasons: list[Reason] = []
        for row in self._near.filter(pc.equal(self._near["dropped_hash"], digest)).to_pylist():
            kept, (unit, number) = row["kept_hash"].hex(), places(row["kept_run"], row["kept_index"])
            text = (
                f"it is a near-duplicate, by a Jaccard similarity of {row['jaccard']:.4f}, of a document of the source "
                f"{row['kept_source']!r} that stays: {unit} row {number}, hash {kept}"
            )
            facts = {"jaccard": row["jaccard"], "hash": kept, "source": row["kept_source"], "unit": unit, "row": number}
            text += "" if drops else '; action = "report" keeps both'
            reasons.append(Reason("near_duplicate", text, facts))
        return reasons, drops

    def _decide(self, outcome: Outcome) -> None:
        """Say whether a copy is dropped, not taken or in the set; the bits that the mix wrote have the last word."""
        copy, plan = outcome.copy, self.plan
        kept = not outcome.reasons
        agrees = plan is None or kept == bool(self._kept.mask(copy.number, copy.index, copy.index + 1)[0])
        if not agrees and kept and self._unreadable:
            text = f"no other reason is known, and a block list is not as it was: {'; '.join(self._unreadable)}"
            outcome.reasons.append(Reason("block_list", text))
            kept = False
        elif not agrees:
            raise RunError(
                f"{self._folder}: its answer for the document {copy.hash} does not agree with its evidence. Delete "
                "this folder, and run the same build command again."
            )
        if not kept:
            outcome.state = "dropped"
        elif plan is None:
            outcome.state = "not taken"
            fault = str(self._result.get("fault", "")).partition("\n")[0]
            outcome.reasons.append(Reason("stopped", f"nothing drops it, but the last build made no set: {fault}"))
        elif not (shards := self._find_shards(copy, plan)):
            outcome.state = "not taken"
            outcome.reasons.append(self._describe_budget(copy, plan))
        else:
            outcome.shards = shards

    def _find_shards(self, copy: Copy, plan: MixPlan) -> list[str]:
        return [
            shard_name(shard.split, shard.index)  # type: ignore[arg-type]
            for shard in plan.shards
            for piece in shard.slices
            if piece.source == copy.run.source and piece.start <= copy.hash_key < piece.stop
        ]

    def _describe_budget(self, copy: Copy, plan: MixPlan) -> Reason:
        source, totals = self._recipe.sources[copy.run.source].name, plan.sources[copy.run.source]
        ends = [
            piece.stop
            for shard in plan.shards
            for piece in shard.slices
            if shard.split == "train" and piece.source == copy.run.source
        ]
        cut = "{:016x}{:016x}".format(*max(ends)) if ends else None
        where = f"Documents are taken in hash order, and end before {cut}." if cut else "None are taken."
        return Reason(
            "budget",
            f"nothing drops it, but the mix takes {plural(totals.requested_tokens, 'training token')} of the source "
            f"{source!r}, which has {totals.tokens:,}. {where}",
            {"requested_tokens": totals.requested_tokens, "tokens_available": totals.tokens, "cut": cut},
        )
