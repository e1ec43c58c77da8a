"""Documents of a set read again from their sources, by the source, unit and row that the document tables name."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from pipeline.clean.personal_data import mask_document
from pipeline.recipe.paths import find_recipe_folder
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import SourceError, span_of_part
from pipeline.sources.files import list_files, list_spans, read_span
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


def read_documents_again(source: dict[str, Any], unit: str, rows: list[int]) -> list[bytes | None]:
    """Read documents by their provenance, as their source has them.

    Args:
        source: the source's object in the set's recipe.json, with the folder at which its paths begin as `folder`.
        unit: a span's label, `file@revision#part`.
        rows: row numbers in the span.

    Returns:
        The documents' UTF-8 bytes in the order of `rows`; None for a row that the span does not have.

    Raises:
        SourceError: the file is missing, or no longer has such a part.
    """
    keys = {key: value for key, value in source.items() if key != "folder"}
    recipe = SourceRecipe.model_validate(keys, context=Path(str(source.get("folder", ""))).absolute())
    files = list_files(recipe)
    # A unit is `file@revision#part`; names may hold both signs.
    name, _, rest = unit.rpartition("@")
    part = rest.rpartition("#")[2]
    if part == "file":
        recipe = recipe.model_copy(update={"format": "file"})  # the build's; `auto` might choose another one now
    file = next((file for file in files if file.name == name), None)
    span = span_of_part(list_spans(recipe, [file]), part) if file else None
    if span is None:
        raise SourceError(f"{unit}: no such part in the source any more. Restore the files the set was built from.")
    # Read the span until all wanted rows have come.
    texts: dict[int, bytes] = {}
    wanted = set(rows)
    for batch in read_span(recipe, span):
        for index in (i for i, row in enumerate(batch.rows.tolist()) if row in wanted):
            text = batch.text[index].as_py()
            texts[int(batch.rows[index])] = text.encode() if isinstance(text, str) else text
        if wanted <= texts.keys():
            break
    documents = [texts.get(row) for row in rows]
    if recipe.content == "column":
        return documents
    from pipeline.sources.software_heritage.archive import read_archive_again

    return read_archive_again(recipe, documents)
