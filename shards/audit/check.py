"""What an audit says: checks with a verdict each, rows of findings, and the documents that show them.

`ok`: nothing to do. `look`: a person should read the rows before paying for a training run. `bad`: train on this and
you will regret it. The limits between them are ours, and stand beside the checks that use them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["ok", "look", "bad"]


@dataclass(frozen=True, slots=True)
class Example:
    """A document to show: in what shard (its number in the manifest), its number there, and what to mark in it.

    `token` marks the first place of that id, `window` the window of tokens with that hash; neither, the beginning.
    """

    shard: int
    document: int
    token: int | None = None
    window: int | None = None


@dataclass
class Row:
    """One finding: its columns, and documents that show it."""

    values: dict[str, Any]
    examples: list[Example] = field(default_factory=list[Example])
    shown: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The examples with their places and excerpts, once they have been looked up."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the finding."""
        return self.values | ({"examples": self.shown} if self.shown else {})


@dataclass
class Check:
    """One check: a word for programs, the verdict, a sentence, and what was found, worst first."""

    name: str
    verdict: Verdict
    summary: str
    rows: list[Row] = field(default_factory=list[Row])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the check."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "summary": self.summary,
            "rows": [row.to_dict() for row in self.rows],
        }
