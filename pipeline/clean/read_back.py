"""Read documents back as a set holds them, for `python -m shards validate --against-sources`.

The package's entry points of the group `tokenmill.sources` name `read_documents`.
"""

from __future__ import annotations

from typing import Any

from pipeline.clean.filters import mask_as_recipe
from pipeline.sources.provenance import parse_source, read_documents_again


def read_documents(source: dict[str, Any], unit: str, rows: list[int]) -> list[bytes | None]:
    """Read documents back by provenance, and mask what the recipe masks; otherwise as `pipeline.sources.provenance`."""
    recipe = parse_source(source)
    found = read_documents_again(source, unit, rows)
    return [None if text is None else mask_as_recipe(recipe, text) for text in found]
