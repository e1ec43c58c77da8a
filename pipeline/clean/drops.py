"""Drops: how many documents and tokens each step of cleaning, and each of its reasons, drops of a source.

The table has a row for each source, step and reason. A document counts for its first reason. Encoding and the mix count
in such tables alone, which alarms, `plan`, `clean-report`, `trace --hash` and the manifest read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.clean.reasons import Dropped, step_of
from shards.errors import plural
from shards.format.arrays import Integers


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
        """Return the sum with other counts."""
        return self if other is None else Counts(self.documents + other.documents, self.tokens + other.tokens)


@dataclass(slots=True)
class StepDrops:
    """A step of cleaning, and the documents of a source that it drops."""

    decided: Counts = field(default_factory=Counts)
    """Documents that the step decided on."""
    alone: Counts | None = None
    """Those that the step would drop without the others of its kind; None if those are the documents of `reasons`."""
    reasons: dict[str, Counts] = field(default_factory=dict[str, Counts])
    """By reason, the documents whose first reason it is."""
    before_encoding: bool = False
    """Its documents have no tokens."""
    reports: bool = False
    """Whether the step only reports: its documents stay."""

    @property
    def first(self) -> Counts:
        """Documents whose first reason is one of the step's."""
        own = self.reasons.values()
        return Counts(sum(one.documents for one in own), sum(one.tokens for one in own))

    @property
    def found(self) -> Counts:
        """Documents that the step would drop alone."""
        return self.alone or self.first

    @property
    def dropped(self) -> Dropped:
        """The documents that the step would drop alone, of those that it decided on."""
        return Dropped(self.found.documents, self.decided.documents)

    def describe(self) -> str:
        """Return the counts of what is dropped: `3 of 10 documents (30.00%, 900 tokens)`."""
        return self.dropped.describe(more=f", {plural(self.found.tokens, 'token')}" if self.found.tokens else "")

    @property
    def note(self) -> str:
        """What a report says beside the step's name."""
        return "before encoding" if self.before_encoding else "reported, not dropped" if self.reports else ""

    def reason(self, name: str) -> Counts:
        """Return the drops by one reason, a row that is new the first time."""
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
        """Return a step by its name, which is new the first time."""
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
            own.decided = own.decided.plus(step.decided)
            own.alone = step.alone and step.alone.plus(own.alone)
            for reason, counts in step.reasons.items():
                own.reasons[reason] = own.reason(reason).plus(counts)

    def after(self, encoding: SourceDrops) -> SourceDrops:
        """Return the table with the steps before encoding in front of its own."""
        before = {name: replace(step, before_encoding=True) for name, step in encoding.steps.items()}
        return replace(self, steps=before | self.steps)

    def dropped(self) -> Counter[str]:
        """Return how many documents are dropped by first reason, without reasons that no document has."""
        steps = [step for step in self.steps.values() if not step.reports]
        return +Counter({name: own.documents for step in steps for name, own in step.reasons.items()})
