"""Malformed records, and records without text: which drop reasons they are, when there are too many, what to do then.

Text that does not decode is malformed, like a JSON line that cannot be parsed: nothing is replaced. A null, or an
absent text, is no fault of the file, and has a limit of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.sources.base import MALFORMED

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

NULL = "text is null"


def invalid_reason(source: SourceRecipe) -> str:
    """Return the drop reason of text that does not decode in the source's encoding."""
    return f"text is not valid {'UTF-8' if source.encoding == 'utf-8' else source.encoding}"


def count_malformed(source: SourceRecipe, dropped: Mapping[str, float]) -> float:
    """Return how many of the dropped records are malformed: they cannot be parsed, or do not decode."""
    return dropped.get(MALFORMED, 0) + dropped.get(invalid_reason(source), 0)


def describe_examples(malformed: list[str]) -> str:
    """Return the end of a sentence about malformed records: some of them, a line each."""
    return "\n  ".join([". Examples:", *malformed]) if malformed else ""


def malformed_remedy(source: SourceRecipe, dropped: Mapping[str, float], records: float) -> str:
    """Return what to do about a source with too many malformed records, without a full stop.

    Args:
        source: the source.
        dropped: how many of its records are dropped, by reason, as far as they were read.
        records: how many were read.
    """
    share = count_malformed(source, dropped) / records
    without = f", or set max_malformed = {_enough(share)} to go on without these" if share < 1 else ""
    if not dropped.get(invalid_reason(source)):
        return f"Repair the records{without}"
    if source.encoding != "utf-8":
        return f"Correct `encoding`, or repair the records{without}"
    return (
        'If these text files are in another encoding, set it, as in encoding = "latin-1", in a source of their own if '
        f"others are in UTF-8; or convert them (`iconv -f latin1 -t utf-8`). Otherwise repair the records{without}"
    )


def null_share(source: SourceRecipe, dropped: Mapping[str, float], records: float) -> float:
    """Return the share of the records without text among those that the source's predicates keep."""
    # Rows that a predicate rejects were never asked for.
    rejected = {reason for one in source.predicates for reason in (one.reason, f"{one.column} is null")}
    kept = records - sum(dropped.get(reason, 0) for reason in rejected)
    return dropped.get(NULL, 0) / kept if kept else 0.0


def null_remedy(source: SourceRecipe, share: float) -> str:
    """Return what to do about a source with too many records without text."""
    key = "text" if source.content == "column" else "blob_id"
    return (
        f"{source.text_column!r} is null or absent there. Is it the column of the text (`{key}`)? If so, set "
        f"max_null = {_enough(share)} to go on without these records"
    )


def _enough(share: float) -> float:
    """Return a limit of four digits that allows a share."""
    return min(1.0, math.ceil(round(share * 1e4, 6)) / 1e4)
