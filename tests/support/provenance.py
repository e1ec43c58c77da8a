"""Documents of a set read again from their sources, by the source, unit and row that the document tables name."""

import json
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.clean.personal_data import mask_text
from pipeline.clean.tally import Tally
from pipeline.recipe.paths import find_recipe_folder
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.files import list_files, list_spans, read_span
from shards import open_set
from shards.format.content_hash import hash_document
from shards.stores.open import open_writable_store
from tests.support.personal_data import kinds_of


def compare_with_sources(path: Path | str, count: int) -> tuple[int, int]:
    """Read `count` documents again, spread over the set; return how many were compared, and how many differ."""
    shard_set = open_set(path)
    folder = find_recipe_folder(open_writable_store(f"{path}.work"))
    recipe = json.loads(shard_set.store.read(shard_set.manifest.recipe.file))
    rows = [row for shard in shard_set.shards for row in shard.documents().to_pylist()]
    chosen = rows[:: max(1, len(rows) // count)][:count]
    parts: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in chosen:
        parts[row["source"], row["unit"]].append(row)
    sources = {keys["name"]: SourceRecipe.model_validate(keys, context=folder) for keys in recipe["sources"]}
    different = 0
    for (source, unit), own in parts.items():
        texts = read_unit(sources[source], unit)
        table = sources[source].clean.personal_data
        kinds = kinds_of(table.all_kinds) if table is not None and table.action == "mask" else ()
        found = [mask_text(texts.get(row["row"], b""), kinds, Tally()) for row in own]
        different += sum(hash_document(text) != row["hash"] for text, row in zip(found, own, strict=True))
    return len(chosen), different


def read_unit(source: SourceRecipe, unit: str) -> dict[int, bytes]:
    """Return the documents of a unit, `file@revision#part`, by row. Names of files may hold both signs."""
    name, _, rest = unit.rpartition("@")
    part = rest.rpartition("#")[2]
    (file,) = (file for file in list_files(source) if file.name == name)
    span = list_spans(source, [file])[file.name][0]
    if part != "file":
        start, stop = map(int, re.findall(r"\d+", part))
        span = replace(span, start=start, stop=stop)  # perhaps other parts than a whole build's
    return {
        row: text.encode() if isinstance(text, str) else text
        for batch in read_span(source, span)
        for row, text in zip(batch.rows.tolist(), batch.text.to_pylist(), strict=True)
    }
