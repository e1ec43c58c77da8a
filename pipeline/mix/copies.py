"""The outcome of a mix for the copies of one document: the fate of each, and the evidence of the step that decided it.

Everything is read from the work folder: rows of the runs, found by their hash; the fates and the evidence that the mix
wrote; the block lists. Tokens are not read. Costs a few small reads for each run, and the evidence tables.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.clean.limits import describe_fallen
from pipeline.encode.run import Run
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.block_lists import open_lists
from pipeline.mix.contamination import CONTAMINATION_FILE
from pipeline.mix.drops.fates import Fate, read_fates
from pipeline.mix.mix_plan import plan_from_dict
from pipeline.mix.near_duplicates.drop import EVIDENCE_FILE
from pipeline.recipe.schema import Recipe
from shards.errors import InputError, plural
from shards.format.equal_hashes import find_hashes
from shards.format.writer import shard_name
from shards.stores.store import Store

if TYPE_CHECKING:
    import numpy as np
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
    """The outcome of a mix for single documents: their fates, and the evidence of each step."""

    def __init__(self, folder: Store, recipe: Recipe, runs: int):
        """Set the mix.

        Args:
            folder: the folder of its task.
            recipe: its recipe.
            runs: how many runs it read.
        """
        self._folder, self._recipe = folder, recipe
        self._result = TaskOutput(folder).result
        self._fates = read_fates(folder, runs)
        self.plan = plan_from_dict(self._result["plan"]) if "plan" in self._result else None

    def find(self, copies: Sequence[Copy], places: PlaceOf) -> list[Outcome]:
        """Return what became of the copies of one document.

        Args:
            copies: all documents of the runs with one hash, in the order of runs and rows.
            places: says where a document of a run is, by the run's digest and its index.

        Raises:
            WorkFileDamagedError: a file of the work folder is not as it was written.
        """
        fates = [self._fates.of(copy.number, copy.index) for copy in copies]
        # Of equal documents one went on to the last step.
        first = next(
            (copy for copy, fate in zip(copies, fates, strict=True) if fate in (Fate.KEPT, Fate.NEAR_DUPLICATE)), None
        )
        return [self._explain(copy, fate, first, places) for copy, fate in zip(copies, fates, strict=True)]

    def _explain(self, copy: Copy, fate: Fate, first: Copy | None, places: PlaceOf) -> Outcome:
        outcome = Outcome(copy, "in the set" if fate == Fate.KEPT else "dropped")
        match fate:
            case Fate.LISTED:
                outcome.reasons = list(self._find_lists(copy))
            case Fate.HOLDS_ITEM:
                outcome.reasons = self._find_items(copy, "drop")
            case Fate.BEYOND_LIMIT:
                outcome.reasons = self._find_limits(copy)
            case Fate.DUPLICATE:
                assert first is not None  # the document of which it is a copy
                outcome.reasons = [self._describe_duplicate(copy, first)]
            case Fate.NEAR_DUPLICATE:
                outcome.reasons = self._find_near_duplicates(copy, places)
            case Fate.KEPT:
                outcome.notes = self._find_items(copy, "report") + self._find_near_duplicates(copy, places)
                outcome.shards = self._find_shards(copy)
                if not outcome.shards:
                    outcome.state = "not taken"
                    outcome.reasons = [self._describe_rest(copy)]
        return outcome

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
                found.append(Reason("block_list", text, {"file": str(listed.path)}))
        return found or [
            Reason("block_list", f"its hash was in a block list that is not as it was: {'; '.join(changed)}")
        ]

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

    def _find_items(self, copy: Copy, action: str) -> list[Reason]:
        """Return the items that a copy holds, of the evaluation sets with an action."""
        if self._items is None:
            return []
        names = [one.name for one in self._recipe.evaluations if one.action == action]
        own = self._items.filter(
            (pc.field("run") == copy.run.digest)
            & (pc.field("index") == copy.index)
            & (pc.field("source") == self._recipe.sources[copy.run.source].name)
            & pc.field("evaluation").isin(pa.array(names, pa.string()))
        )
        return [
            Reason(
                "evaluations",
                f"it holds an item of the evaluation set {row['evaluation']!r}: {row['item']} row {row['item_row']}, "
                f"{row['share']:.0%} of its words in bytes {row['start']:,} to {row['stop']:,} of the text"
                + ('; action = "report" keeps it' if action == "report" else ""),
                {name: row[name] for name in ("evaluation", "item", "item_row", "share", "start", "stop")},
            )
            for row in own.to_pylist()
        ]

    def _find_limits(self, copy: Copy) -> list[Reason]:
        limits = self._recipe.sources[copy.run.source].clean.limits("mix")
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

    def _find_near_duplicates(self, copy: Copy, places: PlaceOf) -> list[Reason]:
        """Return the documents that are similar to a copy and stay, as the evidence names them."""
        if self._near is None:
            return []
        drops = self._fates.of(copy.number, copy.index) == Fate.NEAR_DUPLICATE
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
        return reasons

    def _find_shards(self, copy: Copy) -> list[str]:
        """Return the shards that hold a kept copy."""
        return [
            shard_name(shard.split, shard.index)  # type: ignore[arg-type]
            for shard in (self.plan.shards if self.plan else ())
            for piece in shard.slices
            if piece.source == copy.run.source and piece.start <= copy.hash_key < piece.stop
        ]

    def _describe_rest(self, copy: Copy) -> Reason:
        """Return why a kept copy is in no shard: it is beyond what the mix takes, or there is no set."""
        if self.plan is None:
            fault = str(self._result.get("fault", "")).partition("\n")[0]
            return Reason("stopped", f"nothing drops it, but the last build made no set: {fault}")
        source, totals = self._recipe.sources[copy.run.source].name, self.plan.sources[copy.run.source]
        ends = [
            piece.stop
            for shard in self.plan.shards
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
