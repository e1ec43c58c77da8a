"""Documents by their provenance: as their source has them, or as a set holds them (`--against-sources`).

The package's entry points of the group `tokenmill.sources` name `read_documents`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.clean.personal_data import mask_document
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import File, SourceError, span_of_part
from pipeline.sources.kinds import list_files, list_spans, read_span


def read_documents(source: dict[str, Any], unit: str, rows: list[int]) -> list[bytes | None]:
    """Read documents by their provenance, as the set holds them: what the recipe masks is masked."""
    recipe = _parse_source(source)
    found = read_documents_again(source, unit, rows)
    return [None if text is None else mask_document(recipe, text) for text in found]


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
    recipe, files = _find_files(_parse_source(source), Path(str(source.get("folder", ""))))
    name, _, rest = unit.rpartition("@")
    part = rest.rpartition("#")[2]
    if part == "file":
        recipe = recipe.model_copy(update={"format": "file"})  # the build's; `auto` might choose another one now
    file = next((file for file in files if file.name == name), None)
    span = span_of_part(list_spans(recipe, [file]), part) if file else None
    if span is None:
        raise SourceError(f"{unit}: no such part in the source any more. Restore the files the set was built from.")
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


def _parse_source(source: dict[str, Any]) -> SourceRecipe:
    """Return the source of a set's recipe.json, to which a `folder` was added."""
    return SourceRecipe.model_validate({key: value for key, value in source.items() if key != "folder"})


def _find_files(source: SourceRecipe, folder: Path) -> tuple[SourceRecipe, list[File]]:
    """Find a source's files relative to a folder, else to the working directory, as in sets of 0.1.0."""
    placed = source.in_folder(folder.absolute())
    try:
        return placed, list_files(placed)
    except SourceError:
        here = source.in_folder(Path.cwd())
        if not source.path_keys or folder.absolute() == Path.cwd():
            raise
        try:
            return here, list_files(here)
        except SourceError as error:
            raise SourceError(f"{error} Looked under {folder.absolute()} as well.") from error
