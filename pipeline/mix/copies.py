"""The outcome of a mix for the copies of one document: what the evidence says of each.

Everything is read from the work folder: rows of the runs, found by their hash, and the evidence of the mix. Tokens are
not read. Costs a few small reads for each run, and the evidence of a part of the hash space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.clean.drops import DUPLICATE, ITEM_REASON, NEAR_DUPLICATE, NOT_TAKEN, step_of
from pipeline.clean.limits import describe_fallen
from pipeline.encode.run import Run
from pipeline.engine.receipts import TaskOutput
from pipeline.mix.cuts import MixResult
from pipeline.mix.evidence import Evidence
from pipeline.mix.index import describe_take, find_take_end
from pipeline.recipe.schema import Recipe
from shards.errors import plural
from shards.format.manifest import BLOCK_LIST_REASON
from shards.format.writer import shard_name
from shards.stores.store import Store

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Rows

Reason = dict[str, str]
"""Why a copy is not in the set, or what else is said of it: `step` and `text`. The step is `block_list`, `evaluations`,
`limits`, `duplicate`, `near_duplicate`, `take`, `budget` or `stopped`."""


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


def find_copies(number: int, run: Run, digest: str) -> list[Copy]:
    """Find the copies of a document in a run: the documents with its hash.

    Args:
        number: the run's number.
        run: the run.
        digest: the hash in hex.

    Raises:
        WorkFileDamagedError: the run's files are not as they were written.
    """
    low = int(digest, 16)
    start, stop = (divmod(bound, 1 << 64) for bound in (low, low + 1))
    first, rows = run.read_between(start, stop)
    return [Copy(number, run, first + place, rows[place]) for place in range(len(rows))]


_LAST = ("", NEAR_DUPLICATE, NOT_TAKEN)
"""The steps after copies were dropped; none of a document that is kept."""


def _step_of(found: dict[str, Any]) -> str:
    return step_of(found["dropped"] or "")


def _reason(step: str, text: str) -> Reason:
    return {"step": step, "text": text}


class Outcomes:
    """The outcomes of a mix for single documents."""

    def __init__(self, folder: Store, recipe: Recipe, runs: Sequence[Run]):
        """Set the mix.

        Args:
            folder: the folder of its task.
            recipe: its recipe.
            runs: the runs that it read.
        """
        output = TaskOutput(folder, MixResult)
        self._result, self._recipe = output.result, recipe
        self._runs = runs
        self._evidence = Evidence(output, len(runs))

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
        found = [self._evidence.of(copy.number, copy.index) for copy in copies]
        # Of equal documents one went on to the last steps.
        went_on = [copy for copy, row in zip(copies, found, strict=True) if _step_of(row) in _LAST]
        return [
            self._describe_place(copy.run, copy.row)
            | {"hash": copy.hash, "tokens": int(copy.row["length"])}
            | self._explain(copy, row, went_on)
            for copy, row in zip(copies, found, strict=True)
        ]

    def _describe_place(self, run: Run, row: Rows) -> dict[str, Any]:
        name = self._recipe.sources[run.source].name
        return {"source": name, "unit": run.labels[int(row["span"])], "row": int(row["row"])}

    def _explain(self, copy: Copy, found: dict[str, Any], went_on: list[Copy]) -> dict[str, Any]:
        shards: list[str] = []
        notes: list[Reason] = []
        source = self._recipe.sources[copy.run.source]
        step = _step_of(found)
        if step == "":
            notes = [*self._list_items(found, "report"), *self._describe_twin(found, reported=True)]
            shards, reasons = self._find_shards(copy, source.name)
        elif step.startswith(BLOCK_LIST_REASON):
            name = step.removeprefix(BLOCK_LIST_REASON).strip()
            reasons = [_reason("block_list", f"its hash is in the block list {name}")]
        elif step.startswith(f"{ITEM_REASON} "):
            reasons = self._list_items(found, "drop")
        elif step == DUPLICATE:
            first = self._describe_place(went_on[0].run, went_on[0].row)
            other = "" if first["source"] == source.name else f" of the source {first['source']!r}"
            text = f"its text is that of an earlier document{other}: {first['unit']} row {first['row']}"
            reasons = [_reason("duplicate", text)]
        elif step == NEAR_DUPLICATE:
            reasons = self._describe_twin(found)
        elif step == NOT_TAKEN:
            end = f"{find_take_end(source.take):016x}"
            text = f"{describe_take(source.take)} of the source {source.name!r}, the hashes before {end}"
            reasons = [_reason("take", text)]
        else:
            values = copy.run.read_measures(copy.index, copy.index + 1)
            fallen = describe_fallen(values[0], copy.run.measures, source.clean.limits("mix"))
            reasons = [_reason("limits", text) for text in fallen]
        state = "not taken" if step in ("", NOT_TAKEN) else "dropped"
        return {"state": "in the set" if shards else state, "shards": shards, "reasons": reasons, "notes": notes}

    def _list_items(self, found: dict[str, Any], action: str) -> list[Reason]:
        """Return the items that a document holds, of the evaluation sets with an action."""
        names = {one.name for one in self._recipe.evaluations if one.action == action}
        return [
            _reason(
                "evaluations",
                f"it holds an item of the evaluation set {item['evaluation']!r}: {item['item']} row "
                f"{item['item_row']}, {item['share']:.0%} of its words in bytes {item['start']:,} to "
                f"{item['stop']:,} of the text" + ('; action = "report" keeps it' if action == "report" else ""),
            )
            for item in found.get("items", ())
            if item["evaluation"] in names
        ]

    def _describe_twin(self, found: dict[str, Any], *, reported: bool = False) -> list[Reason]:
        """Return the document that is similar to a near-duplicate and stays."""
        if found.get("twin_run") is None:
            return []
        run, index = self._runs[int(found["twin_run"])], int(found["twin_index"])
        (row,) = run.read_documents(index, index + 1)
        twin, digest = self._describe_place(run, row), "{:016x}{:016x}".format(*run.hash_key(index))
        text = (
            f"it is a near-duplicate, by a Jaccard similarity of {found['jaccard']:.4f}, of a document of the source "
            f"{twin['source']!r} that stays: {twin['unit']} row {twin['row']}, hash {digest}"
            + ('; action = "report" keeps both' if reported else "")
        )
        return [_reason("near_duplicate", text)]

    def _find_shards(self, copy: Copy, source: str) -> tuple[list[str], list[Reason]]:
        """Return the shards that hold a kept copy; if none does, why: it is beyond the mix, or there is no set."""
        plan = self._result.plan
        if plan is None:
            fault = self._result.fault.partition("\n")[0]
            return [], [_reason("stopped", f"nothing drops it, but the last build made no set: {fault}")]
        pieces = [(one, piece) for one in plan.shards for piece in one.slices if piece.source == copy.run.source]
        held = [one for one, piece in pieces if piece.start <= copy.hash_key < piece.stop]
        if held:
            return [shard_name(one.split, one.index) for one in held], []  # type: ignore[arg-type]
        requested = plan.requested_tokens[copy.run.source]
        left = self._result.drops[copy.run.source].left
        ends = [piece.stop for one, piece in pieces if one.split == "train"]
        cut = "{:016x}{:016x}".format(*max(ends)) if ends else None
        where = f"Documents are taken in hash order, and end before {cut}." if cut else "None are taken."
        text = (
            f"nothing drops it, but the mix takes {plural(requested, 'training token')} of the source {source!r}, "
            f"which has {left.tokens:,}. {where}"
        )
        return [], [_reason("budget", text)]
