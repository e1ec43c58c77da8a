"""The repository of each listed document, read from a column of its source, such as `repo_name` of Python-Edu.

A set says which row of which file a document is from, but has no other column of that row. So the files of the sources
are read again, by the readers that `validate --against-sources` uses: the parts with listed documents, and this column
alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shards.errors import InputError
from shards.validation.sources import load_reader, read_sources

if TYPE_CHECKING:
    from shards.audit.concentrated_documents import Concentrated, ListedDocument
    from shards.format.reader import ShardSet


def name_repositories(shard_set: ShardSet, found: Concentrated, column: str) -> Concentrated:
    """Return what was found with the repository of each listed document.

    Args:
        shard_set: the set.
        found: its listed documents.
        column: the column with the repository, by its dotted path. Documents of sources without it keep their files.

    Raises:
        InputError: no source of a listed document has the column, or can be read.
    """
    sources = read_sources(shard_set)
    members: dict[tuple[str, str], list[int]] = {}
    for document in found.documents:
        members.setdefault((document.place.source, document.place.unit), []).append(document.place.row)
    names: dict[tuple[str, str, int], str] = {}
    faults: dict[str, str] = {}
    for (source, unit), own in members.items():
        if source in faults:
            continue
        rows = sorted(set(own))
        # As a source whose text is this column. `clean` would mask names that look like addresses.
        table = {key: value for key, value in sources[source].items() if key not in ("clean", "content")}
        reader = load_reader(str(table.get("kind", "files")))
        try:
            values = reader(table | {"text": column}, unit, rows) if reader else []
        except (ValueError, OSError) as error:
            faults[source] = str(error)
            continue
        for row, value in zip(rows, values, strict=bool(reader)):
            if value:
                names[source, unit, row] = value.decode("utf-8", "replace")
    # One source without the column is nothing; all of them are a wrong name.
    if found.documents and not names:
        reasons = "; ".join(faults.values()) or "it is empty"
        raise InputError(f"--repository-column {column}: no listed document has one: {reasons}")
    documents: list[ListedDocument] = []
    for document in found.documents:
        place = document.place
        documents.append(replace(document, repository=names.get((place.source, place.unit, place.row), "")))
    return replace(found, documents=documents)
