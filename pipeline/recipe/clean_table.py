"""The base of every table of `clean`, preset or filter: its name, and where a person finds it."""

from __future__ import annotations

from typing import ClassVar

from shards.config import Settings


class CleanTable(Settings):
    """Base of the presets and the filters."""

    name: ClassVar[str]
    """The table's name in `clean`."""

    @property
    def label(self) -> str:
        """The name under which its dropped documents are counted: `clean.LABEL`."""
        return self.name

    @property
    def table(self) -> str:
        """Its table in a recipe; a source's own table replaces the recipe's."""
        return f"[sources.clean.{self.name}] or [clean.{self.name}]"
