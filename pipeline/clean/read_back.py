"""Read documents back as a set holds them, for `python -m shards validate --against-sources`.

The package's entry points of the group `tokenmill.sources` name `read_documents`.
"""

from __future__ import annotations

from typing import Any

from pipeline.clean.filters import mask_as_recipe
from pipeline.sources import read_back


def read_documents(source: dict[str, Any], unit: str, rows: list[int]) -> list[bytes | None]:
    """Read documents back by provenance, and mask what the recipe masks; otherwise as `pipeline.sources.read_back`."""
    recipe = read_back.parse_source(source)
    found = read_back.read_documents(source, unit, rows)
    return [None if text is None else mask_as_recipe(recipe, text) for text in found]
