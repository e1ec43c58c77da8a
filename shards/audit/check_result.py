"""The result of a check of the audit: a verdict, rows of findings, and documents as examples.

The verdicts and their rules are in `shards.audit.rules`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shards.audit.rules import Verdict
from shards.terminal.display import Table


@dataclass(frozen=True)
class Example:
    """A document to show as an example in the result of a check.

    Attributes:
        shard: the number of its shard in the manifest.
        document: its number in the shard.
        token: marks the first occurrence of this id. Without it, the beginning is marked.
    """

    shard: int
    document: int
    token: int | None = None


@dataclass
class Finding:
    """One finding in the result of a check: its columns, and documents as examples."""

    values: dict[str, Any]
    examples: list[Example] = field(default_factory=list[Example])
    shown: Table = field(default_factory=Table)
    """The examples with their places and excerpts, once they have been looked up."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the finding."""
        return self.values | ({"examples": self.shown} if self.shown else {})


@dataclass
class Check:
    """The result of one check: its name for programs, the verdict, a sentence, and the findings, worst first."""

    name: str
    verdict: Verdict
    summary: str
    findings: list[Finding] = field(default_factory=list[Finding])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the check."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "summary": self.summary,
            "rows": [finding.to_dict() for finding in self.findings],
        }


def worst_verdict(verdicts: set[Verdict]) -> Verdict:
    """Return the worst verdict among the results of checks; ok if there are none."""
    return "bad" if "bad" in verdicts else "look" if "look" in verdicts else "ok"
