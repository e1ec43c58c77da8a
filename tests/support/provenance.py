"""Documents of a set read again from their sources, by the source, unit and row that the document tables name."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from pipeline.clean.personal_data import mask_document
from pipeline.clean.provenance import read_documents_again
from pipeline.recipe.recipe_folder import find_recipe_folder
from pipeline.recipe.schema import SourceRecipe
from shards import open_set
from shards.format.content_hash import hash_document


def compare_with_sources(path: Path | str, count: int) -> tuple[int, int]:
    """Read `count` documents again, spread over the set; return how many were compared, and how many differ."""
    shard_set = open_set(path)
    folder = find_recipe_folder(shard_set.store)
    recipe = json.loads(shard_set.store.read(shard_set.manifest.recipe.file))
    sources = {keys["name"]: keys for keys in recipe["sources"]}
    rows = [row for shard in shard_set.shards for row in shard.documents().to_pylist()]
    parts: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows[:: max(1, len(rows) // count)][:count]:
        parts[row["source"], row["unit"]].append(row)
    different = 0
    for (source, unit), own in parts.items():
        texts = read_documents_again(
            {**sources[source], "folder": str(folder or "")}, unit, [row["row"] for row in own]
        )
        masked = SourceRecipe.model_validate(sources[source])
        hashes = [None if text is None else hash_document(mask_document(masked, text)) for text in texts]
        different += sum(found != row["hash"] for found, row in zip(hashes, own, strict=True))
    return sum(map(len, parts.values())), different
