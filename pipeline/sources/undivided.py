"""Text files without a separator, each of which is one document: they are counted and shown with a remedy."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

LEAST_UNDIVIDED_BYTES = 1 << 16
"""A text file of this size in which the separator never occurs is reported: few documents are as long."""
_SHOWN = 3


@dataclass(slots=True)
class Undivided:
    """Text files of a source that its separator does not divide, by the separator that would divide them."""

    files: dict[str, int] = field(default_factory=dict[str, int])
    """The number of files. The separator is the source's with other line ends; empty if that does not occur either."""
    shown: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Names of some of them."""

    def add(self, separator: str, name: str) -> None:
        """Add a file."""
        self.update(Undivided({separator: 1}, {separator: [name]}))

    def update(self, other: Undivided) -> None:
        """Add the files of another part of the source."""
        for separator, count in other.files.items():
            self.files[separator] = self.files.get(separator, 0) + count
            shown = self.shown.setdefault(separator, [])
            shown += other.shown[separator][: _SHOWN - len(shown)]

    def describe(self, source: SourceRecipe) -> list[str]:
        """Return a line for each separator, with the remedy."""
        given = json.dumps(source.separator)
        lines: list[str] = []
        for separator, count in sorted(self.files.items()):
            more = count - len(self.shown[separator])
            listed = ", ".join(self.shown[separator]) + (f" and {more:,} more" if more else "")
            one = "is read as one document" if count == 1 else "are read as one document each"
            files = f"{count:,} text file{'' if count == 1 else 's'}"
            # With other line ends there is a separator to set; without, the recipe or the format is wrong.
            if separator:
                other = json.dumps(separator)
                remedy = f"Set separator = {other}; if other files have {given}, give these a source of their own"
                why = f"the separator {given} occurs only with other line ends, {other}, in {files} that {one}"
            else:
                remedy = 'Correct `separator`, or set format = "file" if each file is one document'
                size = f"{LEAST_UNDIVIDED_BYTES:,} bytes or more"
                why = f"the separator {given} never occurs in {files} of {size} that {one}"
            lines.append(f"source {source.name!r}: {why}: {listed}. {remedy}.")
        return lines
