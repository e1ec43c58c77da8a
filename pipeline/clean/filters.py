"""Filters: the steps of cleaning that read the text of every document before it is encoded.

They come after the lengths and `drop_if_matches`. A filter may drop documents, counted by reason; masking personal data
is the only step that changes text.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.arrow_arrays import wrap_mask
from pipeline.clean import personal_kinds
from pipeline.clean.datatrove_filters import find_rejected, versions
from pipeline.clean.language import find_other_languages, identity_of_model
from pipeline.clean.limits import SHOWN, TEXT_CHARACTERS
from pipeline.clean.personal_data import (
    Masked,
    find_personal_data,
    mask_personal_data,
    mask_text,
)
from pipeline.clean.personal_kinds import kinds_of
from pipeline.recipe.filters import DatatroveFilter, Filter, Language, PersonalData
from shards.terminal.display import printable

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from pipeline.recipe.schema import SourceRecipe


@dataclass(frozen=True, slots=True)
class FilteredDocument:
    """A document that a filter dropped, as an error shows it."""

    step: str
    """The filter's label."""
    row: int
    reason: str
    text: str = ""
    """Its first characters; empty if it was dropped for something that must not be shown."""
    place: str = ""
    """The label of its span."""

    def __str__(self) -> str:
        text = f": {printable(self.text)}" if self.text else ""
        return f"{printable(self.place)} row {self.row}: {self.reason}{text}"


@dataclass(slots=True)
class Filtered:
    """The effect of filters on the documents of some spans."""

    masked: Masked = field(default_factory=Masked)
    steps: Counter[str] = field(default_factory=Counter[str])
    """Dropped documents, by the filter's label."""
    edited: Counter[str] = field(default_factory=Counter[str])
    """Documents whose text a filter of datatrove changed, by the filter's label; they are encoded unchanged."""
    seconds: float = 0.0
    """CPU time of the filters that are slow."""
    shown: list[FilteredDocument] = field(default_factory=list[FilteredDocument])
    """Some of each filter's."""

    def to_json(self, shown: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what a run's receipt says of filters."""
        return {"masked": self.masked.to_json(), "steps": dict(self.steps), "edited": dict(self.edited), "shown": shown}


def identify_filter(table: Filter) -> list[Any]:
    """Return what decides a filter's result, for digests."""
    if isinstance(table, PersonalData):
        return [table.name, personal_kinds.CODE_VERSION, table.action, table.all_kinds]
    if isinstance(table, Language):
        return [table.name, *identity_of_model(table)]
    assert isinstance(table, DatatroveFilter)
    return [table.name, versions(), table.filter, table.arguments]


def apply_personal_data_filter(
    text: pa.LargeStringArray,
    rows: npt.NDArray[np.unsignedinteger],
    source: SourceRecipe,
    dropped: Counter[str],
    filtered: Filtered,
) -> tuple[pa.LargeStringArray, npt.NDArray[np.unsignedinteger]]:
    """Apply the filter of personal data: mask these data, or drop the documents that hold some, as the source says.

    Args:
        text: the documents, `(documents,)`, without nulls.
        rows: their rows.
        source: the source.
        dropped: the counts by reason are added to it.
        filtered: what was done is added to it.

    Returns:
        The documents that are left, and their rows.
    """
    table = source.clean.personal_data
    if table is None or not table.is_on or not len(text):
        return text, rows
    if table.action == "mask":
        return mask_personal_data(text, table.all_kinds, filtered.masked), rows
    found = {index: f"personal data: {kind}" for index, kind in find_personal_data(text, table.all_kinds).items()}
    return _drop(table.label, found, text, rows, dropped, filtered, show_text=False)


def apply_filters(
    text: pa.LargeStringArray,
    rows: npt.NDArray[np.unsignedinteger],
    source: SourceRecipe,
    dropped: Counter[str],
    filtered: Filtered,
) -> tuple[pa.LargeStringArray, npt.NDArray[np.unsignedinteger]]:
    """Drop the documents that a source's filters reject; arguments and result as of `apply_personal_data_filter`.

    Raises:
        FilterError: a filter failed.
    """
    for table in source.clean.filters():
        if not len(text) or isinstance(table, PersonalData):
            continue
        started = time.thread_time()
        if isinstance(table, Language):
            found = find_other_languages(text, table, source.folder)
        else:
            assert isinstance(table, DatatroveFilter)
            found, edited = find_rejected(text, rows, table)
            if edited:
                filtered.edited[table.label] += edited
        filtered.seconds += time.thread_time() - started
        text, rows = _drop(table.label, found, text, rows, dropped, filtered, show_text=True)
    return text, rows


def _drop(
    step: str,
    found: dict[int, str],
    text: pa.LargeStringArray,
    rows: npt.NDArray[np.unsignedinteger],
    dropped: Counter[str],
    filtered: Filtered,
    *,
    show_text: bool,
) -> tuple[pa.LargeStringArray, npt.NDArray[np.unsignedinteger]]:
    """Drop some documents, each for its reason."""
    if not found:
        return text, rows
    dropped.update(found.values())
    for index in list(found)[: max(0, SHOWN - filtered.steps[step])]:
        start = str(text[index].as_py())[:TEXT_CHARACTERS] if show_text else ""
        filtered.shown.append(FilteredDocument(step, int(rows[index]), found[index], start))
    filtered.steps[step] += len(found)
    kept = np.ones(len(text), bool)
    kept[list(found)] = False
    return text.filter(wrap_mask(kept)), rows[kept]


def apply_mask(source: SourceRecipe, text: bytes) -> bytes:
    """Apply the filter of personal data to the text of one document: masked, if its source is."""
    table = source.clean.personal_data
    if table is None or table.action != "mask":
        return text
    return mask_text(text, kinds_of(table.all_kinds))
