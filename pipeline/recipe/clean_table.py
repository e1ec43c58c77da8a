"""The base of every table of `clean`, preset or filter: its name, and where a person finds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, cast

from shards.config import Settings, item_names


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


def list_clean(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each `clean` table of a raw recipe, of any shape, with its place in messages."""
    sources = data.get("sources")
    items = cast("list[Any]", sources) if isinstance(sources, list) else []
    tables = zip([f"sources.{name}" for name in item_names(items)], items, strict=True)
    for place, table in (("", data), *tables):
        clean = cast("dict[str, Any]", table).get("clean") if isinstance(table, dict) else None
        if isinstance(clean, dict):
            yield f"{place}.clean".lstrip("."), cast("dict[str, Any]", clean)
