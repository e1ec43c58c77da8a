"""Drops: how many documents and tokens each step of cleaning, and each of its reasons, drops of a source.

The table has a row for each source, step and reason. A document counts for its first reason. Encoding and the mix count
in such tables alone, which alarms, `plan`, `clean-report`, `trace --hash` and the manifest read. The rule of the alarm
is here, too: a step may drop a share of a source; a build stops, and a plan warns, if it drops more. Text that does not
decode is malformed, like a JSON line that cannot be parsed: nothing is replaced. An absent text is no fault of the
file, and has a limit of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.sources.base import MALFORMED, SourceError
from shards.errors import plural
from shards.format.manifest import BLOCK_LIST_REASON
from shards.terminal.display import Table

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Integers
    from pipeline.recipe.schema import SourceRecipe

DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near-duplicate"
NOT_TAKEN = "not taken"
ITEM_REASON = "holds an item of"
"""The beginning of the reason under which documents with items of an evaluation set are dropped; its name follows."""
PATTERN_REASON = "matches"
"""The beginning of the reason under which documents with a pattern are dropped; the pattern follows."""
SHOWN_REASONS = 3
"""The most reasons of a step that a line names."""
ELSEWHERE = " of another source"
"""The end of the reason of a document that goes because of one of another source."""


class Excess(NamedTuple):
    """A step drops more of a source than the recipe allows."""

    found: int
    """Documents that the step drops."""
    came: int
    """Documents that the step decided on."""

    @property
    def share(self) -> float:
        """The share that a step drops, from 0 to 1."""
        return self.found / self.came

    @property
    def enough(self) -> float:
        """A limit of four digits that allows what a step drops."""
        return -(-self.found * 10_000 // self.came) / 10_000  # in whole numbers: rounded up, and never too low

    def describe(self, noun: str = "document", more: str = "") -> str:
        """Return the counts of what a step drops: `3 of 10 documents (30.00%)`, with more in the parentheses."""
        return f"{self.found:,} of {plural(self.came, noun)} ({self.share:.2%}{more})"


def find_excess(found: int, came: int, most: float) -> Excess | None:
    """Return by how much a step drops too much; None if it drops no more than the recipe allows.

    Args:
        found: documents that the step drops.
        came: documents that the step decided on.
        most: the largest share that the recipe allows, from 0 to 1.
    """
    # Of shares: a product of floats may be less than the number that it stands for.
    return Excess(found, came) if came and found / came > most else None


@dataclass(slots=True)
class Counts:
    """Documents and their tokens."""

    documents: int = 0
    tokens: int = 0

    def add(self, lengths: Integers) -> None:
        """Add dropped documents by their lengths in tokens."""
        self.documents += len(lengths)
        self.tokens += int(lengths.sum(dtype=np.int64))

    def plus(self, other: Counts | None) -> Counts:
        """Return the sum with other counts of dropped documents."""
        return self if other is None else Counts(self.documents + other.documents, self.tokens + other.tokens)


@dataclass(slots=True)
class StepDrops:
    """A step of cleaning, and the documents of a source that it drops."""

    came: Counts = field(default_factory=Counts)
    """Documents that the step decided on."""
    every: Counts | None = None
    """Those that the step would drop without the others of its kind; None if those are the documents of `reasons`."""
    reasons: dict[str, Counts] = field(default_factory=dict[str, Counts])
    """By reason, the documents whose first reason it is."""
    before_encoding: bool = False
    """Whether the step comes before encoding: its documents have no tokens."""
    reports: bool = False
    """Whether the step only reports: its documents stay."""

    @property
    def first(self) -> Counts:
        """Documents that the step drops: their first reason is one of its."""
        own = self.reasons.values()
        return Counts(sum(one.documents for one in own), sum(one.tokens for one in own))

    @property
    def found(self) -> Counts:
        """Documents that the step would drop alone."""
        return self.every or self.first

    @property
    def note(self) -> str:
        """What a report of drops says beside the step's name."""
        return "before encoding" if self.before_encoding else "reported, not dropped" if self.reports else ""

    def excess(self, most: float) -> Excess | None:
        """Return by how much the step drops more than a share of the documents; None if it does not."""
        return None if self.reports else find_excess(self.found.documents, self.came.documents, most)

    def reason(self, name: str) -> Counts:
        """Return the drops of a step by one reason, a row that is new the first time."""
        return self.reasons.setdefault(name, Counts())


@dataclass(slots=True)
class SourceDrops:
    """The steps of one source, in their order."""

    read: Counts = field(default_factory=Counts)
    """All documents that were encoded."""
    left: Counts = field(default_factory=Counts)
    steps: dict[str, StepDrops] = field(default_factory=dict[str, StepDrops])

    @property
    def records(self) -> int:
        """All rows of the source that were read, also those that were dropped before encoding."""
        before = (step.first.documents for step in self.steps.values() if step.before_encoding)
        return sum(before, self.read.documents)

    def step(self, name: str) -> StepDrops:
        """Return the drops of a step by its name, which is new the first time."""
        return self.steps.setdefault(name, StepDrops())

    def count_rows(self, dropped: Mapping[str, int]) -> None:
        """Count rows that are dropped before encoding under their first reasons."""
        for reason, rows in dropped.items():
            if rows:
                self.step(step_of(reason)).reason(reason).documents += rows

    def update(self, other: SourceDrops) -> None:
        """Add the drops of another part of the source, step by step."""
        for name, step in other.steps.items():
            own = self.step(name)
            own.came = own.came.plus(step.came)
            own.every = step.every and step.every.plus(own.every)
            for reason, counts in step.reasons.items():
                own.reasons[reason] = own.reason(reason).plus(counts)

    def after(self, encoding: SourceDrops) -> SourceDrops:
        """Return the table of drops with the steps before encoding in front of its own."""
        before = {name: replace(step, before_encoding=True) for name, step in encoding.steps.items()}
        return replace(self, steps=before | self.steps)

    def dropped(self) -> Counter[str]:
        """Return how many documents are dropped by first reason, without reasons that no document has."""
        steps = [step for step in self.steps.values() if not step.reports]
        return +Counter({name: own.documents for step in steps for name, own in step.reasons.items()})


def step_of(reason: str) -> str:
    """Return the step of a drop's reason: `gopher` of `gopher: min_words`; a pattern or block list is its own step."""
    if reason.startswith((BLOCK_LIST_REASON, f"{PATTERN_REASON} ", f"{ITEM_REASON} ")):
        return reason
    return reason.removesuffix(ELSEWHERE).partition(": ")[0]


NULL = "text is null"


def invalid_reason(source: SourceRecipe) -> str:
    """Return the drop reason of text that does not decode in the source's encoding."""
    return f"text is not valid {'UTF-8' if source.encoding == 'utf-8' else source.encoding}"


def describe_drops(dropped: Mapping[str, int], records: int) -> str:
    """Return how many of some records are dropped, and why, the most frequent reason first; or nothing."""
    if not (count := sum(dropped.values())):
        return ""
    listed = _name_largest({f"{reason}:": number for reason, number in dropped.items()}, "{:,}")
    return f"{count:,} of {plural(records, 'record')} {'is' if count == 1 else 'are'} dropped ({listed})"


def drop_rows(source: str, dropped: Mapping[str, float], records: int = 0) -> Table:
    """Return the table of a source's drops that `build` and `plan` print: a row for each step, with its main reasons.

    Args:
        source: the source's name.
        dropped: documents by reason; without `records`, the shares of all that they are.
        records: how many were read.
    """
    steps: dict[str, dict[str, float]] = {}
    for reason, count in dropped.items():
        step = step_of(reason)
        steps.setdefault(step, {})[reason.removeprefix(f"{step}: ")] = count
    rows: Table = []
    for step, reasons in sorted(steps.items(), key=lambda step: -sum(step[1].values())):
        count = sum(reasons.values())
        rows.append(
            {
                "source": source,
                "dropped by": step,
                **({"documents": count} if records else {}),
                "share": f"{count / (records or 1):.1%}",
                "most of them": _name_largest(reasons, "{:,}" if records else "{:.1%}")
                if reasons.keys() != {step}
                else "",
            }
        )
    return rows


def _name_largest(drops: Mapping[str, float], form: str) -> str:
    """Return the reasons of most drops, with how many each drops, and how many other reasons there are."""
    listed = [f"{reason} {form.format(count)}" for reason, count in Counter(drops).most_common(SHOWN_REASONS)]
    left = len(drops) - len(listed)
    return ", ".join([*listed, *([f"{left} more"] if left else [])])


def check_malformed(
    source: SourceRecipe, dropped: Mapping[str, int], records: int, shown: list[str], more: str = ""
) -> str:
    """Return what to say of a source's malformed records, which are dropped; empty if there are none.

    Args:
        source: the source.
        dropped: how many of its records are dropped, by reason, as far as they were read.
        records: how many were read.
        shown: some of the malformed ones.
        more: what is said behind their share.

    Raises:
        SourceError: they are more than the recipe allows; with the remedy.
    """
    # They cannot be parsed, or do not decode.
    undecoded = dropped.get(invalid_reason(source), 0)
    counted = Excess(dropped.get(MALFORMED, 0) + undecoded, records)
    if not counted.found:
        return ""
    found = (
        f"source {source.name!r}: {counted.describe('record', more)} {'is' if counted.found == 1 else 'are'} malformed"
    )
    examples = "\n  ".join([". Examples:", *shown]) if shown else ""
    if not find_excess(*counted, source.max_malformed):
        return f"{found} and dropped{examples}"
    remedy = "Repair the records"
    if undecoded and source.encoding != "utf-8":
        remedy = "Correct `encoding`, or repair the records"
    elif undecoded:
        remedy = (
            'If these text files are in another encoding, set it, as in encoding = "latin-1", in a source of their own '
            "if others are in UTF-8; or convert them (`iconv -f latin1 -t utf-8`). Otherwise repair the records"
        )
    without = f", or set max_malformed = {counted.enough} to go on without these" if counted.share < 1 else ""
    allowed = f"more than max_malformed = {source.max_malformed} allows"
    raise SourceError(f"{found}, {allowed}{examples}\n{remedy}{without}.")
